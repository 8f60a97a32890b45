"""PD518: a program without any backward pass records graphs."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._unused_graphs import (
    bound_bookkeeping,
    find_unused_graphs,
    locate_calls,
    may_be_differentiated,
)
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, advise, remove_pauses
from perfdoctor.rules import intervals as iv


class InferenceMode(RankAnalyzer):
    """A program that never differentiates runs its model without torch.inference_mode() or torch.no_grad()."""

    rule = "PD518"
    name = "inference-mode"
    needs = frozenset({"cpu"})
    # min_share: of the bound. A forward pass of large ops makes as many nodes as one of small ops, and feels none.
    defaults = {"min_share": 0.01}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/autograd.html#inference-mode",
        "https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when making the nodes may take at least `min_share` of the step."""
        if not rank.context.is_forward_only or may_be_differentiated(rank):
            return
        graphs = find_unused_graphs(rank.trace, trains=False)
        cost = bound_bookkeeping(rank, graphs)
        if not graphs.pass_count or not self.exceeds_min_share(rank, cost.cost_ns):
            return
        passes_ns = rank.per_step(iv.total(iv.intersect(graphs.time, rank.window)))
        yield self.finding(
            rank,
            title=f"Nothing is differentiated, and {rank.count_per_step(graphs.node_count):,.0f} nodes of autograd's "
            f"graph are made in {'a step' if rank.steps.count else 'the recording'}",
            cost_ns=cost.cost_ns,
            saving=cost.saving,
            advice=advise("inference with gradients", rank.context),
            claim=Claim(cost.time),
            edit=remove_pauses(rank.trace, cost.time, rank.window, is_upper_bound=True)
            if rank.device_kind == "gpu"
            else None,
            confidence=0.6,
            location=locate_calls(rank, trains=False),
            evidence=(
                Evidence("nodes of the graph per {unit}", rank.count_per_step(graphs.node_count), "count"),
                Evidence("time of these passes per {unit}", passes_ns, "ns"),
            ),
        )
