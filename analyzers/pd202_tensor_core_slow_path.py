"""PD202: matrix products on Tensor Cores whose dimensions force narrow memory accesses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from perfdoctor.gpu.gemm_alignment import PAD_MULTIPLE, access_width_fraction, misaligned_dimensions, pad_dimension
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.matrix_kernels import LEAST_TIME_NS, exclude_small_products, on_tensor_cores
from perfdoctor.rules.top_kernels import top_kernels, top_op
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import GpuRows

_BATCHED = ("Bmm", "bmm", "matmul", "einsum", "baddbmm")


class _Blamed(NamedTuple):
    """A dimension that is no multiple, and what to make of it."""

    letter: str
    size: int
    padded: int


class TensorCoreSlowPath(RankAnalyzer):
    """Tensor Cores are used on a slow path: a dimension is no multiple of 16 bytes.

    What it finds:
        Products of matrices that run on Tensor Cores in kernels for misaligned rows (`align1`, `align2`), the
        dimension that is to blame, and the size to pad it to: a vocabulary of 30522, a sequence of 3137.

    Why it costs time:
        Where rows do not start at multiples of 16 bytes a kernel loads 2 or 4 bytes at a time instead of 16, and the
        fast kernels of the newest architecture cannot be used at all: bfloat16 products with a dimension of 3137 ran
        2.9 to 4.1 times slower than the roofline on an H100.

    How it is measured:
        Time of gemm kernels whose name says that they take an alignment under 16 bytes. AMD's names do not: there the
        recorded shapes decide. With shapes the dimension is the one that lies contiguous in memory by the kernel's
        layout letters, and only kernels count that take at least `min_over_roofline` times the best time for their
        FLOPs and bytes; what they take above it bounds the saving. Without shapes the width of the memory accesses
        bounds it, the confidence is low, and `min_share_untold` holds. Products with a dimension of 16 or less,
        vector products, and kernels under 10 us in total never count.

    How to fix:
        Pad vocabulary, features, heads or sequence to a multiple of 8 (of 16 in one-byte types; 64 is better still).
        In attention scaled_dot_product_attention needs no padding.

    When it is wrong:
        Where the input is a slice whose start or stride is odd, padding a dimension does not help: copy it once.

    Needs:
        Kernels; shapes to name the dimension.

    References:
        NVIDIA Deep Learning Performance, "Matrix Multiplication Background", section "Tensor Core Requirements".
    """

    rule: ClassVar[str] = "PD202"
    name: ClassVar[str] = "tensor-core-slow-path"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share: as for PD201. min_over_roofline: large aligned gemms reach 0.65 to 0.8 of the peaks on A100 and H100
    # (`achievable_gemm_fraction`, which the best time allows for), small ones half of that.
    # min_share_untold: without shapes part of these kernels may be bound by memory anyway.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.01, "min_share_untold": 0.03, "min_over_roofline": 1.5}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/#requirements-tc",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step."""
        rows = self._slow(rank)
        time = rank.time_in_window(rows)
        if iv.total(time) < LEAST_TIME_NS:
            return
        cost = rank.per_step(iv.total(time))
        over = _over_roofline(rank, rows)
        if not self.exceeds_min_share(rank, cost, 0 if over else self.settings["min_share_untold"]):
            return
        blamed = _blamed(rank, rows) if over else []
        op = top_op(rank, rows)
        saved = _saved_share(rank, rows)
        yield self.finding(
            rank,
            title=_title(blamed),
            cost_ns=cost,
            saving=Saving(0, None, round(cost * saved), "bounded"),
            advice=_advice(blamed, op),
            claim=Claim(time, kernels=True),
            confidence=0.8 if over else 0.5,
            location=rank.locations.of_op(op) if op else None,
            evidence=(
                Evidence("time over the roofline's", round(over, 1) if over else None, "x"),
                *(
                    Evidence(f"{b.letter} = {b.size}: pad to {b.padded}", rank.per_step(ns), "ns")
                    for b, ns in blamed[:3]
                ),
                Evidence("launched by", op),
                *top_kernels(rank, rows),
            ),
            edit=scale_durations(GpuRows(rank.trace.gpu, rows), saved),
        )

    def _slow(self, rank: Rank) -> BoolArray:
        """For each GPU item whether it is such a kernel."""
        rows = on_tensor_cores(rank, "gemm")
        rows &= rank.kernel_classes.match_rows(lambda k: k.slow_path) | _untagged(rank)
        rows &= ~rank.bounds.match_rows("latency", "invalid")
        rows = exclude_small_products(rank, rows)
        dur = rank.trace.gpu.dur_ns
        with np.errstate(invalid="ignore"):
            near = dur < self.settings["min_over_roofline"] * rank.bounds.roofline_ns
        return rows & ~near


def _untagged(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a kernel of AMD's, which name no alignment, with a misaligned dimension."""
    if rank.hardware.vendor != "amd":
        return np.zeros(len(rank.trace.gpu), bool)
    amd = rank.kernel_classes.match_rows(lambda k: k.alignment is None)
    misaligned = np.array([bool(_dimensions(rank, i)) for i in range(len(rank.kernel_costs.kinds))], bool)
    result: BoolArray = amd & misaligned[rank.kernel_costs.kind]
    return result


def _dimensions(rank: Rank, kind: int) -> tuple[_Blamed, ...]:
    """The dimensions of a row of `KernelCosts.kinds` that are to blame."""
    kinds = rank.kernel_costs.kinds
    index = int(kinds.op_cost[kind])
    if index < 0:
        return ()
    cost = rank.kernel_costs.op_costs[index]
    found = misaligned_dimensions(cost, rank.trace.strings[kinds.name[kind]])
    return tuple(_Blamed(letter, size, pad_dimension(size, cost.dtype)) for letter, size in found)


def _blamed(rank: Rank, rows: BoolArray) -> list[tuple[_Blamed, int]]:
    """Dimensions to blame, with the time of their kernels, costliest first."""
    item, dur = rank.kernel_costs.kind[rows], rank.trace.gpu.dur_ns[rows]
    time_ns = np.bincount(item, weights=dur, minlength=len(rank.kernel_costs.kinds))
    totals: dict[_Blamed, int] = defaultdict(int)
    for i in np.flatnonzero(time_ns).tolist():
        for blamed in _dimensions(rank, i):
            totals[blamed] += int(time_ns[i])
    return sorted(totals.items(), key=lambda pair: (-pair[1], pair[0].letter, pair[0].size))


def _over_roofline(rank: Rank, rows: BoolArray) -> float | None:
    """How many times the best time they take; None unless that is known of most of them."""
    best, dur = rank.bounds.roofline_ns[rows], rank.trace.gpu.dur_ns[rows]
    known = ~np.isnan(best)
    return float(dur[known].sum() / best[known].sum()) if 2 * dur[known].sum() > dur.sum() else None


def _saved_share(rank: Rank, rows: BoolArray) -> float:
    """Which share of their time could be saved: down to the roofline, else by accesses of full width."""
    width = np.ones(len(rank.trace.strings))
    for code, kernel in rank.kernel_classes.by_name.items():
        if kernel.alignment is not None and kernel.operand is not None:
            width[code] = access_width_fraction(kernel.alignment, kernel.operand) or 1.0
    dur = rank.trace.gpu.dur_ns[rows].astype(np.float64)
    best = rank.bounds.roofline_ns[rows]
    best = np.where(np.isnan(best), dur * width[rank.trace.gpu.name[rows]], best)
    return float(np.maximum(dur - best, 0).sum() / max(dur.sum(), 1))


def _title(blamed: list[tuple[_Blamed, int]]) -> str:
    if not blamed:
        return "Tensor Cores run on a slow path: rows do not start at multiples of 16 bytes"
    first = blamed[0][0]
    more = f", and {len(blamed) - 1} more sizes" if len(blamed) > 2 else ", and 1 more" if len(blamed) > 1 else ""
    return f"Tensor Cores run on a slow path: {first.letter} = {first.size}: pad to {first.padded}{more}"


def _advice(blamed: list[tuple[_Blamed, int]], op: str | None) -> str:
    if not blamed:
        return (
            f"Make the dimensions of these products multiples of {PAD_MULTIPLE} (vocabulary, features, sequence; 64 is "
            "better still), and start no slice at an odd element."
        )
    first = blamed[0][0]
    if any(word in (op or "") for word in _BATCHED):
        return (
            f"In attention use scaled_dot_product_attention, which needs no padding; else pad {first.size} to "
            f"{first.padded}, and mask what is added."
        )
    return (
        f"Pad {first.size} to {first.padded} where the layer is made (vocabulary, features, heads): the rows then "
        "start at multiples of 16 bytes."
    )
