"""The collectives of many ranks matched to each other, on one clock: which rank arrived when.

Ranks are aligned in the order given (`align_ranks`), so the result does not depend on which process read which trace;
what they did at each collective is summed in a tree (`collective_sums`). So thousands of ranks take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoctor.analysis.communication.align_ranks import AlignedRanks
from perfdoctor.analysis.communication.collective_sums import sum_ranks, take_sums
from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.rank_clocks import RankClock
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int32Array, Int64Array


@frozen_dataclass(eq=False, weakref_slot=True)
class MatchedCollectives:
    """Collectives that several ranks took part in, sorted by end, on the clock of the first rank.

    Attributes:
        tables: The ranks that could be aligned, in the order given.
        clocks: For each of them its clock.
        unmatched: Ranks that have collectives, but share none with those.
        collective_of_row: For each of `tables` the collective of each of its rows; -1 for rows without partners.
        kind: Indices into COLLECTIVE_KINDS.
        end_ns: When it was over: the latest end that a rank records.
        rank_count: How many ranks took part.
        step: Index of the analysed step of the last arriver; -1 outside of all.
        in_window: Whether the last arriver arrived in its analysed window.
        has_group: Whether its process group is recorded.
        last_arriver: The rank that arrives last, as an index into `tables`.
        last_arrival_ns: When the last arriver arrives.
        second_arrival_ns: When the second-latest rank arrives.
        total_wait_ns: Sum over ranks of the time from their arrival to the last one, even if they had other work.
        transfer_ns: From the last arrival to the end.
        last_phase_ns: (n, PHASES) what the last arriver did before it, see `CollectiveTable.preceding_phase_ns`.
        others_phase_ns: (n, PHASES) what the other ranks did before it, on average.
        last_once_ns: How long the last arriver idled before it for what happens once.
        others_once_ns: The same of the other ranks, on average.
    """

    tables: tuple[CollectiveTable, ...]
    clocks: tuple[RankClock, ...]
    unmatched: tuple[CollectiveTable, ...]
    collective_of_row: tuple[Int64Array, ...]
    kind: Int8Array
    end_ns: Int64Array
    rank_count: Int32Array
    step: Int32Array
    in_window: BoolArray
    has_group: BoolArray
    last_arriver: Int32Array
    last_arrival_ns: Int64Array
    second_arrival_ns: Int64Array
    total_wait_ns: Int64Array
    transfer_ns: Int64Array
    last_phase_ns: FloatArray
    others_phase_ns: FloatArray
    last_once_ns: FloatArray
    others_once_ns: FloatArray

    def __len__(self) -> int:
        return len(self.end_ns)

    @property
    def offset_ns(self) -> Int64Array:
        """For each of `tables` what to add to its times; where its clock drifts, in the middle of its recording."""
        return np.array([clock.offset_ns for clock in self.clocks], np.int64)


def match_collectives(tables: Sequence[CollectiveTable]) -> MatchedCollectives | None:
    """The collectives of all ranks matched; None when no two ranks have any in common."""
    remaining = [table for table in tables if len(table)]
    largest: AlignedRanks | None = None
    while remaining and (largest is None or len(remaining) > len(largest.tables)):
        aligned = AlignedRanks(remaining)
        remaining = aligned.unmatched
        if largest is None or len(aligned.tables) > len(largest.tables):
            largest = aligned
    if largest is None or len(largest.tables) < 2:
        return None
    matched_ids = {id(table) for table in largest.tables}
    matched = _match_aligned(largest, tuple(t for t in tables if len(t) and id(t) not in matched_ids))
    return matched if len(matched) else None


def _match_aligned(aligned: AlignedRanks, unmatched: tuple[CollectiveTable, ...]) -> MatchedCollectives:
    """The collectives that at least two ranks took part in."""
    every = sum_ranks(aligned.tables, aligned.clocks, aligned.numbers)
    shared = np.flatnonzero(every.count > 1)
    sums = take_sums(every, shared[np.argsort(every.end_ns[shared], kind="stable")])
    row_of_number = np.full(aligned.count, NONE, np.int64)
    row_of_number[sums.number] = np.arange(len(sums.number))
    # Ranks with the same rows share one array.
    row_of = {id(number): row_of_number[number] for number in {id(each): each for each in aligned.numbers}.values()}
    others_ns = (sums.before_ns - sums.last_before_ns) / (sums.count - 1)[:, None]
    return MatchedCollectives(
        tables=tuple(aligned.tables),
        clocks=tuple(aligned.clocks),
        unmatched=unmatched,
        collective_of_row=tuple(row_of[id(number)] for number in aligned.numbers),
        kind=sums.kind,
        end_ns=sums.end_ns,
        rank_count=sums.count,
        step=sums.step,
        in_window=sums.in_window,
        has_group=sums.has_group,
        last_arriver=sums.last_rank,
        last_arrival_ns=sums.last_ns,
        second_arrival_ns=sums.second_ns,
        total_wait_ns=sums.wait_ns,
        transfer_ns=np.maximum(sums.end_ns - sums.last_ns, 0),
        last_phase_ns=sums.last_before_ns[:, :-1],
        others_phase_ns=others_ns[:, :-1],
        last_once_ns=sums.last_before_ns[:, -1],
        others_once_ns=others_ns[:, -1],
    )
