"""Geometry of the bars that the page shows without a script: segments, ranges and ladders in percent of their width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfdoctor.report.finding import Finding
from perfdoctor.reporters.time_split import TimeSplit
from perfdoctor.reporters.verdict import Ladder
from perfdoctor.units import format_duration


class Segment(NamedTuple):
    """A part of a bar: the name that gives it its colour and pattern, its label, and where it is drawn."""

    name: str
    label: str
    x: float
    width: float


class RangeBar(NamedTuple):
    """What a fix saves, along the step: from `low` to `high` with a mark at `expected`, None where that is not known.

    `label` says the same in words, for those who do not see the bar.
    """

    low: float
    high: float
    expected: float | None
    label: str


class Rung(NamedTuple):
    """One rung of the ladder: what it is, how long the step is there, and that as the width of a bar."""

    kind: str
    label: str
    time: str
    width: float


def segments_of(split: TimeSplit) -> list[Segment]:
    """The details of an average step next to each other, those without time left out."""
    parts = [(name, part.label, part.share) for name, part in split.by_detail.items() if part.share > 0]
    return _place_in_row(parts)


def segments_of_shares(shares: Mapping[str, float]) -> list[Segment]:
    """Parts next to each other, by their labels; the label of each is its name as well."""
    return _place_in_row([(label.replace(" ", "-"), label, share) for label, share in shares.items()])


def _place_in_row(parts: Sequence[tuple[str, str, float]]) -> list[Segment]:
    whole = sum(share for _, _, share in parts) or 1.0
    segments, x = [], 0.0
    for name, label, share in parts:
        width = 100 * share / whole
        segments.append(Segment(name, label, round(x, 3), round(width, 3)))
        x += width
    return segments


def range_bar(finding: Finding, step_ns: float | None) -> RangeBar | None:
    """The saving of a finding against the step; None where no figure of it, or no step, is known."""
    saving = finding.saving
    low, expected, high = saving.low_ns, saving.expected_ns, saving.high_ns
    upper_ns = high if high is not None else expected
    if upper_ns is None or not step_ns:
        return None
    lower_ns = low if low is not None else 0 if expected is None else expected
    middle = "" if expected is None else f", {format_duration(expected)} expected"
    label = f"saves {format_duration(lower_ns)} to {format_duration(upper_ns)} of {format_duration(step_ns)}{middle}"
    return RangeBar(
        _scale(lower_ns, step_ns),
        _scale(upper_ns, step_ns),
        None if expected is None else _scale(expected, step_ns),
        label,
    )


def _scale(ns: float, step_ns: float) -> float:
    return round(100 * min(ns / step_ns, 1.0), 3)


def rungs_of(ladder: Ladder) -> list[Rung]:
    """The rungs of the ladder from the present down, each as wide as its step is long."""
    longest = max(ladder.now_ns, ladder.after_fixes_ns or 0, ladder.limit_ns or 0) or 1
    rungs = [("now", "now", format_duration(ladder.now_ns), ladder.now_ns)]
    if ladder.after_fixes_ns is not None:
        after = f"after {ladder.fixes} {'fix' if ladder.fixes == 1 else 'fixes'}"
        rungs.append(("fixed", after, f"about {format_duration(ladder.after_fixes_ns)}", ladder.after_fixes_ns))
    if ladder.limit_ns is not None:
        limit = "limit of this work" if ladder.is_limit_of_work else "if nothing waited"
        rungs.append(("limit", limit, format_duration(ladder.limit_ns), ladder.limit_ns))
    return [Rung(kind, label, time, round(100 * ns / longest, 3)) for kind, label, time, ns in rungs]
