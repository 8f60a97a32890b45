"""How much of a rank's lateness it has already when it begins its pass through the model.

A rank that begins late and then takes as long as the others arrives as late as it began; one that has more work, or is
slower, begins with the others and falls behind inside the step::

    rank 0    | pass          all_reduce  waits           |
    rank 1    |  logs       | pass          all_reduce    |      entered the step late: the start explains it all
    rank 2    | pass, slower                all_reduce    |      began with rank 0
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from perfdoctor.rules import BoolArray, Int32Array, Int64Array, LateRank, MatchedCollectives

# From this share of the lateness on the start explains it: what is left is the scatter of equal work.
START_SHARE = 0.7
# The passes of which the starts are known have to hold so much of all lateness.
_MIN_KNOWN_SHARE = 0.5
_PASS_BEGINS: WeakKeyDictionary[MatchedCollectives, tuple[Int64Array, Int64Array, Int32Array]] = WeakKeyDictionary()


class StartLateness(NamedTuple):
    """The lateness at the first collectives of passes, and the part that the start of the pass explains, in ns.

    Attributes:
        late_ns: How much later than the second-latest rank the last one arrives, summed.
        by_start_ns: The part of it by which it began its pass later than the others.
        passes: How many passes these are.
    """

    late_ns: int
    by_start_ns: int
    passes: int


def starts_late(late: LateRank) -> bool:
    """Whether the late rank enters its passes late; False where that is not known of most of its lateness."""
    start = lateness_by_start(late.matched, late.arrives_last)
    known = start.late_ns >= _MIN_KNOWN_SHARE * late.total_lateness_ns
    return start.late_ns > 0 and known and start.by_start_ns >= START_SHARE * start.late_ns


def start_apart(late: LateRank) -> bool:
    """Whether ranks that take turns at coming last do so because they enter their passes apart."""
    matched = late.matched
    start = lateness_by_start(matched, late.synchronizing)
    every_ns = int((matched.last_arrival_ns - matched.second_arrival_ns)[late.synchronizing].sum())
    return start.late_ns >= _MIN_KNOWN_SHARE * every_ns > 0 and start.by_start_ns >= START_SHARE * start.late_ns


def lateness_by_start(matched: MatchedCollectives, counts: BoolArray) -> StartLateness:
    """The lateness at those of the collectives that count which begin a pass on all their ranks, by its start."""
    of_last, of_others, known = _find_pass_begins(matched)
    rows = np.flatnonzero(counts & (known == matched.rank_count))
    late_ns = (matched.last_arrival_ns - matched.second_arrival_ns)[rows]
    by_start_ns = np.clip(of_last[rows] - of_others[rows], 0, late_ns)
    return StartLateness(int(late_ns.sum()), int(by_start_ns.sum()), len(rows))


def _find_pass_begins(matched: MatchedCollectives) -> tuple[Int64Array, Int64Array, Int32Array]:
    """When the last arriver began its pass before each collective, when the last of the others, and of how many known.

    It takes a look at all rows of all ranks, so it is kept as long as the matched collectives are.
    """
    kept = _PASS_BEGINS.get(matched)
    if kept is not None:
        return kept
    of_last = np.full(len(matched), np.iinfo(np.int64).min)
    of_others = np.full(len(matched), np.iinfo(np.int64).min)
    known = np.zeros(len(matched), np.int32)
    for index, (table, clock, collective_of_row) in enumerate(
        zip(matched.tables, matched.clocks, matched.collective_of_row, strict=True)
    ):
        since_ns = table.since_pass_start_ns
        if len(since_ns) != len(table):
            continue
        rows = np.flatnonzero((collective_of_row >= 0) & (since_ns >= 0))
        # No collective comes twice among the rows of a rank.
        collective = collective_of_row[rows]
        begin_ns = clock.to_common(table.start_ns[rows] - since_ns[rows])
        is_last = matched.last_arriver[collective] == index
        of_last[collective[is_last]] = begin_ns[is_last]
        others = collective[~is_last]
        of_others[others] = np.maximum(of_others[others], begin_ns[~is_last])
        known[collective] += 1
    _PASS_BEGINS[matched] = of_last, of_others, known
    return of_last, of_others, known
