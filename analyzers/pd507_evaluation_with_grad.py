"""PD507: forward passes of a training record graphs that no backward pass uses."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._unused_graphs import bound_saving, find_unused_graphs, locate_calls
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, read_advice
from perfdoctor.rules import intervals as iv


class EvaluationWithGrad(RankAnalyzer):
    """A training evaluates without torch.no_grad(): its passes record graphs that are never differentiated."""

    rule = "PD507"
    name = "evaluation-with-grad"
    needs = frozenset({"cpu"})
    # min_share: of the step in such passes. Below a tenth less than a medium finding (3 %) comes back.
    defaults = {"min_share": 0.1}
    references = ("https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when passes in vain take at least `min_share` of the step."""
        graphs = find_unused_graphs(rank.trace, trains=True)
        passes_ns = rank.per_step(iv.total(iv.intersect(graphs.time, rank.window)))
        if not graphs.pass_count or not self.exceeds_min_share(rank, passes_ns):
            return
        cost = bound_saving(rank, graphs)
        advice = read_advice("evaluation with graphs")
        nodes = round(graphs.node_count / graphs.pass_count)
        yield self.finding(
            rank,
            title=f"Forward passes that take {rank.share(passes_ns):.0%} of the step record graphs that no backward "
            "pass uses",
            cost_ns=cost.cost_ns,
            saving=cost.saving,
            advice=advice,
            claim=Claim(cost.time),
            confidence=0.6,
            location=locate_calls(rank, trains=True),
            evidence=(
                Evidence("such passes in the trace", graphs.pass_count, "count"),
                Evidence("nodes of the graph in each", nodes, "count"),
                Evidence("time of these passes per {unit}", passes_ns, "ns"),
            ),
        )
