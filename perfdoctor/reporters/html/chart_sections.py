"""The charts of the page: their headings, and how to read each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ChartSection(NamedTuple):
    """A chart: its name, its place in the contents, and its words."""

    name: str
    anchor: str
    short: str
    title: str
    text: str


_ROOFS = "The line above is the most that the device can do with such work."


def chart_sections(data: Mapping[str, Any]) -> list[ChartSection]:
    """The charts whose data is there, in the order of the page."""
    timeline, series = data["timeline"], data["steps"]
    has_step = timeline is None or timeline["step"] is not None
    has_series = series is not None and len(series["recorded_ns"]) + len(series["unprofiled_ns"]) > 1
    of_step, step_time = ("a step's time", "A step's time") if has_step else ("the time", "The time")
    has_roofs = bool((data["roofline"] or {}).get("roofs"))
    roofs = _ROOFS if has_roofs else "What the device can do is not known: `--device` names it."
    charts = [
        (timeline, ChartSection(
            "timeline", "timeline", "Timeline", f"Timeline of {'a median step' if has_step else 'the analysed time'}",
            "Streams, threads and phases as recorded; gaps of the GPU by their cause, findings marked above.",
        )),
        (data["memory"], ChartSection(
            "memory", "memory", "Memory", "Memory over time, by what it is for",
            "What is allocated after each event. The peak is marked, with the line that allocated most of it.",
        )),
        (data["flames"], ChartSection(
            "flames", "flames", "Flames", f"Where {of_step} goes, by place",
            "Each box is as wide as its time: the parts of the loop, below them the places (lines of your code, else "
            "the best name there is), what these call, and the innermost op. A backward op is where its forward op is.",
        )),
        (data["flames"], ChartSection(
            "treemap", "treemap", "Treemap", f"{step_time} by place, as areas",
            "The same tree: the larger an area, the more time; free is own time. Colours are parts of the loop.",
        )),
        (data["roofline"], ChartSection(
            "roofline", "roofline", "Roofline", "Roofline: how near the kernels come to what the device can do",
            f"Each point is a kernel with its shape. {roofs}",
        )),
        (has_series, ChartSection(
            "steps", "steps", "Steps", "The steps, one after another",
            "The recorded steps, and those of the whole run without the profiler; what happened in it is marked.",
        )),
        (data["ranks"], ChartSection(
            "ranks", "rank-steps", "Ranks", "The steps of every rank",
            "Each cell is a step of a rank: the darker, the longer it took.",
        )),
    ]  # fmt: skip
    return [chart for is_there, chart in charts if is_there]


BASIS_TEXTS: Mapping[str, str] = {
    "measured": "A saving that is measured: the program was run with the change, in turns with itself without it.",
    "replayed": "A saving that is replayed: the recorded step was played again with the change, launches, streams and "
    "waits as they were; the range is where the replay's own assumptions end.",
    "bounded": "A saving that is bounded: the least and the most are proven from the recording, what lies between is "
    "not known.",
    "unknown": "A saving that is unknown: nothing in the recording says how much the fix gives.",
}
"""What each basis of a saving means, in a sentence."""
