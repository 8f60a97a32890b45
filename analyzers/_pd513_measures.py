"""What PD513 measures: page faults, and products in half precision on a CPU that has no instructions for their type.

PyTorch gives bfloat16 and float16 to oneDNN only where the CPU has vector instructions for them (AVX-512 and later on
x86); elsewhere plain loops compute them. Measured on a CPU with AVX2 (AMD EPYC, 2.4 GHz, torch 2.13, one thread, CPU
time), in GFLOP/s: float32 50 to 84 for products of 32 rows and more and for a convolution, 11 to 19 for 4 rows, which
reading the weights limits; bfloat16 0.5 to 1.3, 9 to 11 and 18 to 23 by which input is transposed, 2.7 batched, 1.9 for
the convolution; float16 0.5 to 1.3, 11 to 13 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import FoundWork, project, rank_with_shapes, time_of_ops
from perfdoctor.rules import (
    Evidence,
    Int64Array,
    OpCost,
    Rank,
    Saving,
    StepTimes,
    cost_of_op,
    distinct_rows,
    format_per_step,
    read_advice,
    step_times_of,
)
from perfdoctor.rules import intervals as iv

# What one thread does in float32 in a nanosecond: FLOPs of a large product, and bytes.
_FLOPS_PER_NS, _BYTES_PER_NS = 50.0, 10.0
# From so many times the time in float32 on nothing but a fallback explains it.
_MIN_TIMES_FLOAT32 = 2.0
# Times of the float32 product over its estimate, at best, as expected, at worst.
_FLOAT32_TIMES = (0.6, 1.0, 2.0)
# Smaller products gained nothing by bfloat16: under autocast on a CPU with AMX (torch 2.13, one thread, CPU time, both
# passes) layers of 256 x 256 and of 512 x 512 for as many rows took 0.61 and 0.32 of their time, convolutions of 16 to
# 64 channels 0.76 to 0.41, layers of 64 to 256 for 32 and 64 rows 1.36 to 2.54, encoders of 64 to 256 2.12 to 0.71.
_MIN_FLOPS = 30e6
_PRODUCT = r"^aten::(addmm|mm|bmm|baddbmm|convolution|convolution_backward)$"
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}
# Of the smallest pages; a batch from a worker lies in fresh shared memory.
_PAGE_BYTES = 4096
# The system counts its time by ticks of 4 to 10 ms: shorter sums say nothing.
_MIN_TIME_NS = 50_000_000
# From so many cores on that other programs use, less than a core of ours is no sign of waiting for something else.
_MIN_OTHERS = 0.5


def find_half_products(rank: Rank) -> FoundWork | None:
    """The slow products of the window in half precision; None without any, and where inputs are unknown."""
    shaped = rank_with_shapes(rank)
    if shaped is None:
        return None
    ops = shaped.trace.ops
    threads = max(rank.facts.cpu.torch_threads or 1, 1)
    slow, costs = np.zeros(len(ops), bool), dict[int, OpCost]()
    for cost, at in _products_of(shaped):
        if cost.dtype in _TYPES and np.median(ops.dur_ns[at]) >= _MIN_TIMES_FLOAT32 * _float32_ns(cost, threads):
            slow[at] = True
            costs |= dict.fromkeys(at.tolist(), cost)
    marks = project(rank, shaped, slow)
    if not marks.any():
        return None
    there_ns, float32_ns = int(ops.dur_ns[slow].sum()), sum(_float32_ns(cost, threads) for cost in costs.values())
    time, flops = time_of_ops(rank, marks), sum(cost.flops for cost in costs.values())
    cost_ns = rank.per_step(iv.total(time))
    remaining = (min(times * float32_ns / there_ns, 1.0) for times in _FLOAT32_TIMES)
    high, expected, low = (round(cost_ns * (1 - each)) for each in remaining)
    dtype = max(
        _TYPES.values(), key=lambda name: sum(ops.dur_ns[at] for at in costs if _TYPES[costs[at].dtype] == name)
    )
    return FoundWork(
        f"Products in {dtype} reach {flops / there_ns:.2g} GFLOP/s on this CPU, where float32 reaches some "
        f"{flops / float32_ns:,.0f}",
        read_advice("products in half precision", dtype=dtype),
        time,
        Saving(low, expected, high, "bounded"),
        rank.places.line_of_ops(marks),
        (Evidence("products and convolutions", format_per_step(rank, int(marks.sum()))),),
        confidence=0.8,
        subject="half precision",
    )


def share_of_large_float32(rank: Rank) -> float:
    """The share (0 to 1) of the step in products and convolutions in float32 that are large; 0 where unknown."""
    shaped = rank_with_shapes(rank)
    if shaped is None:
        return 0.0
    large = np.zeros(len(shaped.trace.ops), bool)
    for cost, at in _products_of(shaped):
        large[at] = cost.dtype == "fp32" and cost.flops >= _MIN_FLOPS
    return rank.share(rank.per_step(iv.total(time_of_ops(rank, project(rank, shaped, large))))) or 0.0


def _products_of(shaped: Rank) -> Iterator[tuple[OpCost, Int64Array]]:
    """The kinds of products and convolutions in a window with recorded inputs, each with its rows."""
    trace, ops = shaped.trace, shaped.trace.ops
    rows = np.flatnonzero(trace.match_rows(ops, _PRODUCT) & (ops.dims >= 0) & iv.contains(shaped.window, ops.start_ns))
    kinds = tuple(column[rows] for column in (ops.name, ops.dims, ops.types, ops.strides, ops.concrete))
    which, first = distinct_rows(kinds, len(trace.strings))
    for kind, codes in enumerate(zip(*(column[first].tolist() for column in kinds), strict=True)):
        cost = cost_of_op(trace.strings[codes[0]], *map(trace.text, codes[1:]))
        if cost is not None:
            yield cost, rows[which == kind]


def _float32_ns(cost: OpCost, threads: int) -> float:
    """About how long the same op takes in float32, whose elements are twice as large."""
    return (cost.flops / _FLOPS_PER_NS + 2 * cost.bytes / _BYTES_PER_NS) / threads


class PageFaults(NamedTuple):
    """Page faults of steps without a profiler.

    Attributes:
        pages: Minor faults per step.
        system_ns: CPU time of the system per step, of all threads.
        step_ns: The step.
        cores: Cores that the process uses; where other programs use some, it might use more.
        threads: Threads of PyTorch.
    """

    pages: float
    system_ns: float
    step_ns: float
    cores: float
    threads: int

    @property
    def ns_per_fault(self) -> float:
        """CPU time of the system for a fault."""
        return self.system_ns / max(self.pages, 1)

    @property
    def share(self) -> float:
        """Share (0 to 1) of the step that faults take: threads that share an op fault beside each other."""
        return min(self.system_ns / max(self.cores, 1e-3) / max(self.step_ns, 1.0), 1.0)


def measure_page_faults(rank: Rank) -> PageFaults | None:
    """The page faults of a rank's steps; None where they were not captured, or steps are too few or too short."""
    steps: StepTimes | None = rank.run_steps
    usual = None
    if rank.run_steps is not None:
        usual = np.array([not each for each in rank.run_steps.contains], bool)
    if steps is None or steps.minor_faults is None:
        steps, usual = step_times_of(rank.facts.base), None
    if steps is None or steps.minor_faults is None or steps.system_cpu_ns is None or steps.process_cpu_ns is None:
        return None
    rows = np.ones(len(steps), bool) if usual is None else usual
    dur_ns = steps.dur_ns[rows]
    if not len(dur_ns) or dur_ns.sum() < _MIN_TIME_NS:
        return None
    pages = float(np.median(steps.minor_faults[rows])) - _pages_of_batches(rank)
    used = float(steps.process_cpu_ns[rows].sum() / dur_ns.sum())
    is_shared = (rank.facts.cores.others or 0.0) >= _MIN_OTHERS
    return PageFaults(
        max(pages, 0.0),
        float(steps.system_cpu_ns[rows].mean()),
        float(dur_ns.mean()),
        used if is_shared else max(used, 1.0),
        rank.facts.cpu.torch_threads or 1,
    )


def _pages_of_batches(rank: Rank) -> float:
    """Pages of shared memory in which workers hand over the batches of a step."""
    return sum(each.batch_bytes or 0 for each in rank.facts.loaders if each.num_workers) / _PAGE_BYTES
