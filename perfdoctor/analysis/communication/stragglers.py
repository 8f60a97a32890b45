"""The rank that the others wait for: who arrives last at the collectives, how late, why, and who waits how long."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives
from perfdoctor.analysis.communication.rank_waits import (
    arrival_slack_ns,
    exposed_wait_of,
    find_longest_waiter,
    find_root_causes,
)
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# Noise spreads the waiting evenly; a rank that causes at least half of it stands out from any number of others.
DOMINANT_SHARE = 0.5
# Of few ranks one causes half of it by chance: it must cause this many times its share. With two, three quarters.
_TIMES_ITS_SHARE = 1.5
# A rank that is the one to wait for in fewer of the steps than this is late now and then, not slow.
_PERSISTS = 0.5
# Ranks that come this near to the late one, of what the earliest are ahead of it, are late with it.
_WITH_IT = 0.1


@dataclass(frozen=True, eq=False)
class LateRank:
    """The rank that causes the most waiting.

    Attributes:
        matched: The collectives of all ranks.
        index: Which of `matched.tables` it is.
        co_late: It and those that are as late as it is, such as the ranks of a slow host, in order.
        synchronizing: Which collectives count: those in the window at which ranks wait for each other.
        arrives_last: At which of these it is the last to arrive.
        causes_wait: At which of these it is to blame, if only because the last to arrive had waited for it before.
        blame: Its share of all waiting, 0 to 1.
        step_count: Steps with collectives that count; 0 where there are no steps.
        late_step_count: Those of them in which the others waited for this rank most.
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

    @property
    def table(self) -> CollectiveTable:
        """The late rank's own collectives."""
        return self.matched.tables[self.index]

    @property
    def rank(self) -> int | None:
        """Its number."""
        return self.table.rank

    @property
    def is_whole_host(self) -> bool:
        """Whether a host is late as a whole: several ranks, and those of that host alone."""
        tables = self.matched.tables
        of_host = tuple(i for i, table in enumerate(tables) if table.host is not None and table.host == self.table.host)
        return len(of_host) > 1 and of_host == self.co_late

    @property
    def collective_count(self) -> int:
        """How many collectives count."""
        return int(self.synchronizing.sum())

    @property
    def stands_out(self) -> bool:
        """Whether it, with those late with it, causes more of the waiting than chance gives to so many ranks."""
        return self.blame >= max(DOMINANT_SHARE, _TIMES_ITS_SHARE * len(self.co_late) / len(self.matched.tables))

    @property
    def persists(self) -> bool:
        """Whether it is late in step after step."""
        return self.late_step_count >= _PERSISTS * self.step_count

    @property
    def lateness_ns(self) -> Int64Array:
        """Its arrival minus the second-latest, for each collective that it is last at."""
        matched = self.matched
        return np.asarray(
            matched.last_arrival_ns[self.arrives_last] - matched.second_arrival_ns[self.arrives_last], np.int64
        )

    @cached_property
    def victim(self) -> int:
        """Index of the rank that waits for it longest with nothing else to do."""
        return find_longest_waiter(self.matched, self.causes_wait, self.wait_time)

    @cached_property
    def longest_waiter(self) -> int:
        """Index of the rank that waits longest for any other."""
        return find_longest_waiter(
            self.matched, self.synchronizing, lambda index: exposed_wait_of(self.matched, index, self.synchronizing)
        )

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(table): index for index, table in enumerate(self.matched.tables)}

    def wait_time(self, index: int) -> Intervals:
        """When a rank had nothing to do at a collective while the late rank still worked, on the first one's clock.

        Not only until the late rank arrives: what it then still computes beside the collective the others have done.
        What the late rank waits for, too, is the collective itself.
        """
        if index in self.co_late:
            return iv.EMPTY
        table, row = self.matched.tables[index], self.matched.collective_of_row[index]
        rows = np.flatnonzero((row >= 0) & self.causes_wait[row])
        there = iv.intersect(iv.union(table.start_ns[rows], table.end_ns[rows]), table.exposed)
        shift = self.matched.offset_ns[self.index] - self.matched.offset_ns[index]
        return iv.subtract(there, self.table.exposed + shift)

    def wait_time_of(self, table: CollectiveTable) -> Intervals:
        """The same of a rank given by its table; nothing for one that could not be compared."""
        index = self._places.get(id(table))
        return iv.EMPTY if index is None else self.wait_time(index)

    def any_wait_time_of(self, table: CollectiveTable) -> Intervals:
        """When a rank waited for this rank or for any other, on its own clock; see `waiting`."""
        index = self._places.get(id(table))
        if index is None:
            return iv.EMPTY
        named = self.wait_time(index) if self.stands_out else iv.EMPTY
        return iv.union_of((named, exposed_wait_of(self.matched, index, self.synchronizing)))

    @property
    def total_lateness_ns(self) -> int:
        """How long the second-latest waited for it, all together: what is saved if it is as fast as that one.

        Of collectives that run beside each other an instant counts once.
        """
        return iv.total(
            iv.union(self.matched.second_arrival_ns[self.arrives_last], self.matched.last_arrival_ns[self.arrives_last])
        )

    def find_excess_phase(self) -> tuple[str, int] | None:
        """What it did more of than the others before it arrived late: the phase that grew most, and by how much.

        Compared with the others at the same collectives, not at the instant: a rank that was held up in its loader is
        busy computing when the others wait for it.
        """
        late = self.arrives_last & (self.matched.last_arrival_ns > self.matched.second_arrival_ns)
        more = (self.matched.last_phase_ns[late] - self.matched.others_phase_ns[late]).sum(axis=0)
        most = int(more.argmax())
        return (PHASES[most], round(float(more[most]))) if more[most] > 0 else None


def find_late_rank(matched: MatchedCollectives) -> LateRank | None:
    """The rank that makes the others wait most; None where nobody waits."""
    counts = _meetings(matched)
    blamed = find_root_causes(matched, counts)
    blame = np.bincount(blamed[counts], matched.total_wait_ns[counts], len(matched.tables))
    if not blame.sum():
        return None
    worst = int(blame.argmax())
    together = _together(matched, counts & (blamed == worst), worst)
    steps, late_steps = _steps(matched, counts, np.isin(blamed, together), blamed)
    return LateRank(
        matched=matched,
        index=worst,
        co_late=together,
        synchronizing=counts,
        arrives_last=counts & np.isin(matched.last_arriver, together),
        causes_wait=counts & np.isin(blamed, together),
        blame=float(blame[list(together)].sum() / blame.sum()),
        step_count=steps,
        late_step_count=late_steps,
    )


def _together(matched: MatchedCollectives, caused: BoolArray, worst: int) -> tuple[int, ...]:
    """The rank that comes latest, and those that are late with it; alone where that were half of all ranks."""
    gaps = arrival_slack_ns(matched, caused)
    met = np.array([int(((row >= 0) & caused[row]).sum()) for row in matched.collective_of_row])
    mean = gaps / np.maximum(met, 1)
    near = np.flatnonzero((met > 0) & (mean <= _WITH_IT * mean.max()))
    return tuple(near.tolist()) if worst in near and 2 * len(near) <= len(gaps) else (worst,)


def lateness_of(matched: MatchedCollectives) -> Int64Array:
    """For each of `matched.tables` how much later than the second-latest it came to the collectives that count."""
    counts = _meetings(matched)
    late_ns = (matched.last_arrival_ns - matched.second_arrival_ns)[counts]
    return np.bincount(matched.last_arriver[counts], late_ns, len(matched.tables)).astype(np.int64)


def _meetings(matched: MatchedCollectives) -> BoolArray:
    """Which collectives count: within the window, of all ranks, and not one side waiting for the other by design.

    Where the process group is not recorded, ranks that are missing from a collective may belong to another one.
    """
    whole = matched.rank_count == matched.rank_count.max()
    sends = matched.kind == COLLECTIVE_KINDS.index("send_recv")
    return np.asarray(matched.in_window & (matched.has_group | whole) & ~sends, bool)


def _steps(matched: MatchedCollectives, counts: BoolArray, theirs: BoolArray, blamed: Int32Array) -> tuple[int, int]:
    """How many steps have collectives that count, and in how many others wait for these ranks more than for any."""
    rows = np.flatnonzero(counts & (matched.step >= 0))
    if not len(rows):
        return 0, 0
    steps, which = np.unique(matched.step[rows], return_inverse=True)
    whose = np.where(theirs[rows], 0, blamed[rows] + 1)
    caused = np.zeros((len(steps), len(matched.tables) + 1))
    np.add.at(caused, (which, whose), matched.total_wait_ns[rows])
    return len(steps), int(((caused.argmax(axis=1) == 0) & (caused[:, 0] > 0)).sum())
