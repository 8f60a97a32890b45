"""The charts of the page: their headings, how to read each, and what to record for one whose data the trace lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perfdoctor.rules.requirements import REQUIREMENTS


class ChartSection(NamedTuple):
    """A chart: its key in the data of the page, its place in the contents, its words, and whether it is there."""

    name: str
    anchor: str
    short: str
    title: str
    text: str
    missing: str
    is_there: bool


_ROOFS = "The line above is the most that the device can do with such work."


def chart_sections(data: Mapping[str, Any]) -> list[ChartSection]:
    """The charts in the order of the page; memory only where it was recorded, the heat map only of several ranks."""
    step = (data["timeline"] or {}).get("step")
    moment = "the analysed time" if data["timeline"] is not None and step is None else "a median step"
    series = data["steps"] or {"recorded_ns": (), "unprofiled_ns": ()}
    steps = len(series["recorded_ns"]) + len(series["unprofiled_ns"])
    has_roofs = bool((data["roofline"] or {}).get("roofs"))
    roofs = _ROOFS if has_roofs else "What the device can do is not known: `--device` names it."
    charts = [
        ChartSection(
            "timeline", "timeline", "Timeline", f"Timeline of {moment}",
            "Streams, threads and phases as recorded; gaps of the GPU by their cause, findings marked above.",
            "There is no timeline: the report was made without the data of its charts.",
            data["timeline"] is not None,
        ),
        ChartSection(
            "memory", "memory", "Memory", "Memory over time, by what it is for",
            "What is allocated after each event. The peak is marked, with the line that allocated most of it.",
            "",
            data["memory"] is not None,
        ),
        _flames_section(data),
        ChartSection(
            "roofline", "roofline", "Roofline", "Roofline: how near the kernels come to what the device can do",
            f"Each point is a kernel with its shape. {roofs}",
            f"No kernel's work is known: {REQUIREMENTS['shapes']}.",
            data["roofline"] is not None,
        ),
        ChartSection(
            "modules", "modules", "Modules", "GPU time by module",
            "Each area is a module, the larger the more GPU time it and its parts take. A colour is a kind of module.",
            "No modules were recorded: record with `perfdoctor run`, or with with_stack=True and with_modules=True.",
            bool(data["modules"]),
        ),
        ChartSection(
            "steps", "steps", "Steps", "The steps, one after another",
            "The recorded steps, and those of the whole run without the profiler; what happened in it is marked.",
            "One step makes no series: record more." if steps else f"There is no series: {REQUIREMENTS['steps']}.",
            steps > 1,
        ),
        ChartSection(
            "ranks", "rank-steps", "Ranks", "The steps of every rank",
            "Each cell is a step of a rank: the darker, the longer it took.",
            "",
            data["ranks"] is not None,
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart.is_there or chart.missing]


def _flames_section(data: Mapping[str, Any]) -> ChartSection:
    if data["on_cpu"]:
        return ChartSection(
            "flames", "cpu-time", "CPU", "What the CPU was in",
            "Each box is a call, as wide as its time in a step on the thread with most ops. Those above it called it.",
            "No ops were recorded: record with `perfdoctor run`.",
            data["flames"] is not None,
        )  # fmt: skip
    return ChartSection(
        "flames", "idle-flames", "Idle CPU", "What the CPU was in while the GPU had nothing to do",
        "Each box is a call, as wide as the idle time of the GPU during it, a step. Those above it called it.",
        f"No idle time of the GPU can be joined to what the CPU did. Where the GPU idles and this is empty, "
        f"{REQUIREMENTS['stacks']}.",
        data["flames"] is not None,
    )  # fmt: skip


BASIS_TEXTS: Mapping[str, str] = {
    "measured": "A saving that is measured: the program was run with the change, in turns with itself without it.",
    "replayed": "A saving that is replayed: the recorded step was played again with the change, launches, streams and "
    "waits as they were; the range is where the replay's own assumptions end.",
    "bounded": "A saving that is bounded: the least and the most are proven from the recording, what lies between is "
    "not known.",
    "unknown": "A saving that is unknown: nothing in the recording says how much the fix gives.",
}
"""What each basis of a saving means, in a sentence."""
