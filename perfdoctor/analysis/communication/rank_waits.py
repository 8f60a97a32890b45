"""How long ranks wait for each other at collectives, and which rank causes it: the last arriver, or one before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals

# A last arriver that waited itself for this share of its lateness does not cause the waiting.
_MIN_WAITED_SHARE = 0.5
MAX_CANDIDATES = 16
"""Number of ranks that are looked at exactly: those that arrive earliest, or latest."""


@frozen_dataclass(eq=False)
class _Waits:
    """Waits of a rank for a last arriver at one collective with nothing else to do.

    Attributes:
        waiter: The rank that waits, as an index into the tables.
        awaited: The rank that arrives last.
        step: Index of the analysed step.
        exposed_ns: How long it waits.
    """

    waiter: Int64Array
    awaited: Int64Array
    step: Int64Array
    exposed_ns: Int64Array

    def __len__(self) -> int:
        return len(self.waiter)


def find_root_causes(matched: MatchedCollectives, counts: BoolArray) -> Int32Array:
    """For each collective the rank that causes the waiting there, as an index into `matched.tables`.

    That is the last arriver, unless it waited itself before: when one rank of a tensor-parallel group is slow, all of
    the group arrive late at the collectives with other groups. Then it is the rank for which the last arriver waited
    longest in that step. `counts` selects the collectives at which waits count.
    """
    waits = _find_waits(matched, counts, distinct(matched.last_arriver[counts]).tolist())
    cause = matched.last_arriver.astype(np.int32).copy()
    if not len(waits):
        return cause
    ranks, steps = len(matched.tables), int(waits.step.max()) + 1
    # Sum the waits by waiter, step and awaited rank, each combination as one number.
    sums, which = np.unique((waits.waiter * steps + waits.step) * ranks + waits.awaited, return_inverse=True)
    waited_ns = np.bincount(which, waits.exposed_ns)
    waiter_step = sums // ranks
    order = np.lexsort((waited_ns, waiter_step))
    longest = order[np.flatnonzero(np.diff(waiter_step[order], append=-1))]  # one for each waiter and step
    # Look up the longest wait of each last arriver in the step of the collective.
    step = matched.step.astype(np.int64)
    wanted = np.where((step >= 0) & (step < steps), matched.last_arriver * steps + step, -1)
    at = np.minimum(np.searchsorted(waiter_step[longest], wanted), len(longest) - 1)
    lateness_ns = matched.total_wait_ns / np.maximum(matched.rank_count - 1, 1)
    waited_enough = (waited_ns[longest][at] >= _MIN_WAITED_SHARE * lateness_ns) & (lateness_ns > 0)
    replaced = counts & (waiter_step[longest][at] == wanted) & waited_enough
    cause[replaced] = (sums[longest][at] % ranks)[replaced]
    return cause


def _find_waits(matched: MatchedCollectives, counts: BoolArray, waiters: Iterable[int]) -> _Waits:
    """The waits of some ranks, given by their indices, at collectives that count, within steps."""
    parts = []
    for index in waiters:
        table, collective_of_row = matched.tables[index], matched.collective_of_row[index]
        rows = np.flatnonzero((collective_of_row >= 0) & counts[collective_of_row])
        at = collective_of_row[rows]
        arrival_ns = matched.clocks[index].to_common(table.start_ns[rows])
        wait = np.minimum(matched.last_arrival_ns[at] - arrival_ns, table.exposed_ns[rows])
        waits = (wait > 0) & (matched.step[at] >= 0) & (matched.last_arriver[at] != index)
        at, wait = at[waits], wait[waits]
        parts.append((np.full(len(at), index), matched.last_arriver[at], matched.step[at], wait))
    columns = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return _Waits(*columns)


def iterate_counted_rows(
    matched: MatchedCollectives, counts: BoolArray
) -> Iterator[tuple[int, slice | Int64Array, Int64Array]]:
    """For each rank its index, its rows at collectives that count, and these collectives.

    Ranks with the same rows share the arrays, so that they are made once.
    """
    known: dict[int, tuple[slice | Int64Array, Int64Array]] = {}
    for index, collective_of_row in enumerate(matched.collective_of_row):
        if id(collective_of_row) not in known:
            rows = np.flatnonzero((collective_of_row >= 0) & counts[collective_of_row])
            is_all = len(rows) == len(collective_of_row)
            known[id(collective_of_row)] = slice(None) if is_all else rows, collective_of_row[rows]
        yield index, *known[id(collective_of_row)]


def arrival_slack_ns(matched: MatchedCollectives, counts: BoolArray) -> Int64Array:
    """For each rank how much earlier than the last it arrives, summed over the collectives that count."""
    totals = np.zeros(len(matched.tables), np.int64)
    for index, rows, at in iterate_counted_rows(matched, counts):
        arrival_ns = matched.clocks[index].to_common(matched.tables[index].start_ns[rows])
        totals[index] = (matched.last_arrival_ns[at] - arrival_ns).sum()
    return totals


def find_longest_waiter(matched: MatchedCollectives, counts: BoolArray, waiting: Callable[[int], Intervals]) -> int:
    """Index of the rank that waits longest; of equal ones the first.

    `counts` selects the collectives. `waiting` returns the waits of a rank by its index; it is slow, so it is called
    only for the ranks that arrive earliest.
    """
    candidates = np.argsort(-arrival_slack_ns(matched, counts), kind="stable")[:MAX_CANDIDATES].tolist()
    return int(max(candidates, key=lambda index: (iv.total(waiting(index)), -index)))


def exposed_wait_of(matched: MatchedCollectives, index: int, counts: BoolArray) -> Intervals:
    """When a rank had nothing to do because another had not arrived yet, on the rank's own clock."""
    table, collective_of_row = matched.tables[index], matched.collective_of_row[index]
    rows = np.flatnonzero((collective_of_row >= 0) & counts[collective_of_row])
    last_arrival = matched.clocks[index].to_own(matched.last_arrival_ns[collective_of_row[rows]])
    until = np.minimum(last_arrival, table.end_ns[rows])
    return iv.intersect(iv.union(table.start_ns[rows], until), table.exposed)
