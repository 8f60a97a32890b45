"""What takes longer in the late windows of a run than in its first ones: by op, by call and by line.

The rows are matched as `perfdoctor compare` matches those of two recordings; all times are of one step without the
profiler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.match_rows import UNKNOWN_TABLE, ChangeTable, SideRows, match_rows, rows_of_table
from perfdoctor.analysis.step_breakdown import StepBreakdown
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.places.ops_at_lines import OpAtLine, count_elements

_TABLES = ("ops", "kernels")
# Inputs have grown where those of all late steps have so many times the elements of the largest early ones.
_LARGER = 1.05


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


class OpGrowth(NamedTuple):
    """An op at a line, with its time of one step in ns; what it does there is None where it does not run."""

    name: str
    location: SourceLocation | None
    before_ns: int
    after_ns: int
    before: OpAtLine | None
    after: OpAtLine | None

    @property
    def rise_ns(self) -> int:
        """By how much it takes longer."""
        return self.after_ns - self.before_ns

    @property
    def inputs(self) -> Literal["larger", "same", "other", "unknown"]:
        """What became of the sizes of its inputs; "other" where they vary, and are no larger."""
        if self.before is None or self.after is None or not self.before.largest or not self.after.largest:
            return "unknown"
        if count_elements(self.after.smallest) > _LARGER * count_elements(self.before.largest):
            return "larger"
        return "same" if self.before.shapes == self.after.shapes else "other"


@frozen_dataclass(eq=False)
class WindowGrowth:
    """What the late windows of a run have more of than the first ones.

    Attributes:
        before_ns, after_ns: The mean step of each, without the profiler.
        ops: The rows of the step by op; what Python does between ops and the loader are rows of it.
        kernels: The rows by kernel; unknown without a GPU.
        lines: The user's lines, the one that grows most first; empty where none were recorded.
        ops_at_lines: The ops of `ops` at the lines that call them, the one that grows most first.
    """

    before_ns: int
    after_ns: int
    ops: ChangeTable
    kernels: ChangeTable
    lines: tuple[LineGrowth, ...]
    ops_at_lines: tuple[OpGrowth, ...] = ()

    @property
    def rise_ns(self) -> int:
        """By how much the step is longer."""
        return self.after_ns - self.before_ns


def compare_early_with_late(
    before: StepBreakdown,
    after: StepBreakdown,
    lines: tuple[Iterable[LineShare], Iterable[LineShare]],
    ops_at_lines: tuple[Iterable[OpAtLine], Iterable[OpAtLine]],
) -> WindowGrowth:
    """What the late windows have more of; lines and their ops are of the steps with stacks, early and late."""
    before_ns, after_ns = (round(each.time_scale * each.mean_step_ns) for each in (before, after))
    ops, kernels = (_match(name, before, after) for name in _TABLES)
    old, new = ({(each.location.file, each.location.line): each for each in side} for side in lines)
    grown = [
        LineGrowth(
            (new.get(place) or old[place]).location,
            round(before_ns * old[place].share) if place in old else 0,
            round(after_ns * new[place].share) if place in new else 0,
        )
        for place in {**old, **new}
    ]
    grown.sort(key=lambda line: -line.rise_ns)
    return WindowGrowth(before_ns, after_ns, ops, kernels, tuple(grown), _compare_at_lines(ops, *ops_at_lines))


def _compare_at_lines(ops: ChangeTable, before: Iterable[OpAtLine], after: Iterable[OpAtLine]) -> tuple[OpGrowth, ...]:
    """The ops by line: of the time of each name, which recording stacks does not lengthen, the shares of its lines."""
    before_ns, after_ns = Counter[str](), Counter[str]()
    for row in ops.rows:
        before_ns[row.name] += row.before_ns
        after_ns[row.name] += row.after_ns
    old, new = (
        {(each.name, each.location and (each.location.file, each.location.line)): each for each in side}
        for side in (before, after)
    )
    grown = []
    for place in {**old, **new}:
        was, now = old.get(place), new.get(place)
        name, location, *_ = now or old[place]
        ns = [round(total[name] * (each.share if each else 0)) for total, each in ((before_ns, was), (after_ns, now))]
        grown.append(OpGrowth(name, location, ns[0], ns[1], was, now))
    return tuple(sorted(grown, key=lambda op: -op.rise_ns))


def _match(name: str, before: StepBreakdown, after: StepBreakdown) -> ChangeTable:
    if name not in before.tables or name not in after.tables:
        return UNKNOWN_TABLE
    old, new = (
        SideRows([rows_of_table(each.tables[name], each.time_scale)], round(each.time_scale * each.mean_step_ns))
        for each in (before, after)
    )
    return match_rows(name, old, new)
