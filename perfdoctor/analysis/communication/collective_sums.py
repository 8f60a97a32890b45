"""What many ranks did at each collective, as sums that merge in a tree: who came last, who came before, who waited.

A collective is given by its number, see `align_ranks`. The sums of some ranks take memory for their collectives, not
for their ranks. All of them are integers (times of phases are whole nanoseconds, too, and sums below 2^53), so that
every order and grouping of merges gives the same sums, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.pack_columns import AnyArray
from perfdoctor.analysis.communication.rank_clocks import RankClock
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int32Array, Int64Array

FAN_IN = 64
"""How many ranks, or sums of ranks, are merged at a time: memory is that of one batch and of the result."""
# Before any arrival.
_NEVER = np.iinfo(np.int64).min


@frozen_dataclass(eq=False)
class CollectiveSums:
    """What some ranks did at each of their collectives, sorted by number.

    Attributes:
        number: Of the collective.
        count: How many of the ranks took part.
        last_rank: The one that arrives last, of equal ones the first; an index into all ranks.
        last_ns: When it arrives, on the clock of the first rank.
        second_ns: When the second-latest one arrives; the lowest int64 where there is none.
        wait_ns: Sum over the ranks of the time from their arrival to the last one.
        end_ns: The latest end that one of them records.
        kind, step, in_window, has_group: What the last one records, see `MatchedCollectives`.
        last_before_ns: (n, PHASES + 1) what the last one did before it: `preceding_phase_ns`, `preceding_once_ns`.
        before_ns: The same, summed over the ranks.
    """

    number: Int64Array
    count: Int32Array
    last_rank: Int32Array
    last_ns: Int64Array
    second_ns: Int64Array
    wait_ns: Int64Array
    end_ns: Int64Array
    kind: Int8Array
    step: Int32Array
    in_window: BoolArray
    has_group: BoolArray
    last_before_ns: FloatArray
    before_ns: FloatArray


def sum_ranks(
    tables: Sequence[CollectiveTable], clocks: Sequence[RankClock], numbers: Sequence[Int64Array]
) -> CollectiveSums:
    """The sums of at least one rank, in a tree of `FAN_IN` at a time.

    `numbers` holds for each table the number of the collective of each row, none of them twice.
    """
    sums = []
    for first in range(0, len(tables), FAN_IN):
        alike: dict[int, list[int]] = {}
        for index in range(first, min(first + FAN_IN, len(tables))):
            alike.setdefault(id(numbers[index]), []).append(index)
        sums.append(merge_sums([_sum_alike(some, tables, clocks, numbers[some[0]]) for some in alike.values()]))
    while len(sums) > 1:
        sums = [merge_sums(sums[first : first + FAN_IN]) for first in range(0, len(sums), FAN_IN)]
    return sums[0]


def _sum_alike(
    indices: Sequence[int], tables: Sequence[CollectiveTable], clocks: Sequence[RankClock], number: Int64Array
) -> CollectiveSums:
    """The sums of ranks whose rows are of the same collectives, which those of one program mostly are."""
    starts_ns = np.stack([clocks[index].to_common(tables[index].start_ns) for index in indices])
    end_ns = clocks[indices[0]].to_common(tables[indices[0]].end_ns)
    before_ns = np.zeros((len(number), tables[indices[0]].preceding_phase_ns.shape[1] + 1))
    last = starts_ns.argmax(axis=0)
    kind, step = np.empty(len(number), np.int8), np.empty(len(number), np.int32)
    in_window, has_group = np.empty(len(number), bool), np.empty(len(number), bool)
    last_before_ns = np.empty_like(before_ns)
    for place, index in enumerate(indices):
        table = tables[index]
        phase_ns, once_ns = table.preceding_phase_ns, table.preceding_once_ns
        before_ns[:, :-1] += phase_ns
        before_ns[:, -1] += once_ns
        if place:
            np.maximum(end_ns, clocks[index].to_common(table.end_ns), out=end_ns)
        rows = np.flatnonzero(last == place)
        if len(rows):
            kind[rows], step[rows] = table.kind[rows], table.step[rows]
            in_window[rows], has_group[rows] = table.in_window[rows], table.group[rows] >= 0
            last_before_ns[rows, :-1], last_before_ns[rows, -1] = phase_ns[rows], once_ns[rows]
    columns = np.arange(len(number))
    last_ns = starts_ns[last, columns]
    wait_ns = (last_ns - starts_ns).sum(axis=0)
    starts_ns[last, columns] = _NEVER
    order = np.argsort(number, kind="stable")
    sums = CollectiveSums(
        number=number,
        count=np.full(len(number), len(indices), np.int32),
        last_rank=np.asarray(indices, np.int32)[last],
        last_ns=last_ns,
        second_ns=starts_ns.max(axis=0),
        wait_ns=wait_ns,
        end_ns=end_ns,
        kind=kind,
        step=step,
        in_window=in_window,
        has_group=has_group,
        last_before_ns=last_before_ns,
        before_ns=before_ns,
    )
    return take_sums(sums, order)


def take_sums(sums: CollectiveSums, rows: Int64Array) -> CollectiveSums:
    """Some rows of sums."""
    return CollectiveSums(*(getattr(sums, column.name)[rows] for column in fields(sums)))


def merge_sums(parts: Sequence[CollectiveSums]) -> CollectiveSums:
    """The sums of the ranks of several parts, which have no rank in common: associative and commutative.

    The rows of all parts are sorted by collective, then by their last arrival, for example::

        row      0  1  2  3
        number   0  0  0  1
        last_ns  5  7  9  8      of collective 0 row 2 has the last arrival, and the second-latest is its own or row 1's
    """
    if len(parts) == 1:
        return parts[0]
    number, last_rank, last_ns = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("number", "last_rank", "last_ns")
    )
    order = np.lexsort((-last_rank, last_ns, number))
    number, last_ns = number[order], last_ns[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    rows_of = np.diff(first, append=len(number))
    last = first + rows_of - 1

    def gather(name: str) -> AnyArray:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    before_last_ns = np.where(rows_of > 1, last_ns[np.maximum(last - 1, 0)], _NEVER)
    count = gather("count")
    wait_ns = gather("wait_ns") + count * (np.repeat(last_ns[last], rows_of) - last_ns)
    of_last = {name: gather(name)[last] for name in ("last_rank", "kind", "step", "in_window", "has_group")}
    return CollectiveSums(
        number=number[last],
        count=np.add.reduceat(count, first),
        last_ns=last_ns[last],
        second_ns=np.maximum(before_last_ns, np.maximum.reduceat(gather("second_ns"), first)),
        wait_ns=np.add.reduceat(wait_ns, first),
        end_ns=np.maximum.reduceat(gather("end_ns"), first),
        last_before_ns=gather("last_before_ns")[last],
        before_ns=np.add.reduceat(gather("before_ns"), first, axis=0),
        **of_last,
    )
