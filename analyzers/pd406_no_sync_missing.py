"""PD406: gradients are reduced in every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._pd406_ddp_passes import ddp_passes_of, exposed_communication_of
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, advise, vocabulary
from perfdoctor.rules import intervals as iv


class NoSyncMissing(RankAnalyzer):
    """Gradients are accumulated over several micro-batches, and reduced over the ranks in each of them."""

    rule = "PD406"
    name = "no-sync-missing"
    needs = frozenset({"cpu"})
    # A smaller cost would not even be a finding of low severity.
    defaults = {"min_share": 0.01}
    references = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when needless reductions cost at least `min_share` of the step."""
        passes = ddp_passes_of(rank)
        needless = passes.is_needless
        if not needless.any():
            return
        wasted = exposed_communication_of(rank, passes, needless)
        cost = rank.per_step(iv.total(wasted))
        if not self.exceeds_min_share(rank, cost):
            return
        updates = len(set(passes.update.tolist()))
        yield self.finding(
            rank,
            title=f"Gradients are reduced in every micro-batch: {passes.reduces.sum() / updates:.3g} times an update",
            cost_ns=cost,
            saving=Saving(0, cost, cost, "bounded"),
            advice=advise("gradients reduced in every micro-batch", rank.context),
            claim=Claim(wasted),
            confidence=0.9,
            location=rank.places.line_of_named(vocabulary.DDP_FORWARD),
            evidence=(
                Evidence("updates of the weights", updates, "count"),
                Evidence("forward passes", len(passes), "count"),
                Evidence("backward passes that reduce gradients", int(passes.reduces.sum()), "count"),
                Evidence("of these needless", int(needless.sum()), "count"),
            ),
        )
