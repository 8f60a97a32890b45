"""Matrix kernels that miss Tensor Cores: what the rules about GEMMs and about convolutions share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import orjson

from perfdoctor.diagnosis.finding import Evidence
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.trace import intervals as iv
from perfdoctor.trace import nesting
from perfdoctor.trace.intervals import Intervals
from perfdoctor.trace.model import BoolArray

# A dimension this small leaves a Tensor Core tile (16 x 8 x 16) mostly empty: such a product is bandwidth-bound anyway.
_SMALL_DIMENSION = 16
# Kernels that take less than this in total are not worth a word.
_WORTH_NS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Missed:
    """Kernels of one category with verdict "no" in the window.

    Their rows, their time, and the costliest operand type among them.
    """

    rows: BoolArray
    time: Intervals
    operand: str | None
    share_of_category: float

    @property
    def total_ns(self) -> int:
        """Time in which at least one of them ran."""
        return iv.total(self.time)


def missed_tensor_cores(rank: RankRun, category: str) -> Missed | None:
    """The kernels of a category that could use Tensor Cores and do not.

    None when there are none worth a word, or the device has none.

    Left out: gemv-like and depthwise kernels, products with a dimension of 16 or less, everything on a device without
    Tensor Cores or one of which it is not known whether it has any.
    """
    if rank.tensor_cores is not True:
        return None
    gpu = rank.trace.gpu
    inside = iv.contains(rank.window, gpu.start_ns)
    eligible = rank.kernels_where(
        lambda k: k.category == category and k.tensor_core == "no" and not k.gemv_like and not k.depthwise
    )
    rows = eligible & inside & ~_small_products(rank)
    time = rank.within_window(rows)
    if iv.total(time) < _WORTH_NS:
        return None
    of_category = rank.kernels_where(lambda k: k.category == category) & inside
    share = float(gpu.dur_ns[rows].sum() / max(gpu.dur_ns[of_category].sum(), 1))
    return Missed(rows, time, _costliest_operand(rank, rows), share)


def _costliest_operand(rank: RankRun, rows: BoolArray) -> str | None:
    totals: dict[str | None, int] = {}
    for code, ns in _by_name(rank, rows):
        operand = rank.kernel_classes[code].operand
        totals[operand] = totals.get(operand, 0) + ns
    return max(totals, key=lambda operand: totals[operand], default=None)


def _by_name(rank: RankRun, rows: BoolArray) -> list[tuple[int, int]]:
    """String code and total time of each distinct kernel name, costliest first, of equals by name."""
    gpu, strings = rank.trace.gpu, rank.trace.strings
    codes, inverse = np.unique(gpu.name[rows], return_inverse=True)
    totals = np.bincount(inverse, weights=gpu.dur_ns[rows]).astype(np.int64)
    pairs = zip(codes.tolist(), totals.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], strings[pair[0]]))


def top_kernels(rank: RankRun, rows: BoolArray, most: int = 3) -> Iterable[Evidence]:
    """The costliest kernel names with their time a step."""
    for code, ns in _by_name(rank, rows)[:most]:
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


def _small_products(rank: RankRun) -> BoolArray:
    """For each GPU item whether the op that launched it multiplies matrices with a dimension of 16 or less.

    False without shapes.
    """
    trace = rank.trace
    small = np.zeros(len(trace.gpu), bool)
    rows = np.flatnonzero(trace.gpu.op >= 0)
    dims = trace.ops.dims[trace.gpu.op[rows]]
    for code in np.unique(dims[dims >= 0]).tolist():
        if _has_small_dimension(trace.strings[code]):
            small[rows[dims == code]] = True
    return small


def _has_small_dimension(dims: str) -> bool:
    """Whether an op's recorded input sizes hold two matrices with M, N or K <= 16; anything unreadable is not small."""
    try:
        sizes = orjson.loads(dims)
    except orjson.JSONDecodeError:
        return False
    matrices = [
        s[-2:] for s in sizes if isinstance(s, list) and 2 <= len(s) <= 3 and all(isinstance(n, int) for n in s)
    ]
    return len(matrices) == 2 and min(*matrices[0], *matrices[1]) <= _SMALL_DIMENSION
