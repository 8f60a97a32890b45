"""PD304: gradients are filled with zeros instead of dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from perfdoctor.analysis.host.cpu_ops import cpu_zeroing_of
from perfdoctor.analysis.kernels.traffic_kinds import ZEROING
from perfdoctor.analysis.launching_ops import launching_op_names, match_launching_ops, match_op_names
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.edits import remove_items
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import GpuRows


class GradientZeroing(RankAnalyzer):
    """Each step fills the gradients with zeros, and adds the new ones to them.

    What it finds:
        Fill and memset kernels that `Optimizer.zero_grad` launches, and the additions to the zeroed gradients that
        follow in the backward pass. In a program on the CPU alone the ops that do so.

    Why it costs time:
        zero_grad(set_to_none=False) writes every gradient, and the backward pass then reads and writes it once more to
        add to the zeros: 4 and 12 bytes a float32 parameter, and two launches a tensor. With None in its place the
        backward pass just keeps what it computed.

    How it is measured:
        Time of fills, sets and foreach kernels launched within `Optimizer.zero_grad#`, and of additions within
        AccumulateGrad as long as there are no more of them than of fills: where gradients are accumulated over several
        passes, the additions are wanted. Without a GPU the expected saving is told where a capture has timed steps
        without the profiler; what the profiler takes for each event is no part of it.

    How to fix:
        optimizer.zero_grad(set_to_none=True), the default since PyTorch 2.0.

    When it is wrong:
        Code that reads .grad of parameters that got no gradient wants zeros there. Gradients that are views of
        communication buckets have to stay.

    Needs:
        Kernels and their launches, or the ops of a program on the CPU alone.

    References:
        PyTorch Performance Tuning Guide, "Disable gradient calculation" and "Use parameter.grad = None".
    """

    rule: ClassVar[str] = "PD304"
    name: ClassVar[str] = "gradient-zeroing"
    needs: ClassVar[frozenset[str]] = frozenset({"work", "work_launches"})
    # min_share: half of what makes a low finding: the fix is one argument and changes no result.
    # min_cpu_share: min_share for a program on the CPU alone: a low finding's worth, as some of it is the profiler's.
    # min_kernels: with the few tensors of a toy there is nothing to gain; one kernel for all is a foreach.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.005, "min_kernels": 10, "min_cpu_share": 0.01}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when zeroing, and adding to zeros, takes at least `min_share` of the step.

        Without a GPU `min_cpu_share`.
        """
        yield from self._on_cpu(rank) if rank.device_kind == "cpu" else self._on_gpu(rank)

    def _on_gpu(self, rank: Rank) -> Iterator[Finding]:
        fills = rank.traffic.match_rows(ZEROING)
        adds = _additions(rank, int(fills.sum()))
        time = rank.time_in_window(fills | adds)
        cost = rank.per_step(iv.total(time))
        kernels = rank.per_step(int(fills.sum()))
        if kernels < self.settings["min_kernels"] or not self.exceeds_min_share(rank, cost):
            return
        filling, adding = (iv.total(rank.time_in_window(rows)) for rows in (fills, adds))
        yield self._told(
            rank,
            kernels,
            (filling, adding),
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            claim=Claim(time, kernels=True),
            edit=remove_items(rank.trace, GpuRows(rank.trace.gpu, fills | adds), is_upper_bound=False),
        )

    def _on_cpu(self, rank: Rank) -> Iterator[Finding]:
        found = cpu_zeroing_of(rank.trace, rank.window)
        cost, fills = rank.per_step(iv.total(found.time)), rank.per_step(found.fill_count)
        if fills < self.settings["min_kernels"] or not self.exceeds_min_share(
            rank, cost, self.settings["min_cpu_share"]
        ):
            return
        yield self._told(
            rank,
            fills,
            (iv.total(found.fill_time), iv.total(found.add_time)),
            cost_ns=cost,
            saving=rank.unprofiled_time(found.time).saving(),
            claim=Claim(found.time),
        )

    def _told(self, rank: Rank, fills: int, spent_ns: tuple[int, int], **judged: Any) -> Finding:
        """The finding; `spent_ns` on filling and adding to zeros in the window."""
        return self.finding(
            rank,
            title=f"Gradients are filled with zeros: {fills:,} fills a {rank.unit_name}",
            advice="Let zero_grad drop the gradients: the backward pass then writes them once and adds nothing.",
            fix="optimizer.zero_grad(set_to_none=True)",
            confidence=0.9,
            location=rank.locations.of_range(vocabulary.ZERO_GRAD),
            evidence=(
                Evidence("filling", rank.per_step(spent_ns[0]), "ns"),
                Evidence("adding to zeros", rank.per_step(spent_ns[1]), "ns"),
                Evidence("zero_grad(set_to_none=False) calls", (rank.facts or {}).get("zero_grad_to_zero"), "count"),
            ),
            **judged,
        )


def _additions(rank: Rank, fills: int) -> BoolArray:
    """Additions of new gradients to zeroed ones; none where gradients are accumulated over several passes."""
    trace = rank.trace
    adds = match_launching_ops(trace, vocabulary.ACCUMULATE_GRAD) & rank.kernel_classes.match_rows(
        lambda k: k.category == "elementwise"
    )
    adds &= np.append(match_op_names(trace, "aten::add_".__eq__), False)[launching_op_names(trace)]
    adds &= rank.in_window
    return adds if adds.sum() <= fills else np.zeros(len(adds), bool)
