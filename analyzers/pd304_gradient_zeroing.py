"""PD304: gradients are filled with zeros instead of dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.edits import without_items
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.source import place_of_range
from perfdoctor.diagnosis.traffic import ACCUMULATES, ZERO_RANGE, ZEROING, launched_inside
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.model import BoolArray


class GradientZeroing(RankAnalyzer):
    """Each step fills the gradients with zeros, and adds the new ones to them.

    What it finds:
        Fill and memset kernels that `Optimizer.zero_grad` launches, and the additions to the zeroed gradients that
        follow in the backward pass.

    Why it costs time:
        zero_grad(set_to_none=False) writes every gradient, and the backward pass then reads and writes it once more to
        add to the zeros: 4 and 12 bytes a float32 parameter, and two launches a tensor. With None in its place the
        backward pass just keeps what it computed.

    How it is measured:
        Time of fills, sets and foreach kernels launched within `Optimizer.zero_grad#`, and of additions within
        AccumulateGrad as long as there are no more of them than of fills: where gradients are accumulated over several
        passes, the additions are wanted.

    How to fix:
        optimizer.zero_grad(set_to_none=True), the default since PyTorch 2.0.

    When it is wrong:
        Code that reads .grad of parameters that got no gradient wants zeros there. Gradients that are views of
        communication buckets have to stay.

    Needs:
        Kernels and their launches.

    References:
        PyTorch Performance Tuning Guide, "Disable gradient calculation" and "Use parameter.grad = None".
    """

    rule: ClassVar[str] = "PD304"
    name: ClassVar[str] = "gradient-zeroing"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    # min_share: half of what makes a low finding: the fix is one argument and changes no result.
    # min_kernels: with the few tensors of a toy there is nothing to gain; one kernel for all is a foreach.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.005, "min_kernels": 10})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding when zeroing, and adding to zeros, takes at least `min_share` of the step."""
        fills = rank.traffic.rows_of(ZEROING)
        adds = _additions(rank, int(fills.sum()))
        time = rank.within_window(fills | adds)
        cost = rank.per_step(iv.total(time))
        kernels = rank.per_step(int(fills.sum()))
        if kernels < self.settings["min_kernels"] or (rank.share(cost) or 0) < self.settings["min_share"]:
            return
        facts = rank.facts or {}
        yield self.finding(
            rank,
            title=f"Gradients are filled with zeros: {kernels:,} fills a {'step' if rank.steps.count else 'trace'}",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice="Let zero_grad drop the gradients: the backward pass then writes them once and adds nothing.",
            fix="optimizer.zero_grad(set_to_none=True)",
            claim=Claim(time, kernels=True),
            edit=without_items(rank.trace, fills | adds, bound=False),
            confidence=0.9,
            location=place_of_range(rank, ZERO_RANGE),
            evidence=(
                Evidence("filling", rank.per_step(iv.total(rank.within_window(fills))), "ns"),
                Evidence("adding to zeros", rank.per_step(iv.total(rank.within_window(adds))), "ns"),
                Evidence("zero_grad(set_to_none=False) calls", facts.get("zero_grad_to_zero"), "count"),
            ),
        )


def _additions(rank: RankRun, fills: int) -> BoolArray:
    """Additions of new gradients to zeroed ones; none where gradients are accumulated over several passes."""
    gpu = rank.trace.gpu
    adds = launched_inside(rank.trace, ACCUMULATES) & rank.kernels_where(lambda k: k.category == "elementwise")
    ops = rank.trace.ops
    if len(ops):
        adds &= rank.trace.named(ops, r"^aten::add_$")[gpu.op] & (gpu.op >= 0)
    adds &= iv.contains(rank.window, gpu.start_ns)
    return adds if adds.sum() <= fills else np.zeros(len(gpu), bool)
