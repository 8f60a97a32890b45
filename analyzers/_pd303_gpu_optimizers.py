"""The steps of optimizers on the GPU: how often they go over the parameters, and how long the GPU waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfdoctor.analysis.kernels.optimizer_passes import longest_pass
from perfdoctor.analysis.kernels.traffic_kinds import OPTIMIZER
from perfdoctor.rules import NONE, GpuRows, Int64Array, Intervals, Rank, distinct, intervals, occurring, vocabulary

_FUSED_KERNEL = r"(?i)fused_?(adam|sgd|adagrad|lamb)|AdamFunctor|SGDFunctor|LAMB|AdagradFunctor|LionFunctor"
_FOREACH_KERNEL = r"multi_tensor_apply"


@dataclass(frozen=True, slots=True, eq=False)
class GpuOptimizer:
    """The steps of one class of optimizer in the window.

    Attributes:
        optimizer: Name of the class.
        rows: The GPU items that they launched.
        first_rows: The first GPU item of each step.
        time: When those ran; if `is_starved` also when the GPU waited for their launches.
        busy_ns: How long they ran, over all steps.
        wait_ns: How long the GPU waited for their launches, over all steps.
        pass_count: How often a step goes over the parameters.
        saved_share: The share of the kernel time (0 to 1) that a single pass saves at most.
        is_loop: Whether most of the time is in kernels of one tensor each.
        is_starved: Whether the GPU waits for longer than it works.
    """

    optimizer: str
    rows: GpuRows
    first_rows: GpuRows
    time: Intervals
    busy_ns: int
    wait_ns: int
    pass_count: int
    saved_share: float
    is_loop: bool
    is_starved: bool

    @property
    def max_saving_ns(self) -> int:
        """The part of `time` that one fused pass saves at most, over all steps."""
        return round(self.busy_ns * self.saved_share) + (self.wait_ns if self.is_starved else 0)


def gpu_optimizers_of(rank: Rank) -> Iterator[GpuOptimizer]:
    """Each class of optimizer that steps in the window, but for fused, compiled, and compute-bound ones."""
    trace = rank.trace
    range_name = np.append(trace.ranges.name, NONE)[rank.traffic.optimizer_step]
    for code in occurring(range_name[rank.traffic.match_rows(OPTIMIZER)]).tolist():
        found = _measure_optimizer(rank, np.flatnonzero(range_name == code), trace.strings[code])
        if found is not None:
            yield found


def _measure_optimizer(rank: Rank, launched: Int64Array, range_name: str) -> GpuOptimizer | None:
    """What the steps of one class of optimizer launched; None where a rule about passes does not fit it."""
    trace, gpu = rank.trace, rank.trace.gpu
    is_update = rank.traffic.match_rows(OPTIMIZER)[launched]
    rows, other = launched[is_update], launched[~is_update & rank.in_window[launched]]
    time_ns = int(gpu.dur_ns[rows].sum())
    if not time_ns or gpu.dur_ns[other].sum() > time_ns:
        return None
    fused = (trace.match_rows(gpu, _FUSED_KERNEL) | trace.match_rows(gpu, vocabulary.TRITON_KERNEL))[rows]
    if 2 * gpu.dur_ns[rows[fused]].sum() > time_ns:
        return None
    foreach = trace.match_rows(gpu, _FOREACH_KERNEL)[rows]
    longest_ns, pass_count = _measure_longest_pass(rank, rows)
    busy = rank.time_in_window(rows)
    _, first, step = np.unique(rank.traffic.optimizer_step[rows], return_index=True, return_inverse=True)
    waits = intervals.intersect(_spans_of_steps(rank, rows, step), rank.account.parts["idle_launch"])
    is_starved = intervals.total(waits) > intervals.total(busy)
    return GpuOptimizer(
        optimizer=vocabulary.optimizer_class(range_name),
        rows=GpuRows(gpu, rows),
        first_rows=GpuRows(gpu, rows[first]),
        time=intervals.union_of((busy, waits)) if is_starved else busy,
        busy_ns=intervals.total(busy),
        wait_ns=intervals.total(waits),
        pass_count=pass_count,
        saved_share=1 - 1 / max(time_ns / longest_ns, 1),
        is_loop=2 * int(gpu.dur_ns[rows[foreach]].sum()) < time_ns,
        is_starved=is_starved,
    )


def _spans_of_steps(rank: Rank, rows: Int64Array, step: Int64Array) -> Intervals:
    """From the first to the last of the GPU items of each step.

    Args:
        rank: The rank.
        rows: The GPU items.
        step: For each of them the number of its step, from 0.
    """
    gpu = rank.trace.gpu
    start_ns = np.full(int(step.max()) + 1, np.iinfo(np.int64).max)
    end_ns = np.full(len(start_ns), np.iinfo(np.int64).min)
    np.minimum.at(start_ns, step, gpu.start_ns[rows])
    np.maximum.at(end_ns, step, gpu.end_ns[rows])
    return intervals.union(start_ns, end_ns)


def _measure_longest_pass(rank: Rank, rows: Int64Array) -> tuple[float, int]:
    """The longest pass and the number of passes of GPU items, see `longest_pass`."""
    gpu, ops = rank.trace.gpu, rank.trace.ops
    op, dur_ns = gpu.op[rows], gpu.dur_ns[rows]
    op_name = np.append(ops.name, NONE)[op]
    # Without an op the kernel's name stands for it, and each launch counts.
    name = np.where(op_name >= 0, op_name, gpu.name[rows] + len(rank.trace.strings))
    launch = np.where(op >= 0, len(rows) + op, np.arange(len(rows)))
    _, kind = np.unique(name, return_inverse=True)
    time_ns = np.bincount(kind, weights=dur_ns)
    count = np.bincount(distinct((kind << 32) + launch) >> 32, minlength=len(time_ns))
    return longest_pass(time_ns, count)
