"""Matrix kernels, and what they would gain elsewhere: what the rules about products and convolutions share."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import orjson

from perfdoctor.analysis.launching_ops import launching_op_names
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import NONE, BoolArray
from perfdoctor.trace.tables.distinct import occurring

MatrixCategory: TypeAlias = Literal["gemm", "convolution"]

SMALL_DIMENSION = 16
"""A dimension this small leaves a Tensor Core tile (16 x 8 x 16) mostly empty: such a product is bandwidth-bound."""
LEAST_TIME_NS = 10_000
"""Kernels that take less than this in total are not worth a word."""

_CONVOLUTION_OP = r"(?i)conv(olution|_|\d)"


class Remedy(NamedTuple):
    """A faster way to do the same maths.

    Attributes:
        name: What to call it.
        peak_ratio: Its peak over the peak of the unit that is used now; None if unknown.
        flops_per_s: What it attains; None if unknown.
        bytes_ratio: Its traffic over the present one: a half where operands get half as wide.
    """

    name: str | None = None
    peak_ratio: float | None = None
    flops_per_s: float | None = None
    bytes_ratio: float = 1.0


def matrix_rows(rank: Rank, category: MatrixCategory) -> BoolArray:
    """For each GPU item whether it is a kernel of the window that does the maths of a product, or of a convolution.

    Libraries compute convolutions by gemm kernels, too: what a convolution op launched is a convolution. Helpers
    (split-K tails, layout copies) are neither.
    """
    trace = rank.trace
    maths = ~rank.verdicts.match_rows("na") & rank.in_window
    launched: BoolArray = np.append(trace.match_strings(trace.ops, _CONVOLUTION_OP), False)[launching_op_names(trace)]
    gemm = rank.kernel_classes.match_rows(lambda k: k.category == "gemm")
    if category == "gemm":
        return gemm & ~launched & maths
    return (rank.kernel_classes.match_rows(lambda k: k.category == "convolution") | (gemm & launched)) & maths


def on_tensor_cores(rank: Rank, category: MatrixCategory) -> BoolArray:
    """The same, of those on Tensor Cores."""
    return matrix_rows(rank, category) & rank.verdicts.match_rows("yes")


def saved_share(rank: Rank, rows: BoolArray, remedy: Remedy) -> float:
    """Which share of the time of some kernels a remedy can save at most, 0 to 1.

    By the roofline of each where FLOPs, bytes and rates are known, else by the ratio of peaks; 1 where neither is.
    """
    dur = rank.trace.gpu.dur_ns[rows].astype(np.float64)
    best = dur / remedy.peak_ratio if remedy.peak_ratio else np.zeros(len(dur))
    bandwidth = rank.device.attainable_bandwidth_bytes_per_s if rank.device else None
    if remedy.flops_per_s and bandwidth:
        maths_s = rank.kernel_costs.flops[rows] / remedy.flops_per_s
        roof = np.maximum(maths_s, rank.kernel_costs.bytes[rows] * remedy.bytes_ratio / bandwidth) * 1e9
        best = np.where(np.isnan(roof), best, roof)
    return float(np.maximum(dur - best, 0).sum() / max(dur.sum(), 1))


def exclude_small_products(rank: Rank, items: BoolArray) -> BoolArray:
    """Some GPU items without those whose op multiplies matrices with a dimension of 16 or less; all without shapes."""
    trace, costs = rank.trace, rank.kernel_costs
    rows = np.flatnonzero(items)
    dims = np.append(trace.ops.dims, np.int32(NONE))[trace.gpu.op[rows]]
    codes = occurring(dims).tolist()
    small = np.zeros(len(trace.strings) + 1, bool)
    small[[code for code in codes if _has_small_dimension(trace.strings[code])]] = True
    small_cost = costs.match_op_costs(
        lambda c: min(c.m or 0, c.n or 0, c.k or 0) <= SMALL_DIMENSION and c.kind == "gemm"
    )
    kept = np.zeros(len(items), bool)
    kept[rows] = ~(small[dims] | small_cost[costs.op_cost[rows]])
    return kept


@lru_cache(maxsize=4096)  # three rules ask
def _has_small_dimension(dims: str) -> bool:
    """Whether an op's recorded input sizes hold two matrices with M, N or K <= 16; anything unreadable is not small."""
    try:
        sizes = orjson.loads(dims)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(sizes, list):
        return False
    matrices = [
        s[-2:] for s in sizes if isinstance(s, list) and 2 <= len(s) <= 3 and all(isinstance(n, int) for n in s)
    ]
    return len(matrices) == 2 and min(*matrices[0], *matrices[1]) <= SMALL_DIMENSION
