"""PD408: the ranks are given different amounts of work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfdoctor.rules import (
    Claim,
    CollectiveTable,
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    FloatArray,
    Int64Array,
    Saving,
    advise,
    exposed_wait_of,
    find_longest_waiter,
    phases,
)
from perfdoctor.rules import intervals as iv

_COMPUTING_PHASES = [
    phases.PHASES.index(phase) for phase in (phases.FORWARD, phases.BACKWARD, phases.OPTIMIZER, phases.COMPUTE)
]


class UnevenWork(FleetAnalyzer):
    """In each step some ranks have more to compute than others, and the others wait for them."""

    rule = "PD408"
    name = "uneven-work"
    needs = frozenset({"ranks", "flops"})
    # min_spread: sequence lengths usually vary by a tenth over a batch; a padded last batch differs by more.
    defaults = {"min_share": 0.01, "min_spread": 0.05}
    references = ("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """One finding when work spreads by `min_spread` over the mean and costs at least `min_share` of the step."""
        matched = fleet.matched_collectives
        ranks = [s for s in fleet.summaries if len(s.step_flops)]
        if matched is None or len(ranks) < 2:
            return
        flops = _align_steps([summary.step_flops for summary in ranks])
        # A CPU that runs far ahead issues the ops of the last steps in the first ones, so that the last have none.
        flops = flops[:, flops.all(axis=0)]
        spread = _spread(flops)
        if not flops.size or spread < self.settings["min_spread"]:
            return
        tables = [table for table in matched.tables if table.step_numbers or len(table.step_start_ns)]
        computing_ns = _align_steps([_computing_ns(table) for table in tables])
        if not computing_ns.size:
            return
        excess_ns = int((computing_ns.max(axis=0) - computing_ns.mean(axis=0)).mean())
        all_of_them = np.ones(len(matched), bool)
        victim = find_longest_waiter(
            matched, matched.in_window, lambda index: exposed_wait_of(matched, index, all_of_them)
        )
        rank, waiting = fleet.summary_of(matched.tables[victim]), exposed_wait_of(matched, victim, all_of_them)
        cost = rank.per_step(iv.total(waiting))
        saving_ns = min(excess_ns, cost)
        if not self.exceeds_min_share(rank, saving_ns):
            return
        times_busiest = np.bincount(flops.argmax(axis=0), minlength=len(ranks))
        busiest = int(times_busiest.argmax())
        yield self.finding(
            rank,
            title=f"Work is uneven over the ranks: the busiest of a step has {spread:.0%} more than the mean",
            cost_ns=cost,
            saving=Saving(0, saving_ns, saving_ns, "bounded"),
            advice=advise("uneven work", rank.context),
            claim=Claim(waiting, rank=rank.rank),
            confidence=0.8,
            evidence=(
                Evidence("FLOPs of the busiest rank over the mean", round(100 * spread, 1), "%"),
                Evidence("busiest rank's computing over the mean, per {unit}", excess_ns, "ns"),
                Evidence("rank that is busiest most often", ranks[busiest].rank),
                Evidence("steps in which it is", f"{times_busiest[busiest]} of {flops.shape[1]}"),
                Evidence("rank that waits longest", rank.rank),
            ),
        )


def _align_steps(amounts: Sequence[Int64Array | FloatArray]) -> FloatArray:
    """Amounts of the steps that all ranks have, as (ranks, steps): the last ones, as ranks stop recording together.

    For example [1, 2, 3] of one rank and [5, 6] of another become [[2, 3], [5, 6]].
    """
    steps = min((len(row) for row in amounts), default=0)
    return np.array([np.asarray(row, np.float64)[len(row) - steps :] for row in amounts])


def _computing_ns(table: CollectiveTable) -> FloatArray:
    """Computing time of one rank in each analysed step, up to its last collective."""
    inside = table.step >= 0
    spent_ns = table.preceding_phase_ns[inside][:, _COMPUTING_PHASES].sum(axis=1, dtype=np.float64)
    return np.bincount(table.step[inside], spent_ns, len(table.step_start_ns)).astype(np.float64)


def _spread(amounts: FloatArray) -> float:
    """By what share of the mean the largest amount of a step exceeds it, over all steps: 0 to ranks - 1."""
    mean = amounts.mean(axis=0)
    return float((amounts.max(axis=0) - mean).sum() / max(mean.sum(), 1.0))
