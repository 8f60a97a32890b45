"""PD406: gradients are reduced in every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analyzers._pd406_ddp_passes import exposed_in, passes_of
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv


class NoSyncMissing(RankAnalyzer):
    """Gradients are accumulated over several micro-batches, and reduced over the ranks in each of them.

    What it finds:
        Backward passes that reduce gradients which a later backward pass, before the same step of the optimizer,
        reduces again.

    Why it costs time:
        The optimizer needs the sum over ranks once. Every reduction before the last one is communication for nothing.

    How it is measured:
        `DistributedDataParallel.forward` and `Optimizer.step` split the window into passes and updates; an all-reduce
        that the backward pass issued marks its pass as reducing. The cost is the exposed communication of all reducing
        passes of an update but the last. All-reduces of losses and metrics are not counted: no backward issues them.

    How to fix:
        Run all micro-batches but the last under `model.no_sync()`, forward pass included.

    When it is wrong:
        Models whose parts are wrapped one by one and trained by one optimizer reduce different gradients in their
        passes.

    Needs:
        CPU events with steps of an optimizer.

    References:
        torch.nn.parallel.DistributedDataParallel.no_sync; PyTorch Performance Tuning Guide, "Skip unnecessary
        all-reduce if training with DistributedDataParallel and gradient accumulation".
    """

    rule: ClassVar[str] = "PD406"
    name: ClassVar[str] = "no-sync-missing"
    needs: ClassVar[frozenset[str]] = frozenset({"cpu"})
    # What a low finding costs (contracts.md).
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when needless reductions cost at least `min_share` of the step."""
        passes = passes_of(rank)
        needless = passes.needless
        if not needless.any():
            return
        wasted = exposed_in(rank, passes, needless)
        cost = rank.per_step(iv.total(wasted))
        if not self.exceeds_min_share(rank, cost):
            return
        updates = len(set(passes.update.tolist()))
        yield self.finding(
            rank,
            title=f"Gradients are reduced in every micro-batch: {passes.reduces.sum() / updates:.3g} times an update",
            cost_ns=cost,
            saving=Saving(0, cost, cost, "bounded"),
            advice="Reduce once an update: run all micro-batches but the last under no_sync(), forward pass included.",
            fix="with model.no_sync() if i < accumulation - 1 else nullcontext(): loss = model(x); loss.backward()",
            claim=Claim(wasted),
            confidence=0.9,
            location=rank.locations.of_range(vocabulary.DDP_FORWARD),
            evidence=(
                Evidence("updates of the weights", updates, "count"),
                Evidence("forward passes", len(passes), "count"),
                Evidence("backward passes that reduce gradients", int(passes.reduces.sum()), "count"),
                Evidence("of these needless", int(needless.sum()), "count"),
            ),
        )
