"""PD308: losses are kept with their graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfdoctor.rules import Advice, Evidence, Finding, KeptGraphs, Rank, RankAnalyzer


class RetainedGraph(RankAnalyzer):
    """A loss of each step is kept with its graph, so that memory grows from step to step."""

    rule = "PD308"
    name = "retained-graph"
    needs = frozenset({"facts"})
    # min_growth: of tensors, or of the chain, a step: a loss in each step, with a step or two without one.
    # min_steps: fewer steps may be those of one episode or one round of accumulation.
    defaults = {"min_growth": 0.9, "min_steps": 6}
    references = (
        "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where the number of kept losses, or the chain of their sum, grows in each step."""
        if rank.context.is_forward_only:
            return
        first, last = _read_look(rank.facts.retained.first), _read_look(rank.facts.retained.last)
        if first is None or last is None:
            return
        steps = last.step - first.step
        if steps < self.settings["min_steps"]:
            return
        tensors, chain = (last.tensors - first.tensors) / steps, (last.chain - first.chain) / steps
        if max(tensors, chain) < self.settings["min_growth"]:
            return
        title = f"Losses are kept with their graph: {tensors:.2g} more each step"
        if tensors < self.settings["min_growth"]:
            title = "A sum of losses keeps its graph, which grows in each step"
        advice = Advice(
            "Keep the value, not the loss: with the loss the whole graph of its step stays in memory. `detach()` "
            "does not wait for a GPU, `item()` does.",
            "running_loss += loss.detach()   # losses.append(loss.detach())",
            "https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
        )
        yield self.finding(
            rank,
            title=title,
            advice=advice,
            confidence=0.8,
            evidence=(
                Evidence("small tensors with a graph, before", first.tensors, "count"),
                Evidence("small tensors with a graph, after", last.tensors, "count"),
                Evidence("additions in the longest sum, after", last.chain, "count"),
                Evidence("steps between the two looks", steps, "count"),
            ),
        )


class _Look(NamedTuple):
    step: int
    tensors: int
    chain: int


def _read_look(look: KeptGraphs) -> _Look | None:
    if look.step is None or look.tensors is None or look.chain is None:
        return None
    return _Look(look.step, look.tensors, look.chain)
