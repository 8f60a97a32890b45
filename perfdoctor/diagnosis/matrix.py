"""Matrix kernels, and what they would gain elsewhere: what the rules about products and convolutions share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import orjson

from perfdoctor.diagnosis.finding import Evidence
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.work import op_names
from perfdoctor.gpu.bounds import BANDWIDTH
from perfdoctor.gpu.devices import reduced_precision_advice
from perfdoctor.trace import intervals as iv
from perfdoctor.trace import nesting
from perfdoctor.trace.distinct import occurring
from perfdoctor.trace.intervals import Intervals
from perfdoctor.trace.model import NONE, BoolArray

MatrixCategory: TypeAlias = Literal["gemm", "convolution"]

SMALL_DIMENSION = 16
"""A dimension this small leaves a Tensor Core tile (16 x 8 x 16) mostly empty: such a product is bandwidth-bound."""
WORTH_NS = 10_000
"""Kernels that take less than this in total are not worth a word."""

_CONVOLUTION_OP = r"(?i)conv(olution|_|\d)"
# Groups of fewer channels than a Tensor Core tile has rows cannot fill it.
_FEW_CHANNELS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Missed:
    """Kernels of one category and operand type with verdict "no" in the window, costliest type first.

    Their rows, their time, and their share of the time of that category.
    """

    rows: BoolArray
    time: Intervals
    operand: str | None
    share_of_category: float

    @property
    def total_ns(self) -> int:
        """Time in which at least one of them ran."""
        return iv.total(self.time)


@dataclass(frozen=True, slots=True)
class Remedy:
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


def matrix_rows(rank: RankRun, category: MatrixCategory) -> BoolArray:
    """For each GPU item whether it is a kernel of the window that does the maths of a product, or of a convolution.

    Libraries compute convolutions by gemm kernels, too: what a convolution op launched is a convolution. Helpers
    (split-K tails, layout copies) are neither.
    """
    trace = rank.trace
    maths = ~rank.verdicts.is_("na") & rank.in_window
    launched: BoolArray = np.append(trace.fitting(trace.ops, _CONVOLUTION_OP), False)[op_names(trace)]
    gemm = rank.kernels_where(lambda k: k.category == "gemm")
    if category == "gemm":
        return gemm & ~launched & maths
    return (rank.kernels_where(lambda k: k.category == "convolution") | (gemm & launched)) & maths


def missed_tensor_cores(rank: RankRun, category: MatrixCategory) -> tuple[Missed, ...]:
    """The kernels of a category that could use Tensor Cores and do not, by operand type.

    Left out: types that take less than 10 us, gemv-like and depthwise kernels, products with a dimension of 16 or less,
    convolutions in groups of under 8 channels, what memory bounds by its recorded shapes, kernels as short as any,
    everything on a device without Tensor Cores or one of which it is not known whether it has any.
    """
    if rank.tensor_cores is not True:
        return ()
    gpu, verdicts = rank.trace.gpu, rank.verdicts
    of_category = matrix_rows(rank, category)
    whole_ns = max(int(gpu.dur_ns[of_category].sum()), 1)
    rows = of_category & verdicts.is_("no") & ~rank.kernels_where(lambda k: k.gemv_like or k.depthwise)
    rows &= ~_narrow_groups(rank) & ~_memory_bounds(rank) & ~rank.bounds.is_("latency")
    rows = without_small_products(rank, rows)
    operand = verdicts.operand[rank.work.item]
    found = []
    for code in occurring(operand[rows], len(verdicts.operands)).tolist():
        of_type = rows & (operand == code)
        time = rank.within_window(of_type)
        if iv.total(time) >= WORTH_NS:
            share = float(gpu.dur_ns[of_type].sum() / whole_ns)
            found.append(Missed(of_type, time, verdicts.operands[code] or None, share))
    return tuple(sorted(found, key=lambda missed: (-missed.total_ns, missed.operand or "")))


def saved_share(rank: RankRun, rows: BoolArray, remedy: Remedy) -> float:
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


def precision_remedy(rank: RankRun) -> Remedy:
    """Which precision to choose for float32 maths, and what it would gain; nothing is named where none is known."""
    advice = reduced_precision_advice(rank.device, rank.source.device.capability, rank.source.vendor)
    if advice is None:
        return Remedy()
    halves = advice.precision != "tf32"
    rate = rank.device.attainable_flops(advice.precision.partition(" ")[0]) if rank.device else None
    return Remedy(advice.precision, advice.peak_ratio, rate, 0.5 if halves else 1.0)


def half_remedy(rank: RankRun, operand: str) -> Remedy:
    """What half precision on CUDA cores would gain on Tensor Cores; kernels in float32 maths are the slowest there."""
    device = rank.device
    peak = device.matrix_peak_flops(operand) if device else None
    base = device.peak_flops("fp32") if device else None
    return Remedy(None, peak / base if peak and base else None, device.attainable_flops(operand) if device else None)


def by_name(rank: RankRun, rows: BoolArray) -> list[tuple[int, int]]:
    """String code and total time of each distinct kernel name, costliest first, of equals by name."""
    gpu, strings = rank.trace.gpu, rank.trace.strings
    codes, inverse = np.unique(gpu.name[rows], return_inverse=True)
    totals = np.bincount(inverse, weights=gpu.dur_ns[rows]).astype(np.int64)
    pairs = zip(codes.tolist(), totals.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], strings[pair[0]]))


def top_kernels(rank: RankRun, rows: BoolArray, most: int = 3) -> Iterable[Evidence]:
    """The costliest kernel names with their time a step."""
    for code, ns in by_name(rank, rows)[:most]:
        yield Evidence(rank.trace.strings[code], rank.per_step(ns), "ns")


def top_op(rank: RankRun, rows: BoolArray) -> str | None:
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


def without_small_products(rank: RankRun, items: BoolArray) -> BoolArray:
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
    matrices = [
        s[-2:] for s in sizes if isinstance(s, list) and 2 <= len(s) <= 3 and all(isinstance(n, int) for n in s)
    ]
    return len(matrices) == 2 and min(*matrices[0], *matrices[1]) <= SMALL_DIMENSION


def _narrow_groups(rank: RankRun) -> BoolArray:
    """For each GPU item whether it is a convolution in groups of fewer than 8 channels, as depthwise ones are."""
    narrow = [(c.groups or 1) > 1 and (c.channels_in or _FEW_CHANNELS) < _FEW_CHANNELS for c in rank.work.costs]
    result: BoolArray = np.array([*narrow, False], bool)[rank.work.cost]
    return result


def _memory_bounds(rank: RankRun) -> BoolArray:
    """For each GPU item whether it is known that memory, not maths, limits it on the unit that it uses."""
    result: BoolArray = (rank.bounds.nearest == BANDWIDTH) & ~np.isnan(rank.bounds.best_ns)
    return result
