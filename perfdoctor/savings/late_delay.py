"""How much longer the others take for a late rank: the way they would have gone if it had come when the next one did.

Waits are not that. Ranks that wait long for the last one may next wait for the last but one, and a rank that is late
at one bucket of gradients is late at all that follow, by the same time, of which only the last wait counts::

    rank 0   | backward  all_reduce     waits |      without rank 3 it waits for rank 2: rank 3 costs as much
    rank 2   | backward          all_reduce w |      as it comes after rank 2, and not what rank 0 waits
    rank 3   | backward                 all_reduce

So the collectives of the window are replayed on all ranks but the late ones: each rank comes to a collective as long
after the last one that blocked it as it did, and goes on when its own work is done and all others have come.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.communication.rank_waits import MAX_CANDIDATES, arrival_slack_ns
from perfdoctor.analysis.communication.stragglers import LateRank
from perfdoctor.savings.longest_path import SLOTS, longest_path
from perfdoctor.savings.replay_graph import NEVER
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array


class _Arrivals(NamedTuple):
    """When a rank came to collectives, in their order, and what it did then; all times on the clock of the first rank.

    Attributes:
        collective: The collectives, rows of `MatchedCollectives`.
        arrival_ns, end_ns: When it came, and when the collective was over for it.
        idle_since_ns: Since when it had nothing else to do when the collective ended.
        is_blocked: Whether it had nothing else to do then.
    """

    collective: Int64Array
    arrival_ns: Int64Array
    end_ns: Int64Array
    idle_since_ns: Int64Array
    is_blocked: BoolArray


def delay_by_late_rank_ns(late: LateRank) -> int:
    """How much sooner the rank that waits longest would be through if the late ones came when the latest other did.

    In ns, over the window. Lateness that does not count (`LateRank.causes_wait`) stays. Of many ranks those are looked
    at that come last, after the late ones.
    """
    slack_ns = arrival_slack_ns(late.matched, late.synchronizing)
    others = [index for index in np.argsort(slack_ns, kind="stable").tolist() if index not in late.co_late]
    ranks = [_arrivals_of(late, index) for index in dict.fromkeys((late.victim, *others[:MAX_CANDIDATES]))]
    sooner_ns = _replay(late, ranks)
    return max(int(sooner_ns[-1]), 0) if len(sooner_ns) else 0


def _arrivals_of(late: LateRank, index: int) -> _Arrivals:
    """What a rank, given by its index, did at the collectives of the window."""
    matched, table, clock = late.matched, late.matched.tables[index], late.matched.clocks[index]
    collective = matched.collective_of_row[index]
    rows = np.flatnonzero((collective >= 0) & matched.in_window[collective])
    rows = rows[np.argsort(collective[rows], kind="stable")]
    end_ns, exposed = table.end_ns[rows], table.exposed
    at = np.searchsorted(exposed[:, 0], end_ns) - 1
    since_ns, until_ns = np.append(exposed, [[0, 0]], axis=0)[at].T
    is_blocked = (at >= 0) & (until_ns >= end_ns)
    arrival_ns, end_ns, since_ns = (clock.to_common(each) for each in (table.start_ns[rows], end_ns, since_ns))
    return _Arrivals(collective[rows], arrival_ns, end_ns, since_ns, is_blocked)


def _replay(late: LateRank, ranks: list[_Arrivals]) -> Int64Array:
    """How much sooner the first of some ranks would be through each collective that blocked it, without the lateness.

    Each row of a rank has two nodes: its arrival, which follows that of the rank before it, so that the last arrival of
    a collective is that of the latest; and its end.
    """
    matched = late.matched
    columns = (np.concatenate(column) for column in zip(*ranks, strict=True))
    collective, arrival_ns, end_ns, since_ns, is_blocked = columns
    order = np.argsort(collective, kind="stable")
    count = np.bincount(collective, minlength=len(matched))
    first = np.cumsum(count) - count
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    arrival = first[collective] + place  # the nodes of a collective: its arrivals, then its ends
    end = arrival + count[collective]
    latest_ns = np.full(len(matched), NEVER)
    np.maximum.at(latest_ns, collective, arrival_ns)
    removed = late.arrives_last & late.causes_wait
    last_ns = np.where(removed, matched.last_arrival_ns, latest_ns)[collective]
    # Who was through before the last one came did not wait for it: a rank that broadcasts, or clocks not quite even.
    is_blocked &= end_ns >= last_ns
    predecessor, lag_ns = np.full((2 * len(order), SLOTS), NONE, np.int32), np.zeros((2 * len(order), SLOTS), np.int64)
    earliest_ns = np.full(2 * len(order), NEVER)
    follows = place > first[collective]
    predecessor[arrival[follows], 0] = arrival[follows] - 1
    predecessor[end, 0] = (first + first + count - 1)[collective]
    lag_ns[end, 0] = end_ns - last_ns
    begin = 0
    for rank in ranks:
        rows = np.arange(begin, begin + len(rank.collective))
        begin += len(rows)
        for node, at_ns in ((arrival, arrival_ns), (end, since_ns)):
            before = _find_last_block(at_ns[rows], end_ns[rows], is_blocked[rows])
            known = before >= 0
            predecessor[node[rows[known]], 1] = end[rows[before[known]]]
            lag_ns[node[rows[known]], 1] = at_ns[rows[known]] - end_ns[rows[before[known]]]
            earliest_ns[node[rows[~known]]] = at_ns[rows[~known]]
    through = np.flatnonzero(is_blocked[: len(ranks[0].collective)])
    sooner_ns: Int64Array = end_ns[through] - longest_path(predecessor, lag_ns, earliest_ns)[end[through]]
    return sooner_ns


def _find_last_block(at_ns: Int64Array, end_ns: Int64Array, is_blocked: BoolArray) -> Int64Array:
    """For each row of a rank the last row before it that blocked the rank until an instant, or NONE."""
    blocks = np.flatnonzero(is_blocked)
    ended = np.searchsorted(np.maximum.accumulate(end_ns[blocks]), at_ns, side="right")
    before = np.minimum(ended, np.searchsorted(blocks, np.arange(len(at_ns))))
    found: Int64Array = np.append(blocks, NONE)[before - 1].astype(np.int64)
    return found
