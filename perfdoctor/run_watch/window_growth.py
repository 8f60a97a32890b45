"""What takes longer in the late windows of a run than in its first ones: by op, by call and by line.

The rows are matched as `perfdoctor compare` matches those of two recordings; all times are of one step without the
profiler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.match_rows import UNKNOWN_TABLE, ChangeTable, SideRows, match_rows, rows_of_table
from perfdoctor.analysis.step_breakdown import StepBreakdown
from perfdoctor.frozen_dataclass import frozen_dataclass

_TABLES = ("ops", "kernels")


class LineShare(NamedTuple):
    """A line of the user's code, and its share (0 to 1) of a step."""

    location: SourceLocation
    share: float


class LineGrowth(NamedTuple):
    """A line of the user's code with its time of one step in ns, in the first windows and in the late ones."""

    location: SourceLocation
    before_ns: int
    after_ns: int

    @property
    def rise_ns(self) -> int:
        """By how much it takes longer."""
        return self.after_ns - self.before_ns


@frozen_dataclass(eq=False)
class WindowGrowth:
    """What the late windows of a run have more of than the first ones.

    Attributes:
        before_ns, after_ns: The mean step of each, without the profiler.
        ops: The rows of the step by op; what Python does between ops and the loader are rows of it.
        kernels: The rows by kernel; unknown without a GPU.
        lines: The user's lines, the one that grows most first; empty where none were recorded.
    """

    before_ns: int
    after_ns: int
    ops: ChangeTable
    kernels: ChangeTable
    lines: tuple[LineGrowth, ...]

    @property
    def rise_ns(self) -> int:
        """By how much the step is longer."""
        return self.after_ns - self.before_ns


def compare_early_with_late(
    before: StepBreakdown, after: StepBreakdown, lines_before: Iterable[LineShare], lines_after: Iterable[LineShare]
) -> WindowGrowth:
    """What the late windows have more of; the shares of lines are of the step with its stacks recorded."""
    before_ns, after_ns = (round(each.time_scale * each.mean_step_ns) for each in (before, after))
    ops, kernels = (_match(name, before, after) for name in _TABLES)
    old, new = (
        {(each.location.file, each.location.line): each for each in lines} for lines in (lines_before, lines_after)
    )
    lines = [
        LineGrowth(
            (new.get(place) or old[place]).location,
            round(before_ns * old[place].share) if place in old else 0,
            round(after_ns * new[place].share) if place in new else 0,
        )
        for place in {**old, **new}
    ]
    return WindowGrowth(before_ns, after_ns, ops, kernels, tuple(sorted(lines, key=lambda line: -line.rise_ns)))


def _match(name: str, before: StepBreakdown, after: StepBreakdown) -> ChangeTable:
    if name not in before.tables or name not in after.tables:
        return UNKNOWN_TABLE
    old, new = (
        SideRows([rows_of_table(each.tables[name], each.time_scale)], round(each.time_scale * each.mean_step_ns))
        for each in (before, after)
    )
    return match_rows(name, old, new)
