"""PD201: matrix products that run on CUDA cores though the device has Tensor Cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.edits import kernels_sped_up
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.matrix import (
    Missed,
    Remedy,
    half_remedy,
    matrix_rows,
    missed_tensor_cores,
    precision_remedy,
    saved_share,
    top_kernels,
    top_op,
)
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.source import place_of_op
from perfdoctor.trace.model import BoolArray

_HALF = ("fp16", "bf16")
_FIX: Mapping[str, str] = MappingProxyType(
    {
        "tf32": 'torch.set_float32_matmul_precision("high")',
        "bf16 autocast": 'with torch.autocast("cuda", dtype=torch.bfloat16): ...',
        "fp16 autocast": 'with torch.autocast("cuda", dtype=torch.float16): ...   # and a torch.amp.GradScaler',
    }
)
_ADVICE: Mapping[str | None, str] = MappingProxyType(
    {
        "tf32": "Allow TF32 for float32 products, or train under autocast in bfloat16: both use Tensor Cores.",
        "bf16 autocast": "On this device TF32 is no faster than float32: train under autocast in bfloat16.",
        "fp16 autocast": "This device has Tensor Cores for float16 only: train under autocast in float16 with a "
        "GradScaler.",
        None: "Use a precision for which the device has Tensor Cores: autocast, or TF32 where the device has it.",
    }
)


class GemmWithoutTensorCores(RankAnalyzer):
    """Matrix products run on CUDA cores although the device has Tensor Cores.

    What it finds:
        GEMM kernels that are known to use CUDA cores (FFMA, SIMT, legacy sgemm), on a device that has Tensor Cores;
        one finding for each operand type, because the causes differ: float32 with TF32 off, float32 beside products
        that do use TF32 or half precision, half precision that misses the Tensor Cores, float64.

    Why it costs time:
        Tensor Cores multiply 5 to 16 times as fast: an A100 reaches 19.5 TFLOP/s in float32 on CUDA cores and 156 in
        TF32.

    How it is measured:
        Time of gemm kernels with verdict "no". Verdicts have four values: helpers (split-K tails, layout copies) are
        no matrix maths, and what neither the name nor the achieved FLOP/s tell stays unknown and is not counted.
        Vector products (gemv), products with a dimension of 16 or less, products whose recorded shapes say that
        memory bounds them, kernels as short as any kernel, types under 10 us in total and devices without Tensor
        Cores (Pascal and older, GeForce GTX 16) never count. Whether TF32 is allowed is read from the captured facts,
        else from other products that use it. The saving is bounded by the roofline on Tensor Cores where shapes are
        recorded, else by the ratio of peaks. Kernels that a convolution launched belong to PD203.

    How to fix:
        float32: allow TF32, or train under autocast; where TF32 is allowed already, make M, N and K multiples of 8.
        float64: usually an accident, see PD204. Half precision on CUDA cores: alignment or layout; make dimensions
        multiples of 8.

    When it is wrong:
        When float32 accuracy is needed. Without recorded shapes small products cannot be told from large ones.

    Needs:
        Kernels; shapes and stacks to say which op and where.

    References:
        NVIDIA Deep Learning Performance, "Matrix Multiplication Background"; PyTorch CUDA semantics, "TensorFloat-32".
    """

    rule: ClassVar[str] = "PD201"
    name: ClassVar[str] = "gemm-without-tensor-cores"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share: less than a hundredth of the step is not worth a change of precision.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding for each operand type that takes at least `min_share` of the step."""
        for missed in missed_tensor_cores(rank, "gemm"):
            cost = rank.per_step(missed.total_ns)
            if self.matters(rank, cost):
                yield self._told(rank, missed, cost)

    def _told(self, rank: RankRun, missed: Missed, cost: int) -> Finding:
        op = top_op(rank, missed.rows)
        cause = _cause(rank, missed)
        pointer = missed.operand == "fp64"  # PD204 tells of all float64 at once: nothing is promised twice
        saved = saved_share(rank, missed.rows, cause.remedy)
        finding = self.finding(
            rank,
            title=f"{missed.share_of_category:.0%} of the matrix product time runs on CUDA cores"
            + (f" in {missed.operand}" if missed.operand else "")
            + cause.although,
            cost_ns=cost,
            saving=Saving() if pointer else Saving(0, None, round(cost * saved), "bounded"),
            advice=cause.advice,
            fix=cause.fix,
            claim=Claim() if pointer else Claim(missed.time, kernels=True),
            confidence=0.9 if "shapes" in rank.evidence else 0.8,
            location=place_of_op(rank, op) if op else None,
            evidence=(
                Evidence("launched by", op),
                Evidence("peak of the remedy over the present peak", cause.remedy.peak_ratio, "x"),
                *top_kernels(rank, missed.rows),
            ),
            subject=missed.operand or "",
            edit=None if pointer else kernels_sped_up(rank.trace, missed.rows, saved),
        )
        return replace(finding, severity="info") if pointer else finding


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why products run on CUDA cores, and what helps."""

    advice: str
    remedy: Remedy
    fix: str | None = None
    although: str = ""


def _cause(rank: RankRun, missed: Missed) -> _Cause:
    """By what the trace shows: the operand type, and what the other products use."""
    if missed.operand == "fp64":
        return _Cause("These products are float64, usually by accident: PD204 tells what that costs in all.", Remedy())
    if missed.operand in _HALF:
        return _Cause(
            "Alignment or layout keep half precision off the Tensor Cores: make M, N and K multiples of 8.",
            half_remedy(rank, missed.operand),
        )
    remedy = precision_remedy(rank) if missed.operand == "fp32" else Remedy()
    advice, fix = _ADVICE[remedy.name], _FIX.get(remedy.name or "")
    if remedy.name == "tf32" and _tf32_allowed(rank):
        return _Cause(
            "TF32 is allowed already: the sizes or layouts of these products keep them off the Tensor Cores. Make M, N "
            "and K multiples of 8, or train under autocast in bfloat16.",
            remedy,
            None,
            " although TF32 is on",
        )
    if missed.operand == "fp32" and (half := _other_type(rank)):
        return _Cause(
            f"The other products are in {half}: these stand outside of autocast, or something turns their inputs into "
            f"float32. {advice}",
            remedy,
            fix,
            f", the others in {half}",
        )
    return _Cause(advice, remedy, fix)


def _tf32_allowed(rank: RankRun) -> bool:
    """Whether float32 products may use TF32: as captured, else because some of those in the window do."""
    flags: Any = (rank.facts or {}).get("flags")
    if isinstance(flags, dict) and isinstance(flags.get("matmul_allow_tf32"), bool):
        return bool(flags["matmul_allow_tf32"])
    return bool((_on_tensor_cores(rank) & rank.kernels_where(lambda k: k.operand == "tf32")).any())


def _other_type(rank: RankRun) -> str | None:
    """The half precision type in which most of the products on Tensor Cores run; None when they do not."""
    dur_ns, rows = rank.trace.gpu.dur_ns, _on_tensor_cores(rank)
    for operand in _HALF:
        of_type = rows & rank.kernels_where(lambda k, operand=operand: k.operand == operand)
        if 2 * int(dur_ns[of_type].sum()) > int(dur_ns[rows].sum()):
            return operand
    return None


def _on_tensor_cores(rank: RankRun) -> BoolArray:
    return matrix_rows(rank, "gemm") & rank.verdicts.is_("yes")
