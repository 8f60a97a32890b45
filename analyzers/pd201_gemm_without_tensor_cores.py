"""PD201: matrix products that run on CUDA cores though the device has Tensor Cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from perfdoctor.analyzers._kernel_ranges import find_float32_traffic, halve_traffic
from perfdoctor.analyzers._matrix_remedies import Remedy
from perfdoctor.analyzers._missed_tensor_cores import (
    Cause,
    MissedKernels,
    MissedTensorCores,
    find_float32_remedy,
    find_half_of_tf32,
    find_half_remedy,
    find_half_type,
    is_tf32_allowed,
)
from perfdoctor.rules import (
    Advice,
    Claim,
    Evidence,
    Finding,
    MatrixCategory,
    Rank,
    advise,
    find_tensor_core_kernels,
    read_advice,
    top_kernels,
)

_HALF_TYPES = ("fp16", "bf16")
# By the name of the remedy the situation in the table of advice.
_SITUATIONS: Mapping[str | None, str] = {
    "tf32": "float32 products: TF32",
    "bf16 autocast": "float32 products: bfloat16",
    "fp16 autocast": "float32 products: float16",
    None: "float32 products",
}


class GemmWithoutTensorCores(MissedTensorCores):
    """Matrix products run on CUDA cores although the device has Tensor Cores."""

    rule = "PD201"
    name = "gemm-without-tensor-cores"
    needs = frozenset({"kernels"})
    # min_share: share of the step; less than a hundredth is not worth a change of precision. min_traffic_share: at
    # most half of it is saved, and a finding of its own should be worth a medium one.
    defaults = {"min_share": 0.01, "min_traffic_share": 0.06}
    references = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere",
    )

    category: ClassVar[MatrixCategory] = "gemm"

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """The findings about products; for inference in float32 one about what its other kernels move."""
        has_float32 = False
        for finding in super().analyze_rank(rank):
            has_float32 |= finding.subject == "fp32"
            yield finding
        if has_float32 and rank.context.phase == "inference":
            yield from self._find_float32_traffic(rank)

    def _find_float32_traffic(self, rank: Rank) -> Iterator[Finding]:
        half = find_half_type(rank)
        kernels = find_float32_traffic(rank)
        cost_ns = rank.per_step(kernels.time_ns)
        if half is None or not self.exceeds_min_share(rank, cost_ns, self.settings["min_traffic_share"]):
            return
        after = halve_traffic(rank, kernels)
        yield self.finding(
            rank,
            title=f"{rank.count_per_step(len(kernels)):,} memory-bound kernels {rank.per_unit} work on float32",
            cost_ns=cost_ns,
            saving=after.saving(cost_ns),
            advice=read_advice("float32 between products", half=half),
            claim=Claim(kernels.time, kernels=True),
            confidence=0.6,
            location=kernels.location,
            evidence=(
                Evidence(
                    "read and written",
                    rank.count_per_step(round(np.nansum(rank.kernel_costs.bytes[kernels.mask]))),
                    "bytes",
                ),
                *top_kernels(rank, kernels.mask),
            ),
            subject="float32 traffic",
            edit=after.edit(kernels.rows),
        )

    def find_cause(self, rank: Rank, missed: MissedKernels) -> Cause:
        """The cause by the operand type, and by what the other products use."""
        confidence = 0.9 if "shapes" in rank.available_data else 0.8  # shapes tell small products, which gain nothing
        if missed.operand in _HALF_TYPES:
            advice = Advice(
                "Make M, N and K multiples of 8: alignment or layout keep these products, which are in half "
                "precision already, off the Tensor Cores.",
                source="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
            )
            return Cause(advice, find_half_remedy(rank, missed.operand), confidence)
        remedy = find_float32_remedy(rank) if missed.operand == "fp32" else Remedy()
        advice, better = advise(_SITUATIONS[remedy.name], rank.context), find_half_of_tf32(rank, remedy)
        if remedy.name == "tf32" and is_tf32_allowed(rank, "gemm"):
            return Cause(
                advise("float32 products: TF32 is on", rank.context),
                remedy,
                confidence,
                title_end=" although TF32 is on",
                better=better,
            )
        if missed.operand == "fp32" and (half := _find_prevailing_half_type(rank)):
            return Cause(
                advice._replace(
                    sentence=f"Bring these products into {half}, as the others are: they stand outside of autocast, or "
                    f"something turns their inputs into float32. {advice.sentence}"
                ),
                remedy,
                confidence,
                f", the others in {half}",
                better,
            )
        return Cause(advice, remedy, confidence, better=better)


def _find_prevailing_half_type(rank: Rank) -> str | None:
    """The half precision type that takes most of the time of products on Tensor Cores; None where none does."""
    dur_ns, kernels = rank.trace.gpu.dur_ns, find_tensor_core_kernels(rank, "gemm")
    for operand in _HALF_TYPES:
        of_type = kernels.of_class(lambda k, operand=operand: k.operand == operand)
        if 2 * int(dur_ns[of_type.mask].sum()) > int(dur_ns[kernels.mask].sum()):
            return operand
    return None
