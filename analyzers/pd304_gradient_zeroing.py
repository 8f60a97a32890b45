"""PD304: gradients are filled with zeros instead of dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from perfdoctor.analyzers._cpu_ops import cpu_zeroing_of
from perfdoctor.rules import (
    BoolArray,
    Claim,
    Edit,
    Evidence,
    Finding,
    GpuRows,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    distinct,
    intervals,
    launching_op_names,
    launching_ranges,
    match_launching_ops,
    match_op_names,
    remove_cpu_time,
    remove_items,
    traffic_kinds,
    vocabulary,
)

# How long `zero_grad` takes with nothing to do, of its time with fills: 0.56 of 9.6 ms for 161 parameters, where a
# recording begins without gradients (PyTorch 1.8).
_REMAINING_SHARE = 0.06


class GradientZeroing(RankAnalyzer):
    """Each step fills the gradients with zeros, and adds the new gradients to them."""

    rule = "PD304"
    name = "gradient-zeroing"
    needs = frozenset({"work", "work_launches"})
    # min_share: half of what makes a low finding: the fix is one argument and changes no result.
    # min_cpu_share: min_share for a program on the CPU alone: that of a low finding, as some of it is the profiler's.
    # min_kernels: with the few tensors of a toy there is nothing to save; one kernel for all is a foreach.
    defaults = {"min_share": 0.005, "min_kernels": 10, "min_cpu_share": 0.01}
    references = (
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when zeroing, and adding to zeros, takes at least `min_share` of the step.

        Without a GPU `min_cpu_share`.
        """
        yield from self._analyze_on_cpu(rank) if rank.device_kind == "cpu" else self._analyze_on_gpu(rank)

    def _analyze_on_gpu(self, rank: Rank) -> Iterator[Finding]:
        fills = rank.traffic.match_rows(traffic_kinds.ZEROING)
        additions = _match_additions(rank, int(fills.sum()))
        busy, waits = rank.time_in_window(fills | additions), _waits_between_fills(rank, fills)
        is_starved = intervals.total(waits) > intervals.total(busy)
        time = intervals.union_of((busy, waits)) if is_starved else busy
        cost_ns = rank.per_step(intervals.total(time))
        fill_count = rank.count_per_step(int(fills.sum()))
        if fill_count < self.settings["min_kernels"] or not self.exceeds_min_share(rank, cost_ns):
            return
        yield self._zeroing_finding(
            rank,
            fill_count,
            (Evidence("GPU waits for the fills", rank.per_step(intervals.total(waits)), "ns"),),
            fill_ns=rank.per_step(intervals.total(rank.time_in_window(fills))),
            addition_ns=rank.per_step(intervals.total(rank.time_in_window(additions))),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            claim=Claim(time, kernels=not is_starved),
            confidence=0.8 if is_starved else 0.9,  # the profiler slows launches
            edit=_drop_gradients(rank, fills, fills | additions),
        )

    def _analyze_on_cpu(self, rank: Rank) -> Iterator[Finding]:
        zeroing = cpu_zeroing_of(rank.trace, rank.window)
        time = zeroing.time
        cost_ns, fill_count = rank.per_step(intervals.total(time)), rank.count_per_step(zeroing.fill_count)
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
            confidence=0.9,
        )

    def _zeroing_finding(
        self,
        rank: Rank,
        fill_count: int,
        evidence: tuple[Evidence, ...] = (),
        *,
        fill_ns: int,
        addition_ns: int,
        **amounts: Any,
    ) -> Finding:
        """The finding, from figures a step; `amounts` are cost, saving, claim and so on, see `Analyzer.finding`."""
        return self.finding(
            rank,
            title=f"Gradients are filled with zeros: {fill_count:,} fills {rank.per_unit}",
            advice=advise("gradients filled with zeros", rank.context),
            location=rank.places.line_of_named(vocabulary.ZERO_GRAD),
            evidence=(
                Evidence("filling", fill_ns, "ns"),
                Evidence("adding to zeros", addition_ns, "ns"),
                *evidence,
                Evidence("zero_grad(set_to_none=False) calls", rank.facts.zero_grad_to_zero, "count"),
            ),
            **amounts,
        )


def _waits_between_fills(rank: Rank, fills: BoolArray) -> Intervals:
    """When the GPU waited for launches between the first and the last fill of each `zero_grad`."""
    gpu, rows = rank.trace.gpu, np.flatnonzero(fills)
    _, number = np.unique(launching_ranges(rank.trace, vocabulary.ZERO_GRAD)[rows], return_inverse=True)
    start_ns = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    end_ns = np.full(len(start_ns), np.iinfo(np.int64).min)
    np.minimum.at(start_ns, number, gpu.start_ns[rows])
    np.maximum.at(end_ns, number, gpu.end_ns[rows])
    return intervals.intersect(intervals.union(start_ns, end_ns), rank.account.parts["idle_launch"])


def _drop_gradients(rank: Rank, fills: BoolArray, removed: BoolArray) -> Edit:
    """What dropping changes: no fill, no addition to zeros; and of `zero_grad` a loop without launches remains.

    At least the ops and launches go; how long the loop between them takes without is known of one trace only.
    """
    low = remove_items(rank.trace, GpuRows(rank.trace.gpu, removed), is_upper_bound=False)
    ranges, calls = rank.trace.ranges, distinct(launching_ranges(rank.trace, vocabulary.ZERO_GRAD)[fills])
    spans = ranges.start_ns[calls], ranges.end_ns[calls]
    expected, high = (
        low | remove_cpu_time(ranges.thread[calls], spans, rank.window, share) for share in (_REMAINING_SHARE, 0.0)
    )
    return replace(expected, at_least=low, at_most=high)


def _match_additions(rank: Rank, fill_count: int) -> BoolArray:
    """For each GPU item whether it adds a gradient to a zeroed one; none does if passes accumulate gradients."""
    trace = rank.trace
    accumulating = match_launching_ops(trace, vocabulary.ACCUMULATE_GRAD)
    adding = np.append(match_op_names(trace, "aten::add_".__eq__), False)[launching_op_names(trace)]
    additions = rank.kernels.of_category("elementwise").in_steps().where(accumulating & adding).mask
    return additions if additions.sum() <= fill_count else np.zeros_like(additions)
