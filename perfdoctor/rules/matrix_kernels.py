"""Kernels of matrix products and convolutions, and what a faster way would save: the rules PD201 to PD208 share it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import orjson

from perfdoctor.analysis.launching_ops import launching_op_names
from perfdoctor.analysis.queries import GpuQuery
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import NONE
from perfdoctor.trace.tables.distinct import occurring

MatrixCategory: TypeAlias = Literal["gemm", "convolution"]

MIN_TIME_NS = 10_000
"""Kernels that take less than this in total are not reported."""

# A dimension this small leaves a Tensor Core tile (16 x 8 x 16) mostly empty: such a product is bandwidth-bound.
_SMALL_DIMENSION = 16
_CONVOLUTION_OP = r"(?i)conv(olution|_|\d)"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A faster way to compute the same product.

    Attributes:
        name: Its name in a report, such as "tf32".
        peak_ratio: Its peak FLOP/s over the peak of the unit that is used now; None if unknown.
        flops_per_s: The FLOP/s that it attains; None if unknown.
        bytes_ratio: Its memory traffic over the present one: a half where operands get half as wide.
        peak_type: The unit that it uses, a key of `Device.peaks_flops`; None if unknown.
    """

    name: str | None = None
    peak_ratio: float | None = None
    flops_per_s: float | None = None
    bytes_ratio: float = 1.0
    peak_type: str | None = None

    @property
    def best_share(self) -> float:
        """The share of its present time that a kernel takes at best, by the ratio of peaks; 0 where that is unknown."""
        return min(1 / self.peak_ratio, 1.0) if self.peak_ratio else 0.0


def find_matrix_kernels(rank: Rank, category: MatrixCategory) -> GpuQuery:
    """The kernels of the window that do the maths of matrix products, or of convolutions.

    Libraries compute convolutions by gemm kernels, too: a gemm kernel that a convolution op launched belongs to the
    convolutions. Helpers (split-K tails, layout copies) belong to neither.
    """
    trace = rank.trace
    is_convolution = np.append(trace.match_strings(trace.ops, _CONVOLUTION_OP), False)  # the last is for no op
    in_convolution = is_convolution[launching_op_names(trace)]
    maths = rank.kernels.where(rank.in_window & ~rank.verdicts.match_rows("na"))
    gemms = maths.of_category("gemm")
    if category == "gemm":
        return gemms.where(~in_convolution)
    return maths.of_category("convolution") | gemms.where(in_convolution)


def find_tensor_core_kernels(rank: Rank, category: MatrixCategory) -> GpuQuery:
    """Those of `find_matrix_kernels` that use Tensor Cores."""
    return find_matrix_kernels(rank, category).where(rank.verdicts.match_rows("yes"))


def saved_share(rank: Rank, kernels: GpuQuery, remedy: Remedy) -> float:
    """The share (0 to 1) of the time of some kernels that a remedy can save at most.

    By the roofline of each kernel where FLOPs, bytes and rates are known, else by the ratio of peaks; 1 where neither
    is known.
    """
    rows = kernels.mask
    dur_ns = rank.trace.gpu.dur_ns[rows].astype(np.float64)
    best_ns = dur_ns / remedy.peak_ratio if remedy.peak_ratio else np.zeros(len(dur_ns))
    bandwidth = rank.device.attainable_bandwidth_bytes_per_s if rank.device else None
    if remedy.flops_per_s and bandwidth:
        maths_s = rank.kernel_costs.flops[rows] / remedy.flops_per_s
        roofline_ns = np.maximum(maths_s, rank.kernel_costs.bytes[rows] * remedy.bytes_ratio / bandwidth) * 1e9
        best_ns = np.where(np.isnan(roofline_ns), best_ns, roofline_ns)
    return float(np.maximum(dur_ns - best_ns, 0).sum() / max(dur_ns.sum(), 1))


def exclude_small_products(rank: Rank, kernels: GpuQuery) -> GpuQuery:
    """The kernels whose op multiplies no matrices with a dimension of 16 or less; all of them without shapes."""
    trace, costs = rank.trace, rank.kernel_costs
    rows = np.flatnonzero(kernels.mask)
    dims = np.append(trace.ops.dims, np.int32(NONE))[trace.gpu.op[rows]]
    has_small_dims = np.zeros(len(trace.strings) + 1, bool)  # the last is for ops without shapes
    has_small_dims[[code for code in occurring(dims).tolist() if _has_small_dimension(trace.strings[code])]] = True
    has_small_cost = costs.match_op_costs(
        lambda c: c.kind == "gemm" and min(c.m or 0, c.n or 0, c.k or 0) <= _SMALL_DIMENSION
    )
    is_large = kernels.mask.copy()
    is_large[rows] = ~(has_small_dims[dims] | has_small_cost[costs.op_cost[rows]])
    return kernels.where(is_large)


@lru_cache(maxsize=4096)  # three rules ask
def _has_small_dimension(dims: str) -> bool:
    """Whether an op's recorded input sizes are two matrices with M, N or K <= 16; False where they are unreadable."""
    try:
        sizes = orjson.loads(dims)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(sizes, list):
        return False
    matrices = [
        s[-2:] for s in sizes if isinstance(s, list) and 2 <= len(s) <= 3 and all(isinstance(n, int) for n in s)
    ]
    return len(matrices) == 2 and min(*matrices[0], *matrices[1]) <= _SMALL_DIMENSION
