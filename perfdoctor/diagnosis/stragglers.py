"""The rank that the others wait for: who arrives last at the collectives, how late, and who waits how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfdoctor.diagnosis.account import DETAILS
from perfdoctor.diagnosis.matching import MatchedCollectives, match_collectives
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Int64Array, Intervals
from perfdoctor.trace.model import BoolArray

if TYPE_CHECKING:
    from perfdoctor.diagnosis.run import RankRun

# Noise spreads the waiting evenly; a rank that causes at least half of it stands out from any number of others.
STANDS_OUT = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class LateRank:
    """The rank that causes the most waiting.

    Attributes:
        ranks: The ranks that were compared.
        matched: Their collectives.
        index: Which of `ranks` it is.
        last: For each collective whether it is the last to arrive there.
        blame: Its share of all waiting, 0 to 1.
    """

    ranks: tuple[RankRun, ...]
    matched: MatchedCollectives
    index: int
    last: BoolArray
    blame: float

    @property
    def run(self) -> RankRun:
        """The late rank itself."""
        return self.ranks[self.index]

    @property
    def victim(self) -> int:
        """Index of the rank that waits for it longest."""
        arrivals = self.matched.start_ns[:, self.last]
        return int((arrivals.max(axis=0) - arrivals).sum(axis=1).argmax())

    @property
    def lateness_ns(self) -> Int64Array:
        """Its start minus the second-latest start, for each collective that it is last at."""
        ordered = np.sort(self.matched.start_ns[:, self.last], axis=0)
        return np.asarray(ordered[-1] - ordered[-2], np.int64)

    def waiting(self, index: int) -> Intervals:
        """When a rank waited for it with nothing else to do, within that rank's window and on its own clock."""
        if index == self.index:
            return iv.EMPTY
        offset = self.matched.offset_ns[index]
        begin = self.matched.start_ns[index, self.last] - offset
        arrived = self.matched.start_ns[:, self.last].max(axis=0)
        until = np.minimum(arrived, self.matched.end_ns[index, self.last]) - offset
        return iv.intersect(iv.union(begin, until), self.ranks[index].account.parts["communication"])

    def phase(self) -> tuple[str, int] | None:
        """What it did from the second-latest start until its own, by its account: the largest detail and its time."""
        ordered = np.sort(self.matched.start_ns[:, self.last], axis=0)
        offset = self.matched.offset_ns[self.index]
        late = iv.union(ordered[-2] - offset, ordered[-1] - offset)
        spent = {name: iv.total(iv.intersect(late, self.run.account.parts[name])) for name in DETAILS}
        name = max(spent, key=lambda name: spent[name])
        return (name, spent[name]) if spent[name] else None


def find_late_rank(ranks: Sequence[RankRun]) -> LateRank | None:
    """The rank that makes the others wait most; None where collectives cannot be matched or nobody waits."""
    compared = tuple(rank for rank in ranks if "kernels" in rank.evidence)
    matched = match_collectives(compared) if len(compared) > 1 else None
    if matched is None:
        return None
    last = matched.start_ns.argmax(axis=0)
    waits = matched.start_ns.max(axis=0) - matched.start_ns
    blame = np.array([waits[:, last == i].sum() for i in range(len(compared))], np.float64)
    if not blame.sum():
        return None
    worst = int(blame.argmax())
    return LateRank(compared, matched, worst, last == worst, float(blame[worst] / blame.sum()))
