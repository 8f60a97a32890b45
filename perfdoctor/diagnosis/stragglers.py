"""The rank that the others wait for: who arrives last at the collectives, how late, why, and who waits how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfdoctor.diagnosis.collectives import KINDS, CollectiveTable
from perfdoctor.diagnosis.matching import MatchedCollectives, match_collectives
from perfdoctor.diagnosis.phases import PHASES
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Int64Array, Intervals
from perfdoctor.trace.model import BoolArray

# Noise spreads the waiting evenly; a rank that causes at least half of it stands out from any number of others.
STANDS_OUT = 0.5
# Of few ranks one causes half of it by chance: it must cause this many times its share. With two, three quarters.
_TIMES_ITS_SHARE = 1.5
# A rank that is the one to wait for in fewer of the steps than this is late now and then, not slow.
_PERSISTS = 0.5
# The rank that waits longest is looked for among so many, by their waits at collectives.
_VICTIMS = 16


@dataclass(frozen=True, eq=False)
class LateRank:
    """The rank that causes the most waiting.

    Attributes:
        matched: The collectives of all ranks.
        index: Which of `matched.tables` it is.
        last: For each collective whether it is the last to arrive there, and that counts.
        of: How many collectives count: those in the window at which ranks wait for each other.
        blame: Its share of all waiting, 0 to 1.
        steps: Steps in which anybody waited; 0 where there are no steps.
        late_steps: Those of them in which the others waited for this rank most.
    """

    matched: MatchedCollectives
    index: int
    last: BoolArray
    of: int
    blame: float
    steps: int
    late_steps: int

    @property
    def table(self) -> CollectiveTable:
        """The late rank's own collectives."""
        return self.matched.tables[self.index]

    @property
    def rank(self) -> int | None:
        """Its number."""
        return self.table.rank

    @property
    def stands_out(self) -> bool:
        """Whether it causes more of the waiting than chance gives to one of so many ranks."""
        return self.blame >= max(STANDS_OUT, _TIMES_ITS_SHARE / len(self.matched.tables))

    @property
    def persists(self) -> bool:
        """Whether it is late in step after step."""
        return self.late_steps >= _PERSISTS * self.steps

    @property
    def lateness_ns(self) -> Int64Array:
        """Its arrival minus the second-latest, for each collective that it is last at."""
        matched = self.matched
        return np.asarray(matched.last_ns[self.last] - matched.second_ns[self.last], np.int64)

    @cached_property
    def victim(self) -> int:
        """Index of the rank that waits for it longest with nothing else to do."""
        waits = [self._arrival_gaps(i).sum() if i != self.index else 0 for i in range(len(self.matched.tables))]
        likely = np.argsort(waits, kind="stable")[::-1][:_VICTIMS].tolist()
        return int(max(likely, key=lambda i: (iv.total(self.waiting(i)), -i)))

    def waiting_of(self, table: CollectiveTable) -> Intervals:
        """The same of a rank given by its table; nothing for one that could not be compared."""
        index = self._places.get(id(table))
        return iv.EMPTY if index is None else self.waiting(index)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(table): index for index, table in enumerate(self.matched.tables)}

    def waiting(self, index: int) -> Intervals:
        """When a rank waited for it with nothing else to do, within that rank's window and on its own clock."""
        if index == self.index:
            return iv.EMPTY
        table, rows = self.matched.tables[index], self._met(index)
        arrived = self.matched.last_ns[self.matched.row[index][rows]] - self.matched.offset_ns[index]
        waits = iv.union(table.start_ns[rows], np.minimum(arrived, table.end_ns[rows]))
        return iv.intersect(waits, table.exposed)

    @property
    def late_ns(self) -> int:
        """How long the second-latest waited for it, all together: what is saved if it is as fast as that one.

        Of collectives that run beside each other an instant counts once.
        """
        return iv.total(iv.union(self.matched.second_ns[self.last], self.matched.last_ns[self.last]))

    def phase(self) -> tuple[str, int] | None:
        """What it did more of than the others before it arrived late: the phase that grew most, and by how much.

        Compared with the others at the same collectives, not at the instant: a rank that was held up in its loader is
        busy computing when the others wait for it.
        """
        late = self.last & (self.matched.last_ns > self.matched.second_ns)
        more = (self.matched.last_before_ns[late] - self.matched.others_before_ns[late]).sum(axis=0)
        most = int(more.argmax())
        return (PHASES[most], round(float(more[most]))) if more[most] > 0 else None

    def _met(self, index: int) -> Int64Array:
        """The rows of a rank's table at which it was held up by the late rank."""
        row = self.matched.row[index]
        return np.flatnonzero((row >= 0) & self.last[row])

    def _arrival_gaps(self, index: int) -> Int64Array:
        rows = self._met(index)
        start = self.matched.tables[index].start_ns[rows] + self.matched.offset_ns[index]
        return np.asarray(self.matched.last_ns[self.matched.row[index][rows]] - start, np.int64)


def find_late_rank(tables: Sequence[CollectiveTable]) -> LateRank | None:
    """The rank that makes the others wait most; None where collectives cannot be matched or nobody waits."""
    matched = match_collectives(tables)
    if matched is None:
        return None
    counts = _meetings(matched)
    blame = np.bincount(matched.last[counts], matched.waited_ns[counts], len(matched.tables))
    if not blame.sum():
        return None
    worst = int(blame.argmax())
    steps, late_steps = _steps(matched, counts, worst)
    share = float(blame[worst] / blame.sum())
    return LateRank(matched, worst, counts & (matched.last == worst), int(counts.sum()), share, steps, late_steps)


def lateness_of(matched: MatchedCollectives) -> Int64Array:
    """For each of `matched.tables` how much later than the second-latest it came to the collectives that count."""
    counts = _meetings(matched)
    late_ns = (matched.last_ns - matched.second_ns)[counts]
    return np.bincount(matched.last[counts], late_ns, len(matched.tables)).astype(np.int64)


def _meetings(matched: MatchedCollectives) -> BoolArray:
    """Which collectives count: within the window, of all ranks, and not one side waiting for the other by design.

    Where the process group is not recorded, ranks that are missing from a collective may belong to another one.
    """
    whole = matched.count == matched.count.max()
    sends = matched.kind == KINDS.index("send_recv")
    return np.asarray(matched.inside & (matched.grouped | whole) & ~sends, bool)


def _steps(matched: MatchedCollectives, counts: BoolArray, rank: int) -> tuple[int, int]:
    """In how many steps anybody waited, and in how many of them for this rank most."""
    rows = np.flatnonzero(counts & (matched.step >= 0) & (matched.waited_ns > 0))
    if not len(rows):
        return 0, 0
    steps, which = np.unique(matched.step[rows], return_inverse=True)
    caused = np.zeros((len(steps), len(matched.tables)))
    np.add.at(caused, (which, matched.last[rows]), matched.waited_ns[rows])
    return len(steps), int((caused.argmax(axis=1) == rank).sum())
