"""The steps of optimizers on the GPU: how often they go over the parameters, and how long the GPU waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from perfdoctor.rules import (
    NONE,
    GpuRows,
    Int64Array,
    Intervals,
    OptimizerFacts,
    Rank,
    distinct,
    frozen_dataclass,
    intervals,
    occurring,
    optimizer_steps_of,
    traffic_kinds,
    vocabulary,
)

# PD303's thresholds.
# min_share: what could be saved, of the step; that of a low finding, as the fix is one argument.
# min_passes: 1 is fused, unless the GPU waits for a loop over at least min_loop tensors (the smallest network of
# the real traces, a ResNet-50, has 161; optimizers of another kind launch up to 24).
# min_cpu_share: what an optimizer takes of the step of a program on the CPU alone, which a look at that step would stop
# at: every slice of 5 % has to be explained.
# min_kernels: fewer kernels a step are a toy, or fused in all but name.
SETTINGS: Mapping[str, float] = {
    "min_share": 0.01,
    "min_passes": 2,
    "min_kernels": 5,
    "min_loop": 50,
    "min_cpu_share": 0.05,
}

_FUSED_KERNEL = r"(?i)fused_?(adam|sgd|adagrad|lamb)|AdamFunctor|SGDFunctor|LAMB|AdagradFunctor|LionFunctor"
_FOREACH_KERNEL = r"multi_tensor_apply"
# Ops that take less than this share of the optimizer's time are counters and checks, not passes.
_MIN_PASS_SHARE = 0.05


@frozen_dataclass(eq=False)
class GpuOptimizer:
    """The steps of one class of optimizer in the window.

    Attributes:
        optimizer: Name of the class.
        rows: The GPU items that they launched.
        first_rows: The first GPU item of each step.
        time: When those ran; if `is_starved` also when the GPU waited for their launches, and when it waited while the
            CPU was in the step.
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


def unfused_optimizers_of(rank: Rank, settings: Mapping[str, float]) -> Iterator[GpuOptimizer]:
    """Those of `gpu_optimizers_of` of which a fused one would save enough; see the thresholds of PD303."""
    for steps in gpu_optimizers_of(rank):
        if steps.optimizer == "LBFGS":  # its products of vectors are no passes that one kernel could make
            continue
        kernels = rank.count_per_step(len(steps.rows))
        is_starved_loop = steps.is_loop and steps.is_starved and kernels >= settings["min_loop"]
        if not is_starved_loop and steps.pass_count < settings["min_passes"]:
            continue
        if kernels < settings["min_kernels"] or captured_settings_of(rank, steps.optimizer).fused:
            continue
        if (rank.share(rank.per_step(steps.max_saving_ns)) or 0) >= settings["min_share"]:
            yield steps


def captured_settings_of(rank: Rank, optimizer: str) -> OptimizerFacts:
    """What the capture says of the first optimizer of a class; empty where it says nothing."""
    return next((each for each in rank.facts.optimizers if each.class_ == optimizer), OptimizerFacts())


def idle_of_unfused_optimizers(rank: Rank) -> Intervals:
    """When the GPU idles in the steps of such optimizers: PD303 claims it, so that no other rule does."""
    if not len(rank.trace.ranges):
        return intervals.EMPTY
    claimed = intervals.union_of(each.time for each in unfused_optimizers_of(rank, SETTINGS))
    return intervals.intersect(claimed, rank.account.parts["idle_launch"])


def gpu_optimizers_of(rank: Rank) -> Iterator[GpuOptimizer]:
    """Each class of optimizer that steps in the window, but for fused, compiled, and compute-bound ones."""
    trace = rank.trace
    range_name = np.append(trace.ranges.name, NONE)[rank.traffic.optimizer_step]
    for code in occurring(range_name[rank.traffic.match_rows(traffic_kinds.OPTIMIZER)]).tolist():
        found = _measure_optimizer(rank, np.flatnonzero(range_name == code), trace.strings[code])
        if found is not None:
            yield found


def _measure_optimizer(rank: Rank, launched: Int64Array, range_name: str) -> GpuOptimizer | None:
    """What the steps of one class of optimizer launched; None where a rule about passes does not fit it."""
    trace, gpu = rank.trace, rank.trace.gpu
    is_update = rank.traffic.match_rows(traffic_kinds.OPTIMIZER)[launched]
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
    spans = _spans_of_steps(rank, rows, step)
    all_steps = optimizer_steps_of(trace)
    if len(all_steps.closure_start_ns):  # an optimizer that calls closures between its own ops (LBFGS)
        spans = intervals.intersect(spans, all_steps.own_time(distinct(rank.traffic.optimizer_step[rows])))
    waits = intervals.intersect(spans, rank.account.parts["idle_launch"])
    is_starved = intervals.total(waits) > intervals.total(busy)
    return GpuOptimizer(
        optimizer=vocabulary.optimizer_class(range_name),
        rows=GpuRows(gpu, rows),
        first_rows=GpuRows(gpu, rows[first]),
        time=intervals.union_of((busy, waits, _idle_in_ranges(rank, rows))) if is_starved else busy,
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


def _idle_in_ranges(rank: Rank, rows: Int64Array) -> Intervals:
    """When the GPU waited for launches while the CPU was in the steps that launched these items.

    It begins before the first item: the CPU groups the parameters first.
    """
    step = distinct(rank.traffic.optimizer_step[rows])
    inside = optimizer_steps_of(rank.trace).own_time(step)
    return intervals.intersect(inside, rank.account.parts["idle_launch"])


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


def longest_pass(time_ns: npt.NDArray[Any], count: Int64Array) -> tuple[float, int]:
    """Time of the longest pass over the parameters (all steps together), and the number of passes a step.

    `count` is how often each kind was called: the rarest that is no counter or check is called once a pass and
    parameter.
    """
    is_pass = time_ns >= _MIN_PASS_SHARE * time_ns.sum()
    each = np.maximum(np.round(count[is_pass] / count[is_pass].min()), 1)
    return float((time_ns[is_pass] / each).max()), int(each.sum())
