"""How long a step takes with a larger batch: what of it is fixed, and what grows with the samples.

What does not grow: Python and the dispatcher, the optimizer, zeroing, all-reduced gradients. Kernels of a GPU do not
grow either as long as their grids leave multiprocessors without a block: a batch 32 times as large kept an A100 busy
for 1.9 times as long. Products that load large weights for few rows wait for the weights,
whatever the rows. What computes at a roof, moves activations, or loads and copies samples grows with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.rules import (
    BANDWIDTH,
    KERNEL,
    LATENCY,
    MEMCPY,
    NONE,
    BoolArray,
    FloatArray,
    GpuRows,
    Intervals,
    OpCost,
    Rank,
    Trace,
    cost_of_op,
    distinct_rows,
    lengthen_items,
    nesting,
    quantiles,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_PRODUCT = r"^aten::(mm|addmm|bmm|baddbmm|mkl_linear|linear)$"
# Pieces of ops up to this are calls of the framework, which do not grow (`framework_time` has the same limit).
_FRAMEWORK_NS = 5_000
# Products of this many rows wait for the weights on a CPU: 4 rows took as long as 8 (1024 x 1024, float32, two cores),
# 16 took 1.3 times as long, 32 twice; one row is another routine, and two take nearly twice as long as one.
_ROWS_THAT_WAIT = range(3, 9)
# What a product that waits for its weights takes at most beyond the growth of its bytes.
_LOADING_SPREAD = 1.3
# A kernel under this share of its roof waits for something else than the roof, at least in part.
_MIN_ROOF_SHARE = 0.4
# What takes this many times as long with twice the samples grows with them.
_GROWS = 1.5
# Of steps with another number of samples: how many of each make a line, and how far apart the numbers are at least.
_MIN_STEPS, _MAX_SAMPLES_RATIO = 3, 0.75


class StepRange(NamedTuple):
    """How long a step takes: at least, as expected, at most, in ns without the profiler."""

    low_ns: float
    expected_ns: float
    high_ns: float


class BatchScaling(NamedTuple):
    """The step of a rank with larger batches.

    Attributes:
        step_ns: The step now.
        twice: The step with a batch twice as large.
        fixed: The time that does not grow by half of that or more, which more samples would share.
        basis: How that is known, in words.
    """

    step_ns: float
    twice: StepRange
    fixed: Intervals
    basis: str

    def at(self, ratio: float) -> StepRange:
        """The step with a batch `ratio` times as large, on the line through the steps with one and two times as many.

        Kernels that do not fill the GPU lie under that line, and none above it.
        """
        return StepRange(*(self.step_ns + (ratio - 1) * max(each - self.step_ns, 0.0) for each in self.twice))


def scale_batch(rank: Rank) -> BatchScaling | None:
    """The step of a rank with a larger batch: by steps of other sizes that were timed, else by its work; else None."""
    if rank.device_kind == "gpu":
        by_work, fixed, basis = _scale_gpu_step(rank), _fixed_time_with_gpu(rank), "kernels by their bounds, replayed"
    elif rank.device_kind == "cpu":
        by_work, fixed, basis = *_scale_cpu_step(rank), "ops by their shapes"
    else:
        return None
    recorded = _fit_recorded_sizes(rank)
    if recorded is not None:
        basis = "steps with fewer samples, as timed"
    twice = recorded or by_work
    return None if twice is None else BatchScaling(rank.mean_step_ns, twice, fixed, basis)


# --- steps of several sizes -------------------------------------------------------------------------------------------


def _fit_recorded_sizes(rank: Rank) -> StepRange | None:
    """A line through steps of the most common number of samples and those of fewer; None without enough of them.

    As the last batch of an epoch is smaller, such steps occur by themselves.
    """
    steps = rank.run_steps
    if steps is None or steps.samples is None or not len(steps):
        return None
    numbers, counts = np.unique(steps.samples, return_counts=True)
    usual = numbers[counts.argmax()]
    is_other = np.array([bool(each) for each in steps.contains])
    full = (steps.samples == usual) & ~is_other
    few = (steps.samples <= _MAX_SAMPLES_RATIO * usual) & (steps.samples > 0) & ~is_other
    if np.count_nonzero(full) < _MIN_STEPS or np.count_nonzero(few) < _MIN_STEPS:
        return None
    missing = 1 - float(np.median(steps.samples[few])) / float(usual)
    full_ns, few_ns = (quantiles(steps.dur_ns[rows]) for rows in (full, few))
    usual_ns = full_ns[1]
    slopes = sorted(
        max(each, 0.0) / missing for each in (full_ns[0] - few_ns[2], full_ns[1] - few_ns[1], full_ns[2] - few_ns[0])
    )
    step_ns = rank.mean_step_ns
    return StepRange(*(step_ns * (1 + min(slope / usual_ns, 1.0)) for slope in slopes))


# --- a GPU ------------------------------------------------------------------------------------------------------------


def _scale_gpu_step(rank: Rank) -> StepRange | None:
    """The replay of a step whose kernels have twice as much to do; None where the trace cannot be replayed."""
    replay = rank.replay
    if replay is None or replay.gates.reason is not None:
        return None
    rows = GpuRows(rank.trace.gpu, np.ones(len(rank.trace.gpu), bool))
    host_ns = _growing_host_ns(rank)
    steps = []
    for factor in grow_kernels(rank, 2.0):
        lags_ns = lengthen_items(replay.graph, rows, (rank.trace.gpu.dur_ns * factor).astype(np.int64))
        longer = replay.graph.span_ns(replay.graph.node_times(lags_ns)) / replay.baseline_window_ns
        # Where the CPU runs ahead of the GPU its steps do not show how long the GPU takes.
        steps.append(max(longer * replay.baseline_step_ns, _busy_ns(rank, factor)))
    return StepRange(steps[0], steps[1] + host_ns, steps[2] + host_ns)


def _fixed_time_with_gpu(rank: Rank) -> Intervals:
    _, likely, _ = grow_kernels(rank, 2.0)
    return iv.subtract(rank.window, rank.time_in_window(rank.in_window & (likely >= _GROWS)))


def _busy_ns(rank: Rank, factor: FloatArray) -> float:
    """How long the GPU works in a step when each item takes `factor` times as long; items beside others count once."""
    dur_ns = rank.trace.gpu.dur_ns[rank.in_window].astype(np.float64)
    if not dur_ns.sum():
        return 0.0
    busy_ns = rank.per_step(iv.total(rank.time_in_window(rank.in_window)))
    return float(busy_ns * np.average(factor[rank.in_window], weights=dur_ns))


def grow_kernels(rank: Rank, ratio: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each GPU item how many times as long it takes with so many times the samples: at least, expected, at most."""
    gpu, bounds = rank.trace.gpu, rank.bounds
    fixed = _is_fixed(rank)
    floor = np.minimum(bounds.shortest_kernel_ns / np.maximum(gpu.dur_ns, 1), 1.0)
    high = floor + ratio * (1 - floor)
    few_rows = _growth_of_products(rank, ratio)
    is_far_below = rank.roof_shares.share < _MIN_ROOF_SHARE
    is_loading = (rank.roof_classes == BANDWIDTH) & ~bounds.assumed & ~is_far_below
    high = np.where(is_loading, np.minimum(high, _LOADING_SPREAD * few_rows), high)
    low, likely = np.minimum(high, few_rows), np.minimum(high, (few_rows + ratio) / 2)
    waves = _waves_of(rank)
    # Sums over the batch, such as gradients of weights, get longer without more blocks.
    is_latency = (
        (rank.roof_classes == LATENCY) | is_far_below | (bounds.assumed & (np.nan_to_num(waves, nan=1.0) < 1.0))
    )
    room = np.where(np.isnan(waves), 1.0, np.clip(ratio * waves, 1.0, ratio))
    low = np.where(is_latency, np.minimum(low, room), low)
    likely = np.where(
        is_latency, np.minimum(high, np.where(np.isnan(waves), (1 + ratio) / 2, (3 * room + ratio) / 4)), likely
    )
    is_copy = gpu.kind == MEMCPY
    grown = [np.where(is_copy, ratio, each) for each in (low, likely, high)]
    grown = [np.where((gpu.kind == KERNEL) | is_copy, each, 1.0) for each in grown]
    low, likely, high = (np.where(fixed, 1.0, np.maximum(each, 1.0)) for each in grown)
    return low, likely, high


def _is_fixed(rank: Rank) -> BoolArray:
    """For each GPU item whether it works on parameters alone: optimizers, zeroing, clipping, all-reduced gradients."""
    trace = rank.trace
    fixed = rank.traffic.optimizer_step >= 0
    for pattern in (vocabulary.ZERO_GRAD, vocabulary.OPTIMIZER_RANGE):
        fixed |= rank.kernels.launched_in(pattern).mask
    fixed |= rank.kernels.of_category("communication").mask
    result: BoolArray = fixed & (trace.gpu.kind != MEMCPY)
    return result


def _waves_of(rank: Rank) -> FloatArray:
    """For each GPU item its blocks over the multiprocessors of the device; NaN where one is not known."""
    blocks, count = rank.trace.gpu.blocks, rank.hardware.sm_count
    if blocks is None or not count:
        return np.full(len(rank.trace.gpu), np.nan)
    return np.where(blocks > 0, blocks / count, np.nan)


def _growth_of_products(rank: Rank, ratio: float) -> FloatArray:
    """For each GPU item how its bytes grow where it is a product of few rows; `ratio` for all others."""
    costs = rank.kernel_costs
    growth = np.array([*(_growth_of_bytes(cost, ratio) for cost in costs.op_costs), ratio], np.float64)
    return growth[costs.op_cost]


def _growth_of_bytes(cost: OpCost, ratio: float) -> float:
    """How many times as much a product moves when its smallest side, which is taken for the samples, grows."""
    if cost.kind != "gemm" or not cost.m or not cost.n or not cost.k:
        return ratio
    small, middle, large = sorted((cost.m, cost.n, cost.k))
    before = small * middle + small * large + middle * large
    after = ratio * small * (middle + large) + middle * large
    return after / before


def _growing_host_ns(rank: Rank) -> float:
    """Time of the CPU per step that grows with the samples as far as anybody knows: loading, and long pauses."""
    pauses = iv.union_of((rank.loader_waits.intervals, *(group.time for group in rank.pauses if not group.once)))
    return rank.per_step(iv.total(iv.intersect(pauses, rank.window)))


# --- a CPU ------------------------------------------------------------------------------------------------------------


def _scale_cpu_step(rank: Rank) -> tuple[StepRange, Intervals]:
    """The step with twice the samples, and its fixed time: ops of the passes get longer, as their shapes say.

    What runs outside of ops (unexplained) may loop over samples: it counts as growing. Of ops of the backward pass on
    another thread only the time counts in which they ran.
    """
    step_ns = rank.mean_step_ns
    trace, ops = rank.trace, rank.trace.ops
    parts = rank.account.parts
    outside = iv.union_of((rank.loader_waits.intervals, parts["idle_unexplained"]))
    outside_ns = rank.per_step(iv.total(iv.intersect(outside, rank.window)))
    own_ns = np.maximum(nesting.own_durations(ops.parent, ops.dur_ns) - _FRAMEWORK_NS, 0)
    own_ns[~_in_passes(rank)] = 0
    by_name = _growth_by_name(rank)
    growth = np.array([by_name.get(name, (2.0, 2.0)) for name in trace.strings])[ops.name] - 1
    min_ns, max_ns = (rank.per_step(round(float((own_ns * growth[:, side]).sum()))) for side in (0, 1))
    min_ns, max_ns = min(min_ns, step_ns), min(max_ns, step_ns)
    host_ns = step_ns + outside_ns
    # Ops that mostly compute themselves: the time of others is that of the ops inside.
    growing = (2 * own_ns > ops.dur_ns) & (growth[:, 0] >= _GROWS - 1)
    fixed = iv.subtract(rank.window, iv.union_of((outside, iv.union(ops.start_ns[growing], ops.end_ns[growing]))))
    return StepRange(step_ns + min_ns, host_ns + (min_ns + max_ns) / 2, host_ns + max_ns), fixed


def _in_passes(rank: Rank) -> BoolArray:
    """For each op whether it ran in the window, within an op that the program itself called outside of optimizers."""
    ops = rank.trace.ops
    is_called = np.zeros(len(ops), bool)
    is_called[ops_of_program(rank.trace, rank.window)] = True
    return is_called[nesting.outermost(ops.parent, np.arange(len(ops), dtype=np.int32))]


def _growth_by_name(rank: Rank) -> dict[str, tuple[float, float]]:
    """By the name of an op how many times as long its calls take with twice the samples: at least, at most."""
    source: Trace | None = rank.trace if "shapes" in rank.available_data else rank.evidence_trace
    if source is None:
        return {}
    ops = source.ops
    rows = np.flatnonzero((ops.dims != NONE) & source.match_rows(ops, _PRODUCT))
    if not len(rows):
        return {}
    which, first = distinct_rows(tuple(c[rows] for c in (ops.name, ops.dims, ops.types)), len(source.strings))
    growth = np.full((len(first), 2), 2.0)
    for number, row in enumerate(rows[first].tolist()):
        texts = (source.text(int(column[row])) for column in (ops.dims, ops.types, ops.strides, ops.concrete))
        cost = cost_of_op(source.strings[ops.name[row]], *texts)
        if cost is not None:
            growth[number] = _growth_on_cpu(cost)
    dur_ns = ops.dur_ns[rows].astype(np.float64)
    total = np.bincount(ops.name[rows], dur_ns)
    sides = [np.bincount(ops.name[rows], dur_ns * growth[which, side]) for side in (0, 1)]
    return {
        source.strings[code]: (float(sides[0][code] / total[code]), float(sides[1][code] / total[code]))
        for code in np.flatnonzero(total).tolist()
    }


def _growth_on_cpu(cost: OpCost) -> tuple[float, float]:
    low = _growth_of_bytes(cost, 2.0)
    waits = None not in (cost.m, cost.n, cost.k) and min(cost.m or 0, cost.n or 0, cost.k or 0) in _ROWS_THAT_WAIT
    return low, min(_LOADING_SPREAD * low, 2.0) if waits else 2.0
