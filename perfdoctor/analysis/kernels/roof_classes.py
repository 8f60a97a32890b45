"""Near which roof each kernel runs: compute, bandwidth, or neither (latency), as the account splits the kernels' time.

A kernel whose work is known belongs to its nearest roof if it reaches a fair share of what the device attains there,
else to latency: neither unit is what it waits for. Where the work is unknown, `KernelBounds` decides: by the kernel's
length and grid, then by its category.

A convolution is one piece of work, whatever kernels it takes: layout conversions, im2col, the transforms of Winograd.
The share of its roof is its work over the time of all of them, and they belong where it belongs.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE, LATENCY, NO_BOUND, KernelBounds
from perfdoctor.trace.arrays import FloatArray, Int8Array, Int64Array

MIN_ROOF_SHARE = 0.4
"""Kernels from this share of a roof on belong to it. Nsight Compute calls a kernel latency-bound that reaches less than
60 % of every peak; roofs are what large kernels attain (50 % of the peak on an MI300X, 90 % on an H100), and kernels of
libraries that nobody would call slow reach 40 % to 100 % of them."""
_WHOLE_WORK = 0.999  # of an op's FLOPs, where its kernels share them by time


def roof_classes_of(
    classes: KernelClasses, costs: KernelCosts, bounds: KernelBounds, min_roof_share: float = MIN_ROOF_SHARE
) -> Int8Array:
    """For each GPU item COMPUTE, BANDWIDTH or LATENCY; NO_BOUND for copies, sets and communication.

    A kernel belongs to a roof from the share `min_roof_share` (0 to 1) of it on.
    """
    roof, share = bounds.nearest_roof.copy(), bounds.roof_share
    rows = _convolution_rows(costs, bounds)
    if len(rows):
        roof[rows], share[rows] = _share_of_convolutions(classes, costs, bounds, rows)
    by_work = np.where(share >= min_roof_share, roof, LATENCY)
    by_category = np.where(bounds.kind == LATENCY, LATENCY, roof)
    result = np.where(np.isnan(share), by_category, by_work)
    return np.where(bounds.nearest_roof == NO_BOUND, NO_BOUND, result).astype(np.int8)


def _convolution_rows(costs: KernelCosts, bounds: KernelBounds) -> Int64Array:
    """The kernels of convolutions of known cost, helpers included."""
    is_convolution = costs.match_op_costs(lambda cost: cost.kind == "convolution")
    return np.flatnonzero(is_convolution[costs.op_cost] & (bounds.nearest_roof != NO_BOUND))


def _share_of_convolutions(
    classes: KernelClasses, costs: KernelCosts, bounds: KernelBounds, rows: Int64Array
) -> tuple[Int8Array, FloatArray]:
    """The roof of each kernel's convolution, and the share of it that the convolution reaches with all its kernels.

    Where the FLOPs of a gradient could not be attributed, the kernels keep their own.
    """
    gpu = classes.trace.gpu
    _, op = np.unique(gpu.op[rows], return_inverse=True)

    def sum_by_op(values: FloatArray) -> FloatArray:
        return np.bincount(op, weights=np.nan_to_num(values)).astype(np.float64)

    compute_ns, memory_ns = (sum_by_op(times[rows]) for times in bounds.times_at_roofs)
    spent_ns = sum_by_op(gpu.dur_ns[rows].astype(np.float64))
    whole = np.array([cost.flops for cost in costs.op_costs], np.float64)[costs.op_cost[rows]]
    known = sum_by_op(costs.flops[rows])[op] >= _WHOLE_WORK * whole
    share = np.maximum(compute_ns, memory_ns) / np.maximum(spent_ns, 1)
    roof = np.where(compute_ns > memory_ns, COMPUTE, BANDWIDTH)
    known &= share[op] > 0  # 0 where the device's rates are unknown
    return (
        np.where(known, roof[op], bounds.nearest_roof[rows]).astype(np.int8),
        np.where(known, share[op], bounds.roof_share[rows]),
    )
