"""The rank that the others wait for at collectives: how late it is, what delays it, and how long each rank waits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.analysis.communication.rank_waits import (
    arrival_slack_ns,
    exposed_wait_of,
    find_longest_waiter,
    find_root_causes,
    iterate_counted_rows,
)
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.analysis.timeline.recurrence import is_rare
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# Noise spreads the waiting evenly; a rank that causes at least half of it stands out from any number of others.
DOMINANT_SHARE = 0.5
# Of few ranks one causes half of it by chance: it must cause this multiple of an even share (of two: three quarters).
_MIN_TIMES_EVEN_SHARE = 1.5
# A rank for which the others wait in fewer of the steps than this is late now and then, not slow.
_PERSISTENT_SHARE = 0.5
# Of the lateness at a collective so much has to come from what happens once, or it is no one-off.
_ONE_OFF_SHARE = 0.5
# Where ranks wait for less of the window by what comes back, what happens once is all that there is to say.
_MIN_WAITING_SHARE = 0.01
# A trace without steps needs this many collectives to show, by when the waiting is, what recurs.
_MIN_REPEATS = 10
_NEARLY_ALL_WAITS = 0.9
# Ranks are late as well if they arrive ahead of the late one by at most this share of what the earliest rank does.
_CO_LATE_SHARE = 0.1


@frozen_dataclass(eq=False)
class LateRank:
    """The rank that causes the most waiting.

    Attributes:
        matched: The collectives of all ranks.
        index: Its index into `matched.tables`.
        co_late: The indices of this rank and of those that are as late, such as the ranks of a slow host, in order.
        synchronizing: For each collective whether it is in the window, and ranks wait for each other at it.
        arrives_last: For each collective whether it counts, see `find_late_rank`, and a co-late rank arrives last.
        causes_wait: The same for those whose waiting they cause, see `find_root_causes`.
        blame: The share of all waiting that they cause, 0 to 1.
        step_count: Number of steps with collectives that count; 0 where there are no steps.
        late_step_count: In how many of them the others wait for these ranks most.
        once: Whether they are late by what happens once in the trace, such as the first use of a module.
    """

    matched: MatchedCollectives
    index: int
    co_late: tuple[int, ...]
    synchronizing: BoolArray
    arrives_last: BoolArray
    causes_wait: BoolArray
    blame: float
    step_count: int
    late_step_count: int
    once: bool = False

    @property
    def table(self) -> CollectiveTable:
        """The late rank's collectives."""
        return self.matched.tables[self.index]

    @property
    def rank(self) -> int | None:
        """The late rank's number."""
        return self.table.rank

    @property
    def is_whole_host(self) -> bool:
        """Whether the co-late ranks are several, and exactly the ranks of one host."""
        tables = self.matched.tables
        of_host = tuple(i for i, table in enumerate(tables) if table.host is not None and table.host == self.table.host)
        return len(of_host) > 1 and of_host == self.co_late

    @property
    def collective_count(self) -> int:
        """How many collectives count."""
        return int(self.synchronizing.sum())

    @property
    def stands_out(self) -> bool:
        """Whether the co-late ranks cause more of the waiting than as many ranks may cause by chance."""
        even_share = len(self.co_late) / len(self.matched.tables)
        return self.blame >= max(DOMINANT_SHARE, _MIN_TIMES_EVEN_SHARE * even_share)

    @property
    def persists(self) -> bool:
        """Whether the rank is late in most steps."""
        return self.late_step_count >= _PERSISTENT_SHARE * self.step_count

    @property
    def lateness_ns(self) -> Int64Array:
        """For each collective that it arrives last at: its arrival minus the second-latest one, in ns."""
        matched = self.matched
        return np.asarray(
            matched.last_arrival_ns[self.arrives_last] - matched.second_arrival_ns[self.arrives_last], np.int64
        )

    @cached_property
    def victim(self) -> int:
        """Index of the rank that waits longest for the late rank with nothing else to do."""
        return find_longest_waiter(self.matched, self.causes_wait, self.wait_time)

    @cached_property
    def longest_waiter(self) -> int:
        """Index of the rank that waits longest for any other."""
        return find_longest_waiter(
            self.matched, self.synchronizing, lambda index: exposed_wait_of(self.matched, index, self.synchronizing)
        )

    @cached_property
    def _late_exposed(self) -> Intervals:
        """When the late rank had nothing to do but collectives, on the clock of the first rank."""
        return self.matched.clocks[self.index].to_common(self.table.exposed)

    @cached_property
    def _index_by_table(self) -> dict[int, int]:
        """By the id of a table its index; tables are compared by identity."""
        return {id(table): index for index, table in enumerate(self.matched.tables)}

    def wait_time(self, index: int) -> Intervals:
        """When a rank, given by its index, had nothing to do at a collective while the late rank worked.

        On the clock of the rank that waits. The wait may go on after the late rank's arrival, while that still computes
        beside the collective. The time in which the late rank has nothing else to do either is the collective itself.
        """
        if index in self.co_late:
            return iv.EMPTY
        table, collective_of_row = self.matched.tables[index], self.matched.collective_of_row[index]
        rows = np.flatnonzero((collective_of_row >= 0) & self.causes_wait[collective_of_row])
        exposed = iv.intersect(iv.union(table.start_ns[rows], table.end_ns[rows]), table.exposed)
        return iv.subtract(exposed, self.matched.clocks[index].to_own(self._late_exposed))

    def wait_time_of(self, table: CollectiveTable) -> Intervals:
        """`wait_time` of a rank given by its table; empty for a rank that could not be aligned."""
        index = self._index_by_table.get(id(table))
        return iv.EMPTY if index is None else self.wait_time(index)

    def any_wait_time_of(self, table: CollectiveTable) -> Intervals:
        """When a rank waited for the late rank or for any other, on the clock of the rank that waits."""
        index = self._index_by_table.get(id(table))
        if index is None:
            return iv.EMPTY
        for_late_rank = self.wait_time(index) if self.stands_out else iv.EMPTY
        return iv.union_of((for_late_rank, exposed_wait_of(self.matched, index, self.synchronizing)))

    def min_wait_ns_of(self, table: CollectiveTable) -> int:
        """A lower bound of the length of `any_wait_time_of`, which is slow where it is asked of thousands of ranks."""
        return self._bound_waits(table)[1]

    def min_own_wait_ns_of(self, table: CollectiveTable) -> int:
        """A lower bound of the length of `wait_time_of`."""
        return self._bound_waits(table)[0]

    def _bound_waits(self, table: CollectiveTable) -> tuple[int, int]:
        """Lower bounds of the lengths of `wait_time_of` and `any_wait_time_of`; 0 where its table does not tell."""
        index = self._index_by_table.get(id(table))
        if index is None or not table.has_all_exposed:
            return 0, 0
        if index not in self._known_bounds:
            self._known_bounds[index] = self._bound_waits_by_rows(index)
        return self._known_bounds[index]

    @cached_property
    def _known_bounds(self) -> dict[int, tuple[int, int]]:
        return {}

    @cached_property
    def _late_exposed_until(self) -> tuple[FloatArray, FloatArray]:
        """Instants of the first rank's clock, and how long the late rank had nothing to do but collectives until then.

        Between two of them the time grows linearly.
        """
        exposed = self._late_exposed
        until_ns = np.repeat(np.concatenate(([0], np.cumsum(exposed[:, 1] - exposed[:, 0]))), 2)[1:-1]
        return exposed.ravel().astype(np.float64), until_ns.astype(np.float64)

    def _bound_waits_by_rows(self, index: int) -> tuple[int, int]:
        """Lower bounds of the waits of a rank given by its index: for the late rank, and for any.

        Of the time in which it waits at a collective, at least as much is exposed as that is longer than the part of
        the collective that is not. Of the exposed time of one that the late rank delays it waits all but what is
        exposed on the late rank as well.
        """
        table, collective_of_row = self.matched.tables[index], self.matched.collective_of_row[index]
        start_ns, end_ns, clock = table.start_ns, table.end_ns, self.matched.clocks[index]
        until = np.minimum(clock.to_own(self.matched.last_arrival_ns[collective_of_row]), end_ns)
        hidden_ns = end_ns - start_ns - table.exposed_ns
        since = start_ns.copy()  # and not before the end of another one, so that no instant counts twice
        np.maximum(since[1:], np.maximum.accumulate(end_ns)[:-1], out=since[1:])
        counts = (collective_of_row >= 0) & self.synchronizing[collective_of_row]
        any_ns = np.where(counts, np.maximum(until - since - hidden_ns, 0), 0)
        if index in self.co_late or not len(self._late_exposed):
            return 0, int(any_ns.sum())
        begin, end = (np.interp(clock.to_common(each), *self._late_exposed_until) for each in (since, end_ns))
        delayed_ns = end_ns - since - hidden_ns - np.ceil(end - begin).astype(np.int64) - 1
        counts = (collective_of_row >= 0) & self.causes_wait[collective_of_row]
        own_ns = np.where(counts, np.maximum(delayed_ns, 0), 0)
        return int(own_ns.sum()), int((np.maximum(own_ns, any_ns) if self.stands_out else any_ns).sum())

    @property
    def total_lateness_ns(self) -> int:
        """How long the second-latest rank waits for it in all: what is saved if the late rank is as fast as that one.

        An instant at which it is late for several collectives counts once.
        """
        return iv.total(
            iv.union(self.matched.second_arrival_ns[self.arrives_last], self.matched.last_arrival_ns[self.arrives_last])
        )

    def find_excess_phase(self) -> tuple[str, int] | None:
        """The phase that takes the late rank most more time than the others, and the excess in ns; None if none does.

        Time before the same collectives is compared, not time at the same instant: a rank that was delayed in its
        loader computes when the others wait for it.
        """
        late = self.arrives_last & (self.matched.last_arrival_ns > self.matched.second_arrival_ns)
        excess_ns = (self.matched.last_phase_ns[late] - self.matched.others_phase_ns[late]).sum(axis=0)
        phase = int(excess_ns.argmax())
        return (PHASES[phase], round(float(excess_ns[phase]))) if excess_ns[phase] > 0 else None


def find_late_rank(matched: MatchedCollectives) -> LateRank | None:
    """The rank that makes the others wait most; None where no rank waits.

    Collectives to which the last rank comes late by what happens once do not count, unless the others have next to no
    waiting.
    """
    synchronizing = _match_synchronizing(matched)
    if not matched.total_wait_ns[synchronizing].sum():
        return None
    recurring = synchronizing & ~_match_one_offs(matched)
    late = _find_latest(matched, synchronizing, recurring) if _is_worth_a_look(matched, recurring) else None
    if late is None or late.once:
        has_one_offs = bool((synchronizing & ~recurring).any())
        every = _find_latest(matched, synchronizing, synchronizing)
        late = replace(every, once=every.once or has_one_offs)
    return late


def _find_latest(matched: MatchedCollectives, synchronizing: BoolArray, counts: BoolArray) -> LateRank:
    """The rank that causes most of the waiting at the collectives that count."""
    cause = find_root_causes(matched, counts)
    caused_ns = np.bincount(cause[counts], matched.total_wait_ns[counts], len(matched.tables))
    worst = int(caused_ns.argmax())
    co_late = _find_co_late(matched, counts & (cause == worst), worst)
    steps, is_late = _find_late_steps(matched, counts, cause, co_late)
    caused = counts & np.isin(cause, co_late)
    return LateRank(
        matched=matched,
        index=worst,
        co_late=co_late,
        synchronizing=synchronizing,
        arrives_last=counts & np.isin(matched.last_arriver, co_late),
        causes_wait=caused,
        blame=float(caused_ns[list(co_late)].sum() / caused_ns.sum()),
        step_count=len(steps),
        late_step_count=int(is_late.sum()),
        once=is_rare(np.flatnonzero(is_late), len(steps)) or _is_early_or_single(matched, caused),
    )


def _match_one_offs(matched: MatchedCollectives) -> BoolArray:
    """For each collective whether the last rank comes later than the second-latest mainly by what happens once."""
    lateness_ns = matched.last_arrival_ns - matched.second_arrival_ns
    excess_ns = matched.last_once_ns - matched.others_once_ns
    return np.asarray((lateness_ns > 0) & (excess_ns >= _ONE_OFF_SHARE * lateness_ns), bool)


def _is_worth_a_look(matched: MatchedCollectives, counts: BoolArray) -> bool:
    """Whether a rank waits so long at some collectives, in the mean, that a report would say it."""
    window_ns = max(table.window_ns for table in matched.tables)
    waiting_ranks = max(len(matched.tables) - 1, 1)
    return bool(matched.total_wait_ns[counts].sum() > _MIN_WAITING_SHARE * window_ns * waiting_ranks)


def _is_early_or_single(matched: MatchedCollectives, caused: BoolArray) -> bool:
    """Whether a trace without steps has the waiting at one collective, or only in the first half of them.

    `split_one_offs` asks the same of steps. Few collectives do not tell.
    """
    rows = np.flatnonzero(_match_synchronizing(matched))
    if len(rows) < _MIN_REPEATS or (matched.step[rows] >= 0).any():
        return False
    wait_ns = np.where(caused, matched.total_wait_ns, 0)[rows]
    return bool(max(wait_ns.max(), wait_ns[: len(rows) // 2].sum()) >= _NEARLY_ALL_WAITS * max(wait_ns.sum(), 1))


def _find_co_late(matched: MatchedCollectives, caused: BoolArray, worst: int) -> tuple[int, ...]:
    """The indices of the worst rank and of those that arrive nearly as late at the collectives that it delays.

    Only the worst one where these are more than half of all ranks.
    """
    slack_ns = arrival_slack_ns(matched, caused)
    count = np.array([len(at) for _, _, at in iterate_counted_rows(matched, caused)])
    mean_ns = slack_ns / np.maximum(count, 1)
    late = np.flatnonzero((count > 0) & (mean_ns <= _CO_LATE_SHARE * mean_ns.max()))
    return tuple(late.tolist()) if worst in late and 2 * len(late) <= len(slack_ns) else (worst,)


def lateness_of(matched: MatchedCollectives) -> Int64Array:
    """For each of `matched.tables` how much later than the second-latest it arrives, summed over what counts, in ns."""
    counts = _match_synchronizing(matched)
    late_ns = (matched.last_arrival_ns - matched.second_arrival_ns)[counts]
    return np.bincount(matched.last_arriver[counts], late_ns, len(matched.tables)).astype(np.int64)


def _match_synchronizing(matched: MatchedCollectives) -> BoolArray:
    """For each collective whether it counts: in the window, of all its ranks, and no send, where one side has to wait.

    Where the process group is not recorded, a collective with fewer ranks than others may lack some.
    """
    is_whole = matched.rank_count == matched.rank_count.max()
    is_send = matched.kind == COLLECTIVE_KINDS.index("send_recv")
    return np.asarray(matched.in_window & (matched.has_group | is_whole) & ~is_send, bool)


def _find_late_steps(
    matched: MatchedCollectives, counts: BoolArray, cause: Int32Array, co_late: tuple[int, ...]
) -> tuple[Int64Array, BoolArray]:
    """The steps with collectives that count, and for each whether the co-late ranks cause the most waiting in it."""
    rows = np.flatnonzero(counts & (matched.step >= 0))
    if not len(rows):
        return np.empty(0, np.int64), np.zeros(0, bool)
    steps, which = np.unique(matched.step[rows], return_inverse=True)
    # Column 0 is for the co-late ranks together, the others for one rank each.
    column = np.where(np.isin(cause[rows], co_late), 0, cause[rows] + 1)
    caused_ns = np.zeros((len(steps), len(matched.tables) + 1))
    np.add.at(caused_ns, (which, column), matched.total_wait_ns[rows])
    return steps.astype(np.int64), np.asarray((caused_ns.argmax(axis=1) == 0) & (caused_ns[:, 0] > 0), bool)
