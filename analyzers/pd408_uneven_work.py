"""PD408: the ranks are given different amounts of work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.rank_waits import exposed_wait_of, find_longest_waiter
from perfdoctor.analysis.timeline.phases import BACKWARD, COMPUTE, FORWARD, OPTIMIZER, PHASES
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.rank_summary import Fleet
from perfdoctor.rules.analyzer import FleetAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import FloatArray
from perfdoctor.trace.tables import intervals as iv

_COMPUTING = [PHASES.index(phase) for phase in (FORWARD, BACKWARD, OPTIMIZER, COMPUTE)]


class UnevenWork(FleetAnalyzer):
    """In each step some ranks have more to compute than others, and the others wait for them.

    What it finds:
        Steps whose FLOPs, by the shapes of the inputs, differ between the ranks, and so does their computing time.

    Why it costs time:
        All ranks meet at the step's collectives: each step takes as long as the rank with the most work, whichever that
        is.

    How it is measured:
        FLOPs of matrix maths in each rank's steps, from the recorded shapes; computing time between collectives, by
        step. The cost is what the rank that waits longest waits at collectives with nothing else to do. The expected
        saving is how much longer the busiest rank of each step computes than the mean of all: what an even distribution
        of the same work would give. Ranks with the same FLOPs and different times have slower devices or hosts, not
        more work: that is PD401's.

    How to fix:
        Give all ranks the same number of tokens or pixels: batches by length (a sampler that sorts into buckets and
        deals them out), packed sequences, padding to few sizes, experts with a capacity.

    When it is wrong:
        Pipeline stages and experts differ by design; there it says how much.

    Needs:
        Traces of several ranks with input shapes (record_shapes=True), or a capture's evidence window.

    References:
        PyTorch Performance Tuning Guide, "Load-balance workload in a distributed setting".
    """

    rule: ClassVar[str] = "PD408"
    name: ClassVar[str] = "uneven-work"
    needs: ClassVar[frozenset[str]] = frozenset({"ranks", "flops"})
    # min_spread: lengths that vary by a tenth over a batch are usual; a padded last batch is more.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01, "min_spread": 0.05})
    references: ClassVar[tuple[str, ...]] = ("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """One finding when work spreads by `min_spread` over the mean and costs at least `min_share` of the step."""
        matched = fleet.matched
        ranks = [s for s in fleet.summaries if s.step_flops]
        if matched is None or len(ranks) < 2:
            return
        flops = _matrix([summary.step_flops for summary in ranks])
        # A CPU that runs far ahead issues the ops of later steps in the first ones.
        flops = flops[:, flops.all(axis=0)]
        together = [t for t in matched.tables if t.step_numbers or len(t.step_start_ns)]
        computing = _matrix([_computing_ns(table) for table in together])
        if not flops.size or not computing.size or _spread(flops) < self.settings["min_spread"]:
            return
        over_ns = int((computing.max(axis=0) - computing.mean(axis=0)).mean())
        met = np.ones(len(matched), bool)
        victim = find_longest_waiter(matched, matched.in_window, lambda index: exposed_wait_of(matched, index, met))
        rank, waiting = fleet.of(matched.tables[victim]), exposed_wait_of(matched, victim, met)
        cost = rank.per_step(iv.total(waiting))
        gained = min(over_ns, cost)
        if not self.exceeds_min_share(rank, gained):
            return
        busiest = np.bincount(flops.argmax(axis=0), minlength=len(ranks))
        most = int(busiest.argmax())
        yield self.finding(
            rank,
            title=f"Work is uneven over the ranks: the busiest of a step has {_spread(flops):.0%} more than the mean",
            cost_ns=cost,
            saving=Saving(0, gained, gained, "bounded"),
            advice="Deal the same amount of work to each rank: batch inputs of similar length, pack or pad them.",
            claim=Claim(waiting, rank=rank.rank),
            confidence=0.8,
            evidence=(
                Evidence("FLOPs of the busiest rank over the mean", round(100 * _spread(flops), 1), "%"),
                Evidence("busiest rank's computing over the mean, per step", over_ns, "ns"),
                Evidence("rank that is busiest most often", ranks[most].rank),
                Evidence("steps in which it is", f"{busiest[most]} of {flops.shape[1]}"),
                Evidence("rank that waits longest", rank.rank),
            ),
        )


def _matrix(rows: Sequence[Sequence[int] | FloatArray]) -> FloatArray:
    """Steps that all ranks have, as (ranks, steps): ranks stop recording together."""
    steps = min((len(row) for row in rows), default=0)
    return np.array([np.asarray(row, np.float64)[len(row) - steps :] for row in rows])


def _computing_ns(table: CollectiveTable) -> FloatArray:
    """Computing time in each analysed step, up to its last collective."""
    inside = table.step >= 0
    spent = table.preceding_phase_ns[inside][:, _COMPUTING].sum(axis=1, dtype=np.float64)
    return np.bincount(table.step[inside], spent, len(table.step_start_ns)).astype(np.float64)


def _spread(amounts: FloatArray) -> float:
    """By how much the largest of each step exceeds the mean of the ranks, 0 to n - 1, over all steps."""
    mean = amounts.mean(axis=0)
    return float((amounts.max(axis=0) - mean).sum() / max(mean.sum(), 1.0))
