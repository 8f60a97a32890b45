"""Who waits for whom at collectives, and who is to blame: the last to arrive, or whom that one had waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

# A rank that waited itself for so much of what it is late by passes the blame on.
_PASSED_ON = 0.5
_ASKED = 16


class _Waits(NamedTuple):
    """Ranks that waited, a row each: `table` and `whom` are indices into the tables, `step` the analysed step."""

    table: Int64Array
    whom: Int64Array
    step: Int64Array
    exposed_ns: Int64Array


def find_root_causes(matched: MatchedCollectives, counts: BoolArray) -> Int32Array:
    """For each collective the table (by index) that is to blame for the waiting there.

    In a group of ranks that work on one model together all come late when one of them is slow, because they waited for
    it at a collective of the group before: the blame goes to the one that they waited for in that step.
    """
    waits = _waits(matched, counts)
    blamed = matched.last_arriver.astype(np.int32).copy()
    if not len(waits.table):
        return blamed
    ranks, steps = len(matched.tables), int(waits.step.max()) + 1
    key = (waits.table * steps + waits.step) * ranks + waits.whom
    pairs, which = np.unique(key, return_inverse=True)
    waited = np.bincount(which, waits.exposed_ns)
    own = pairs // ranks  # of a rank in a step
    order = np.lexsort((waited, own))
    most = order[np.flatnonzero(np.diff(own[order], append=-1))]
    step = matched.step.astype(np.int64)
    asked = np.where((step >= 0) & (step < steps), matched.last_arriver * steps + step, -1)
    at = np.minimum(np.searchsorted(own[most], asked), len(most) - 1)
    late_by = matched.total_wait_ns / np.maximum(matched.rank_count - 1, 1)
    excused = counts & (own[most][at] == asked) & (waited[most][at] >= _PASSED_ON * late_by) & (late_by > 0)
    blamed[excused] = (pairs[most][at] % ranks)[excused]
    return blamed


def _waits(matched: MatchedCollectives, counts: BoolArray) -> _Waits:
    """Who waited with nothing else to do for the last to arrive, within steps."""
    parts = []
    for index, (table, offset, row) in enumerate(
        zip(matched.tables, matched.offset_ns, matched.collective_of_row, strict=True)
    ):
        rows = np.flatnonzero((row >= 0) & counts[row])
        met = row[rows]
        wait = np.minimum(matched.last_arrival_ns[met] - (table.start_ns[rows] + offset), table.exposed_ns[rows])
        keep = (wait > 0) & (matched.step[met] >= 0) & (matched.last_arriver[met] != index)
        met, wait = met[keep], wait[keep]
        parts.append((np.full(len(met), index), matched.last_arriver[met], matched.step[met], wait))
    columns = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return _Waits(*columns)


def arrival_slack_ns(matched: MatchedCollectives, counts: BoolArray) -> Int64Array:
    """For each table how much earlier than the last it came to some collectives, all together."""
    totals = np.zeros(len(matched.tables), np.int64)
    for index, (table, offset, row) in enumerate(
        zip(matched.tables, matched.offset_ns, matched.collective_of_row, strict=True)
    ):
        rows = np.flatnonzero((row >= 0) & counts[row])
        totals[index] = (matched.last_arrival_ns[row[rows]] - (table.start_ns[rows] + offset)).sum()
    return totals


def find_longest_waiter(matched: MatchedCollectives, counts: BoolArray, waiting: Callable[[int], Intervals]) -> int:
    """The table whose rank waits longest at some collectives by a measure that is costly: of several the first.

    Among thousands it is asked of those alone that came earliest.
    """
    likely = np.argsort(-arrival_slack_ns(matched, counts), kind="stable")[:_ASKED].tolist()
    return int(max(likely, key=lambda index: (iv.total(waiting(index)), -index)))


def exposed_wait_of(matched: MatchedCollectives, index: int, counts: BoolArray) -> Intervals:
    """When a rank had nothing to do because another had not arrived yet, on its own clock."""
    table, row = matched.tables[index], matched.collective_of_row[index]
    rows = np.flatnonzero((row >= 0) & counts[row])
    arrived = matched.last_arrival_ns[row[rows]] - matched.offset_ns[index]
    until = np.minimum(arrived, table.end_ns[rows])
    return iv.intersect(iv.union(table.start_ns[rows], until), table.exposed)
