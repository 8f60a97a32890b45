"""PD202: matrix products on Tensor Cores whose dimensions force narrow memory accesses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._kernel_ranges import catch_up
from perfdoctor.analyzers._matrix_remedies import MIN_TIME_NS, exclude_small_products, topics_of_op
from perfdoctor.rules import (
    PAD_MULTIPLE,
    Advice,
    Claim,
    Evidence,
    Finding,
    FloatArray,
    GemmDimension,
    GpuQuery,
    Rank,
    RankAnalyzer,
    Saving,
    access_width_fraction,
    advise,
    find_tensor_core_kernels,
    misaligned_dimensions,
    pad_dimension,
    top_kernels,
    top_op,
)

# Ops that multiply batches of matrices: in most models that is attention.
_BATCHED_OPS = ("Bmm", "bmm", "matmul", "einsum", "baddbmm")


class _MisalignedDimension(NamedTuple):
    """A dimension of a product whose rows do not start at multiples of 16 bytes, and the size to pad it to."""

    dimension: GemmDimension
    size: int
    padded: int


class TensorCoreSlowPath(RankAnalyzer):
    """Tensor Cores are used on a slow path: a dimension is not a multiple of 16 bytes."""

    rule = "PD202"
    name = "tensor-core-slow-path"
    needs = frozenset({"kernels"})
    # min_share: as for PD201. min_over_roofline: large aligned gemms reach 0.65 to 0.8 of the peaks on A100 and H100
    # (`achievable_gemm_fraction`, which the best time allows for), small ones half of that.
    # min_share_untold: without shapes part of these kernels may be bound by memory anyway.
    defaults = {"min_share": 0.01, "min_share_untold": 0.03, "min_over_roofline": 1.5}
    references = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/#requirements-tc",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step."""
        kernels = self._find_slow_kernels(rank)
        time_ns = kernels.time_ns
        if time_ns < MIN_TIME_NS:
            return
        cost_ns = rank.per_step(time_ns)
        over_roofline = _time_over_roofline(rank, kernels)
        if not self.exceeds_min_share(rank, cost_ns, 0 if over_roofline else self.settings["min_share_untold"]):
            return
        misaligned = _find_misaligned_dimensions(rank, kernels) if _has_most_shapes(rank, kernels) else []
        op = top_op(rank, kernels.mask)
        after = catch_up(rank, kernels, "gemm", _full_width_share(rank, kernels))
        # Of a device without peaks the shapes prove the fault, but where no name tells the width nothing bounds it.
        is_bounded = over_roofline is not None or len(kernels.of_class(lambda k: k.alignment is not None)) > 0
        yield self.finding(
            rank,
            title=_title_of(rank, [dimension for dimension, _ in misaligned]),
            cost_ns=cost_ns,
            saving=after.saving(cost_ns) if is_bounded else Saving(),
            advice=_advise(rank, misaligned[0][0] if misaligned else None, op),
            claim=Claim(kernels.time, kernels=True),
            confidence=0.8 if over_roofline else 0.5,
            location=kernels.location,
            topics=topics_of_op(op),
            evidence=(
                Evidence("time over the roofline's", round(over_roofline, 1) if over_roofline else None, "x"),
                *(
                    Evidence(f"{name} = {size}: pad to {padded}", rank.per_step(kernels_ns), "ns")
                    for (name, size, padded), kernels_ns in misaligned[:3]
                ),
                Evidence("launched by", op),
                *top_kernels(rank, kernels.mask),
            ),
            edit=after.edit(kernels.rows) if is_bounded else None,
        )

    def _find_slow_kernels(self, rank: Rank) -> GpuQuery:
        """Products on Tensor Cores on the slow path, without those that come near the roofline all the same."""
        gemms = find_tensor_core_kernels(rank, "gemm").where(~rank.bounds.match_rows("latency", "invalid"))
        slow = gemms.where(rank.verdicts.slow_path)
        with np.errstate(invalid="ignore"):
            near = rank.trace.gpu.dur_ns < self.settings["min_over_roofline"] * rank.bounds.roofline_ns
        return exclude_small_products(rank, slow).where(~near)


def _misaligned_dimensions_of(rank: Rank, kind: int) -> list[_MisalignedDimension]:
    """The misaligned dimensions of the kernels of one row of `KernelCosts.kinds`; none where shapes are unknown."""
    kinds = rank.kernel_costs.kinds
    index = int(kinds.op_cost[kind])
    if index < 0:
        return []
    cost = rank.kernel_costs.op_costs[index]
    found = misaligned_dimensions(cost, rank.trace.strings[kinds.name[kind]])
    return [_MisalignedDimension(name, size, pad_dimension(size, cost.dtype)) for name, size in found]


def _find_misaligned_dimensions(rank: Rank, kernels: GpuQuery) -> list[tuple[_MisalignedDimension, int]]:
    """The misaligned dimensions of some kernels, each with the time (ns) of its kernels; the costliest first."""
    kind, dur_ns = rank.kernel_costs.kind[kernels.mask], rank.trace.gpu.dur_ns[kernels.mask]
    time_ns = np.bincount(kind, weights=dur_ns, minlength=len(rank.kernel_costs.kinds))
    totals_ns: dict[_MisalignedDimension, int] = defaultdict(int)
    for row in np.flatnonzero(time_ns).tolist():
        for dimension in _misaligned_dimensions_of(rank, row):
            totals_ns[dimension] += int(time_ns[row])
    return sorted(totals_ns.items(), key=lambda pair: (-pair[1], pair[0].dimension, pair[0].size))


def _has_most_shapes(rank: Rank, kernels: GpuQuery) -> bool:
    """Whether the sizes of the products are recorded for more than half of the kernels' time."""
    dur_ns = rank.trace.gpu.dur_ns[kernels.mask]
    return 2 * int(dur_ns[rank.kernel_costs.op_cost[kernels.mask] >= 0].sum()) > int(dur_ns.sum())


def _time_over_roofline(rank: Rank, kernels: GpuQuery) -> float | None:
    """The time of some kernels over their roofline's; None unless that is known of more than half of their time."""
    best_ns, dur_ns = rank.bounds.roofline_ns[kernels.mask], rank.trace.gpu.dur_ns[kernels.mask]
    known = ~np.isnan(best_ns)
    return float(dur_ns[known].sum() / best_ns[known].sum()) if 2 * dur_ns[known].sum() > dur_ns.sum() else None


def _full_width_share(rank: Rank, kernels: GpuQuery) -> FloatArray:
    """For each kernel the share of its time that accesses of full width take at best."""
    width_fraction = np.ones(len(rank.trace.strings))
    for code, kernel in rank.kernel_classes.by_name.items():
        if kernel.alignment is not None and kernel.operand is not None:
            width_fraction[code] = access_width_fraction(kernel.alignment, kernel.operand) or 1.0
    return width_fraction[rank.trace.gpu.name[kernels.mask]]


def _title_of(rank: Rank, misaligned: list[_MisalignedDimension]) -> str:
    units = "Matrix cores" if rank.hardware.vendor == "amd" else "Tensor Cores"
    if not misaligned:
        return f"{units} run on a slow path: rows do not start at multiples of 16 bytes"
    name, size, padded = misaligned[0]
    others = len(misaligned) - 1
    more = f", and {others} more sizes" if others > 1 else ", and 1 more" if others else ""
    return f"{units} run on a slow path: {name} = {size}: pad to {padded}{more}"


def _advise(rank: Rank, costliest: _MisalignedDimension | None, op: str | None) -> Advice:
    if costliest is None:
        return advise("misaligned products", rank.context, multiple=PAD_MULTIPLE)
    situation = "misaligned products of attention" if any(word in (op or "") for word in _BATCHED_OPS) else None
    return advise(
        situation or "misaligned products of known size", rank.context, size=costliest.size, padded=costliest.padded
    )
