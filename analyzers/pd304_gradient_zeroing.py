"""PD304: gradients are filled with zeros instead of dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from perfdoctor.analysis.host.cpu_ops import cpu_zeroing_of
from perfdoctor.analysis.kernels.traffic_kinds import ZEROING
from perfdoctor.analysis.launching_ops import launching_op_names, match_launching_ops, match_op_names
from perfdoctor.rules import (
    BoolArray,
    Claim,
    Evidence,
    Finding,
    GpuRows,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    intervals,
    remove_items,
    vocabulary,
)


class GradientZeroing(RankAnalyzer):
    """Each step fills the gradients with zeros, and adds the new gradients to them.

    What it finds:
        Fill and memset kernels that `Optimizer.zero_grad` launches, and the additions to the zeroed gradients that
        follow in the backward pass. In a program on the CPU alone: the ops that do so.

    Why it costs time:
        zero_grad(set_to_none=False) writes every gradient, and the backward pass then reads and writes it once more to
        add to the zeros: 4 and 12 bytes a float32 parameter, and two launches a tensor. With None in its place the
        gradient is what the backward pass computed, without a copy or an addition.

    How it is measured:
        The time of fills, memsets and foreach kernels launched within `Optimizer.zero_grad#`, and of additions within
        AccumulateGrad. The additions count only if there are no more of them than of fills: where gradients are
        accumulated over several passes, they are wanted. Without a GPU an expected saving is given where a capture has
        timed steps without the profiler; what the profiler takes for each event is no part of it.

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
    # min_cpu_share: min_share for a program on the CPU alone: that of a low finding, as some of it is the profiler's.
    # min_kernels: with the few tensors of a toy there is nothing to save; one kernel for all is a foreach.
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
        yield from self._analyze_on_cpu(rank) if rank.device_kind == "cpu" else self._analyze_on_gpu(rank)

    def _analyze_on_gpu(self, rank: Rank) -> Iterator[Finding]:
        fills = rank.traffic.match_rows(ZEROING)
        additions = _match_additions(rank, int(fills.sum()))
        time = rank.time_in_window(fills | additions)
        cost_ns = rank.per_step(intervals.total(time))
        fill_count = rank.per_step(int(fills.sum()))
        if fill_count < self.settings["min_kernels"] or not self.exceeds_min_share(rank, cost_ns):
            return
        yield self._zeroing_finding(
            rank,
            fill_count,
            fill_ns=rank.per_step(intervals.total(rank.time_in_window(fills))),
            addition_ns=rank.per_step(intervals.total(rank.time_in_window(additions))),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            claim=Claim(time, kernels=True),
            edit=remove_items(rank.trace, GpuRows(rank.trace.gpu, fills | additions), is_upper_bound=False),
        )

    def _analyze_on_cpu(self, rank: Rank) -> Iterator[Finding]:
        zeroing = cpu_zeroing_of(rank.trace, rank.window)
        time = zeroing.time
        cost_ns, fill_count = rank.per_step(intervals.total(time)), rank.per_step(zeroing.fill_count)
        if fill_count < self.settings["min_kernels"]:
            return
        if not self.exceeds_min_share(rank, cost_ns, self.settings["min_cpu_share"]):
            return
        yield self._zeroing_finding(
            rank,
            fill_count,
            fill_ns=rank.per_step(intervals.total(zeroing.fill_time)),
            addition_ns=rank.per_step(intervals.total(zeroing.add_time)),
            cost_ns=cost_ns,
            saving=rank.unprofiled_time(time).saving(),
            claim=Claim(time),
        )

    def _zeroing_finding(
        self, rank: Rank, fill_count: int, *, fill_ns: int, addition_ns: int, **amounts: Any
    ) -> Finding:
        """The finding, from figures a step; `amounts` are cost, saving, claim and edit, see `Analyzer.finding`."""
        advice = advise("gradients filled with zeros", rank.context)
        return self.finding(
            rank,
            title=f"Gradients are filled with zeros: {fill_count:,} fills a {rank.unit_name}",
            advice=advice.sentence,
            fix=advice.code,
            confidence=0.9,
            location=rank.locations.of_range(vocabulary.ZERO_GRAD),
            evidence=(
                Evidence("filling", fill_ns, "ns"),
                Evidence("adding to zeros", addition_ns, "ns"),
                Evidence("zero_grad(set_to_none=False) calls", (rank.facts or {}).get("zero_grad_to_zero"), "count"),
            ),
            **amounts,
        )


def _match_additions(rank: Rank, fill_count: int) -> BoolArray:
    """For each GPU item whether it adds a gradient to a zeroed one; none does if passes accumulate gradients."""
    trace = rank.trace
    accumulating = match_launching_ops(trace, vocabulary.ACCUMULATE_GRAD)
    adding = np.append(match_op_names(trace, "aten::add_".__eq__), False)[launching_op_names(trace)]
    additions = rank.kernels.of_category("elementwise").in_steps().where(accumulating & adding).mask
    return additions if additions.sum() <= fill_count else np.zeros_like(additions)
