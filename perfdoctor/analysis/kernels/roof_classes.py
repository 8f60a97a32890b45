"""What binds each kernel, as the account splits the kernels' time: compute, bandwidth, or neither (latency).

Latency binds a kernel that is short, near the time that launching any kernel and its last blocks take, or whose grid
leaves most multiprocessors empty. All others belong to the roof that needs more time, however far below it they run: a
kernel of 16 ms at 26 % of its roof is compute at 26 %. Which roof that is follows from the work of the kernel's op,
else from the kind of kernel, and for products of a pass that decodes a few tokens it is the memory's.

A convolution is one piece of work, whatever kernels it takes: layout conversions, im2col, the transforms of Winograd.
The share of its roof is its work over the time of all of them, and they belong where it belongs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.decoding import find_decoding_kernels
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE, LATENCY, NO_BOUND, KernelBounds
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int64Array

MIN_ROOF_SHARE = 0.4
"""A kernel that is short, or leaves most multiprocessors empty, and reaches this share of a roof nevertheless is bound
by the roof: 5 us for 4 MB on an H100 are the memory's, however short. Nsight Compute calls a kernel latency-bound that
reaches less than 60 % of every peak; roofs are what large kernels attain, 50 % to 90 % of the peaks."""
SHORT_KERNEL_NS = 10_000
"""Launching a kernel, filling the device and its last wave take 2 to 5 us (`estimate_latency_limits`): up to this time
they are a fourth of a kernel or more."""
ROOFS = ("compute", "bandwidth")
_WHOLE_WORK = 0.999  # of an op's FLOPs, where its kernels share them by time


class RoofShares(NamedTuple):
    """The roof of each GPU item, and how near it the item runs; arrays of one length.

    Attributes:
        roof: COMPUTE or BANDWIDTH; NO_BOUND for copies, sets and communication.
        share: The share of that roof that is reached (1 at the roof); NaN where work or rates are unknown. For the
            kernels of a convolution that of all of them together.
        dur_ns: The time that counts as its length: that of all its kernels for a convolution.
        leaves_gpu_empty: Whether its grid, or for a convolution each of the grids, leaves most multiprocessors empty.
    """

    roof: Int8Array
    share: FloatArray
    dur_ns: Int64Array
    leaves_gpu_empty: BoolArray


@frozen_dataclass
class BucketRoof:
    """How near its roof a bucket of kernels runs.

    Attributes:
        share: The time that its kernels of known work would take at their roofs over the time that they took (0 to 1).
        known_share: The share (0 to 1) of the bucket's kernel time whose roof is known.
    """

    share: float
    known_share: float


def roof_shares_of(classes: KernelClasses, costs: KernelCosts, bounds: KernelBounds) -> RoofShares:
    """The roof of each GPU item, and how near it the item runs."""
    share = bounds.roof_share
    decodes = find_decoding_kernels(classes) & np.isnan(share)
    roof = np.where(decodes & (bounds.nearest_roof != NO_BOUND), BANDWIDTH, bounds.nearest_roof).astype(np.int8)
    shares = RoofShares(roof, share, classes.trace.gpu.dur_ns.copy(), bounds.leaves_gpu_empty.copy())
    rows = _convolution_rows(costs, bounds)
    if len(rows):
        _join_kernels_of_convolutions(classes, costs, bounds, rows, shares)
    return shares


def roof_classes_of(bounds: KernelBounds, shares: RoofShares, min_roof_share: float = MIN_ROOF_SHARE) -> Int8Array:
    """For each GPU item COMPUTE, BANDWIDTH or LATENCY; NO_BOUND for copies, sets and communication.

    A kernel that is short or leaves most multiprocessors empty belongs to a roof from the share `min_roof_share`
    (0 to 1) of it on. What is short and of unknown work is so by `KernelBounds.short`.
    """
    short = np.where(np.isnan(shares.share), bounds.short, shares.dur_ns <= SHORT_KERNEL_NS)
    latency = (short | shares.leaves_gpu_empty) & ~(shares.share >= min_roof_share)
    return np.where(latency & (shares.roof != NO_BOUND), LATENCY, shares.roof).astype(np.int8)


def bucket_roofs_of(
    dur_ns: Int64Array, shares: RoofShares, roof_classes: Int8Array, in_window: BoolArray
) -> Mapping[str, BucketRoof | None]:
    """How near their roofs the kernels of "compute" and of "bandwidth" run; None where no work or no rate is known."""
    result: dict[str, BucketRoof | None] = dict.fromkeys(ROOFS)
    for name, bucket in zip(ROOFS, (COMPUTE, BANDWIDTH), strict=True):
        rows = in_window & (roof_classes == bucket)
        known = rows & ~np.isnan(shares.share)
        known_ns = int(dur_ns[known].sum())
        if known_ns:
            at_roof_ns = float((np.minimum(shares.share[known], 1.0) * dur_ns[known]).sum())
            result[name] = BucketRoof(at_roof_ns / known_ns, known_ns / int(dur_ns[rows].sum()))
    return result


def _convolution_rows(costs: KernelCosts, bounds: KernelBounds) -> Int64Array:
    """The kernels of convolutions of known cost, helpers included."""
    is_convolution = costs.match_op_costs(lambda cost: cost.kind == "convolution")
    return np.flatnonzero(is_convolution[costs.op_cost] & (bounds.nearest_roof != NO_BOUND))


def _join_kernels_of_convolutions(
    classes: KernelClasses, costs: KernelCosts, bounds: KernelBounds, rows: Int64Array, shares: RoofShares
) -> None:
    """Give the kernels of each convolution one roof, one share of it and one length.

    Where the FLOPs of a gradient could not be attributed, the kernels keep their own.
    """
    gpu = classes.trace.gpu
    _, op = np.unique(gpu.op[rows], return_inverse=True)

    def sum_by_op(values: FloatArray) -> FloatArray:
        return np.bincount(op, weights=np.nan_to_num(values)).astype(np.float64)

    compute_ns, memory_ns = (sum_by_op(times[rows]) for times in bounds.times_at_roofs)
    spent_ns = sum_by_op(gpu.dur_ns[rows].astype(np.float64))
    fills = sum_by_op((~bounds.leaves_gpu_empty[rows]).astype(np.float64)) > 0
    whole = np.array([cost.flops for cost in costs.op_costs], np.float64)[costs.op_cost[rows]]
    known = sum_by_op(costs.flops[rows])[op] >= _WHOLE_WORK * whole
    share = np.maximum(compute_ns, memory_ns) / np.maximum(spent_ns, 1)
    known &= share[op] > 0  # 0 where the device's rates are unknown
    rows, op = rows[known], op[known]
    shares.roof[rows] = np.where(compute_ns > memory_ns, COMPUTE, BANDWIDTH)[op]
    shares.share[rows] = share[op]
    shares.dur_ns[rows] = spent_ns[op].astype(np.int64)
    shares.leaves_gpu_empty[rows] = ~fills[op]
