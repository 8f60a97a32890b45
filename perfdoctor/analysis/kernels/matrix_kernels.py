"""Matrix kernels, and what they would gain elsewhere: what the rules about products and convolutions share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import orjson

from perfdoctor.analysis.kernels.kernel_costs import op_names
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import occurring

MatrixCategory: TypeAlias = Literal["gemm", "convolution"]

SMALL_DIMENSION = 16
"""A dimension this small leaves a Tensor Core tile (16 x 8 x 16) mostly empty: such a product is bandwidth-bound."""
WORTH_NS = 10_000
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
    maths = ~rank.verdicts.is_("na") & rank.in_window
    launched: BoolArray = np.append(trace.match_strings(trace.ops, _CONVOLUTION_OP), False)[op_names(trace)]
    gemm = rank.kernels_where(lambda k: k.category == "gemm")
    if category == "gemm":
        return gemm & ~launched & maths
    return (rank.kernels_where(lambda k: k.category == "convolution") | (gemm & launched)) & maths


def on_tensor_cores(rank: Rank, category: MatrixCategory) -> BoolArray:
    """The same, of those on Tensor Cores."""
    return matrix_rows(rank, category) & rank.verdicts.is_("yes")


def saved_share(rank: Rank, rows: BoolArray, remedy: Remedy) -> float:
    """Which share of the time of some kernels a remedy can save at most, 0 to 1.

    By the roofline of each where FLOPs, bytes and rates are known, else by the ratio of peaks; 1 where neither is.
    """
    dur = rank.trace.gpu.dur_ns[rows].astype(np.float64)
    best = dur / remedy.peak_ratio if remedy.peak_ratio else np.zeros(len(dur))
    bandwidth = rank.device.attainable_bandwidth_bytes_per_s if rank.device else None
    if remedy.flops_per_s and bandwidth:
        maths = rank.work.flops[rows] / remedy.flops_per_s
        roof = np.maximum(maths, rank.work.bytes[rows] * remedy.bytes_ratio / bandwidth) * 1e9
        best = np.where(np.isnan(roof), best, roof)
    return float(np.maximum(dur - best, 0).sum() / max(dur.sum(), 1))


def by_name(rank: Rank, rows: BoolArray | Int64Array) -> list[tuple[int, int]]:
    """String code and total time of each distinct kernel name, costliest first, of equals by name."""
    gpu, strings = rank.trace.gpu, rank.trace.strings
    codes, inverse = np.unique(gpu.name[rows], return_inverse=True)
    totals = np.bincount(inverse, weights=gpu.dur_ns[rows]).astype(np.int64)
    pairs = zip(codes.tolist(), totals.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], strings[pair[0]]))


def top_kernels(rank: Rank, rows: BoolArray | Int64Array, most: int = 3) -> Iterable[Evidence]:
    """The costliest kernel names with their time a step."""
    for code, ns in by_name(rank, rows)[:most]:
        yield Evidence(rank.trace.strings[code], rank.per_step(ns), "ns")


def top_op(rank: Rank, rows: BoolArray) -> str | None:
    """The outermost op that launched most of the time of some kernels; None when no op is known."""
    trace = rank.trace
    rows = rows & (trace.gpu.op >= 0)
    if not rows.any():
        return None
    top = nesting.outermost(trace.ops.parent, trace.gpu.op[rows])
    codes, inverse = np.unique(trace.ops.name[top], return_inverse=True)
    totals = np.bincount(inverse, weights=trace.gpu.dur_ns[rows]).tolist()
    names: list[str] = [trace.strings[code] for code in codes.tolist()]
    return names[max(range(len(names)), key=lambda i: (totals[i], names[i]))]


def without_small_products(rank: Rank, items: BoolArray) -> BoolArray:
    """Some GPU items without those whose op multiplies matrices with a dimension of 16 or less; all without shapes."""
    trace, work = rank.trace, rank.work
    rows = np.flatnonzero(items)
    dims = np.append(trace.ops.dims, np.int32(NONE))[trace.gpu.op[rows]]
    codes = occurring(dims, len(trace.strings)).tolist()
    small = np.zeros(len(trace.strings) + 1, bool)
    small[[code for code in codes if _has_small_dimension(trace.strings[code])]] = True
    by_cost = [min(c.m or 0, c.n or 0, c.k or 0) <= SMALL_DIMENSION and c.kind == "gemm" for c in work.costs]
    kept = np.zeros(len(items), bool)
    kept[rows] = ~(small[dims] | np.array([*by_cost, False], bool)[work.cost[rows]])
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
