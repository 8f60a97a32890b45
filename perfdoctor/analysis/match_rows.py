"""The rows of two recordings matched by op, shape and name, with what each explains of the difference of the mean step.

Rows that only one side has and that do the same work (the same op on the same shapes, by another kernel) become one row
that was replaced. Rows and remainder add up to the difference of the mean step exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from perfdoctor.analysis.step_breakdown import BreakdownTable, RowKey
from perfdoctor.analysis.step_noise import BETWEEN_RECORDINGS, is_judgeable, rank_interval
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import FloatArray
from perfdoctor.value_limits import Signed

Status: TypeAlias = Literal["came", "went", "faster", "slower", "same", "replaced"]

MAX_ROWS = 200
"""Rows of a table: what the others explain is in its remainder."""

_Grouping: TypeAlias = Callable[[RowKey], Hashable | None]


@frozen_dataclass(eq=False)
class RowTime:
    """One row of a table: its time in each step in ns, and how often it runs in a step; None where not counted.

    Where only its mean is known, that is the one value. `scale` is what recorded time was multiplied by.
    """

    step_ns: FloatArray
    count: float | None
    scale: float = 1.0


@frozen_dataclass
class RowChange:
    """One row before and after, in ns a step.

    Attributes:
        name: What it is; of one that was replaced what it was before.
        new_name: What replaced it; None for the others.
        op: The op that launched a kernel; "" where not known.
        shape: The shapes of the op's inputs; "" where not known or where they differ.
        kind: See `RowKey`.
        status: "came" and "went": only on one side. "replaced": other kernels, or other shapes, of the same op.
            "faster" and "slower" beyond the noise of the row, where that is known; else "same".
        before_ns, after_ns: Its time in the mean step; 0 where it does not occur.
        difference_ns: After less before: what it explains.
        before_count, after_count: How often it runs in a step; None where not counted.
        beyond_noise: Whether its own steps, as recorded, differ beyond the noise; None where too few steps are known.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("name", "new_name", "op", "shape", "kind", "status", "before_ns", "after_ns", "difference_ns"),
        *("before_count", "after_count", "beyond_noise"),
    )

    name: str
    new_name: str | None
    op: str
    shape: str
    kind: str
    status: Status
    before_ns: int
    after_ns: int
    before_count: float | None
    after_count: float | None
    beyond_noise: bool | None

    @property
    def difference_ns(self) -> Signed:
        """After less before."""
        return self.after_ns - self.before_ns


@frozen_dataclass
class ChangeTable:
    """The rows that explain most of the difference of the mean step, in this order.

    Attributes:
        rows: The rows, by the size of what they explain.
        difference_ns: The difference of the mean step: that of all rows and the remainder.
        remainder_ns: What no row here explains.
        is_known: Whether both sides have such rows.
    """

    difference_ns: Signed | None = None
    remainder_ns: Signed | None = None
    is_known: bool = False
    rows: tuple[RowChange, ...] = ()


UNKNOWN_TABLE = ChangeTable()


@frozen_dataclass(eq=False)
class SideRows:
    """The rows of one table on one side: for each recording its rows, and the mean step in whole ns."""

    recordings: Sequence[Mapping[RowKey, RowTime]]
    mean_ns: int


class _Row(NamedTuple):
    """A row on one side, over its recordings: the mean step, all steps as they were recorded, and the calls a step."""

    mean_ns: float
    recorded_ns: FloatArray
    calls: float | None


@dataclass(slots=True)
class _Match:
    """Rows of both sides that belong together."""

    before: list[RowKey] = field(default_factory=list)
    after: list[RowKey] = field(default_factory=list)


def _same_name(key: RowKey) -> Hashable | None:
    return key.name, key.kind


# What rows of one side alone are matched by, one after the other.
_GROUPINGS: Mapping[str, tuple[_Grouping, ...]] = {
    # The function and what it calls of a line that moved.
    "places": (lambda key: (key.op, key.shape) if key.op and key.shape else None, _same_name),
    "kernels": (
        lambda key: (key.op, key.shape, key.kind) if key.op and key.shape else None,
        lambda key: (key.op, key.name) if key.op else None,
        lambda key: key.op or None,
    ),
    "ops": (_same_name,),
    "modules": (),
    "collectives": (_same_name,),
}


def rows_of_table(table: BreakdownTable, scale: float) -> dict[RowKey, RowTime]:
    """The rows of a table; `scale` is what recorded time is multiplied by to be that of the steps."""
    steps = max(table.time_ns.shape[1], 1)
    scale *= table.scale
    counts = [count / steps if count else None for count in table.counts.tolist()]
    return {
        key: RowTime(scale * row, count, scale)
        for key, row, count in zip(table.keys, table.time_ns, counts, strict=True)
    }


def match_rows(table: str, before: SideRows, after: SideRows) -> ChangeTable:
    """The rows of a table before and after, those that explain most first; its name says what is the same work."""
    old, new = _join_recordings(before.recordings), _join_recordings(after.recordings)
    matches = _match_keys(old, new, _GROUPINGS[table])
    old_ns = _whole_numbers([_sum_of(old, match.before) for match in matches], before.mean_ns, before)
    new_ns = _whole_numbers([_sum_of(new, match.after) for match in matches], after.mean_ns, after)
    difference_ns = after.mean_ns - before.mean_ns
    order = sorted(range(len(matches)), key=lambda i: (-abs(new_ns[i] - old_ns[i]), matches[i].before, i))[:MAX_ROWS]
    rows = tuple(_describe_change(matches[i], old, new, old_ns[i], new_ns[i]) for i in order)
    explained_ns = sum(row.difference_ns for row in rows)
    return ChangeTable(difference_ns, difference_ns - explained_ns, is_known=True, rows=rows)


def _join_recordings(recordings: Sequence[Mapping[RowKey, RowTime]]) -> dict[RowKey, _Row]:
    """Each row over the recordings of a side; one that a recording lacks has no time in it."""
    keys = dict.fromkeys(key for rows in recordings for key in rows)
    lengths = [max((len(row.step_ns) for row in rows.values()), default=1) for rows in recordings]
    joined = {}
    for key in keys:
        parts = [
            rows[key].step_ns if key in rows else np.zeros(length)
            for rows, length in zip(recordings, lengths, strict=True)
        ]
        counts = [rows[key].count or 0.0 for rows in recordings if key in rows]
        count = sum(counts) / len(recordings) or None
        scales = [rows[key].scale if key in rows else 1.0 for rows in recordings]
        recorded = np.concatenate([part / scale for part, scale in zip(parts, scales, strict=True)])
        joined[key] = _Row(float(np.mean([part.mean() for part in parts])), recorded, count)
    return joined


def _match_keys(old: Mapping[RowKey, _Row], new: Mapping[RowKey, _Row], groupings: Iterable[_Grouping]) -> list[_Match]:
    """Rows with the same key first, then those that only one side has by what they do, then each by itself."""
    matches = [_Match([key], [key]) for key in old if key in new]
    gone, come = [key for key in old if key not in new], [key for key in new if key not in old]
    for group_of in groupings:
        groups: dict[Hashable, _Match] = defaultdict(_Match)
        for key in gone:
            groups[group_of(key)].before.append(key)
        for key in come:
            groups[group_of(key)].after.append(key)
        found = [match for group, match in groups.items() if group is not None and match.before and match.after]
        taken = {id(key) for match in found for key in (*match.before, *match.after)}
        matches += found
        gone, come = [key for key in gone if id(key) not in taken], [key for key in come if id(key) not in taken]
    return [*matches, *(_Match([key], []) for key in gone), *(_Match([], [key]) for key in come)]


def _sum_of(rows: Mapping[RowKey, _Row], keys: Sequence[RowKey]) -> float:
    return sum(rows[key].mean_ns for key in keys)


def _whole_numbers(values_ns: Sequence[float], mean_ns: int, side: SideRows) -> list[int]:
    """The values in whole ns, each within 1 ns; those of a table that adds up to the mean step add up to it exactly."""
    until = np.rint(np.cumsum(values_ns)).astype(np.int64)
    if len(until) and abs(int(until[-1]) - mean_ns) <= len(side.recordings):
        until = np.where(until == until[-1], mean_ns, until)
    return [int(ns) for ns in np.diff(until, prepend=0)]


def _describe_change(
    match: _Match, old: Mapping[RowKey, _Row], new: Mapping[RowKey, _Row], old_ns: int, new_ns: int
) -> RowChange:
    first = (match.before or match.after)[0]
    is_same = match.before == match.after
    is_replaced = bool(match.before and match.after) and not is_same
    beyond: bool | None = None
    if match.before and match.after:
        beyond = _differ(_steps_of(old, match.before), _steps_of(new, match.after), new_ns - old_ns)
    status: Status = "came" if not match.before else "went" if not match.after else "same"
    if is_replaced:
        status = "replaced"
    elif is_same and old_ns != new_ns and beyond is not False:
        status = "faster" if new_ns < old_ns else "slower"
    names_before, names_after = _join_names(match.before), _join_names(match.after)
    return RowChange(
        name=names_before or names_after,
        new_name=names_after if is_replaced and names_after != names_before else None,
        op=first.op,
        shape=first.shape if len({key.shape for key in (*match.before, *match.after)}) == 1 else "",
        kind=first.kind,
        status=status,
        before_ns=old_ns,
        after_ns=new_ns,
        before_count=_count_of(old, match.before),
        after_count=_count_of(new, match.after),
        beyond_noise=beyond,
    )


def _join_names(keys: Sequence[RowKey]) -> str:
    return " + ".join(sorted({key.name for key in keys}))


def _steps_of(rows: Mapping[RowKey, _Row], keys: Sequence[RowKey]) -> FloatArray:
    steps: FloatArray = np.sum([rows[key].recorded_ns for key in keys], axis=0)
    return steps


def _count_of(rows: Mapping[RowKey, _Row], keys: Sequence[RowKey]) -> float | None:
    counts = [count for key in keys if (count := rows[key].calls) is not None]
    return round(sum(counts), 2) if counts else None


def _differ(before: FloatArray, after: FloatArray, difference_ns: int) -> bool | None:
    """Whether the times of a row differ beyond the noise, as those of a step; None for too few steps.

    As recorded: each side is scaled to its step without the profiler by a factor of its own, so that a row which did
    not change may look as if it had. It counts only where it did in the same direction as `difference_ns`.
    """
    interval = rank_interval(before.tolist(), after.tolist())
    if interval is None or not is_judgeable(before.tolist(), after.tolist()):
        return None
    margin_ns = BETWEEN_RECORDINGS * float(np.median(before))
    if difference_ns > 0:
        return interval.low_ns > margin_ns
    return difference_ns < 0 and interval.high_ns < -margin_ns
