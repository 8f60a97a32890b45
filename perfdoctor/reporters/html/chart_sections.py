"""The charts of the page: their headings, and how to read each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perfdoctor.data_rows import read_rows


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
    has_roofs = bool((data["roofline"] or {}).get("roofs"))
    words = {
        "median_step": "a median step" if has_step else "the analysed time",
        "of_step": "a step's time" if has_step else "the time",
        "step_time": "A step's time" if has_step else "The time",
        "roofs": _ROOFS if has_roofs else "What the device can do is not known: `--device` names it.",
    }
    return [
        ChartSection(
            row["name"], row["anchor"], row["short"], row["title"].format(**words), row["text"].format(**words)
        )
        for row in read_rows("reporters/html/charts.csv")
        if (has_series if row["data"] == "steps" else data[row["data"]])
    ]


BASIS_TEXTS: Mapping[str, str] = {
    "measured": "A saving that is measured: the program was run with the change, in turns with itself without it.",
    "replayed": "A saving that is replayed: the recorded step was played again with the change, launches, streams and "
    "waits as they were; the range is where the replay's own assumptions end.",
    "bounded": "A saving that is bounded: the least and the most are proven from the recording, what lies between is "
    "not known.",
    "unknown": "A saving that is unknown: nothing in the recording says how much the fix gives.",
}
"""What each basis of a saving means, in a sentence."""
