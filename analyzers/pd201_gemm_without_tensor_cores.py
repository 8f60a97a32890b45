"""PD201: matrix products that run on CUDA cores though the device has Tensor Cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.matrix import Missed, missed_tensor_cores, top_kernels, top_op
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.diagnosis.source import place_of_op
from perfdoctor.gpu.devices import reduced_precision_advice

_FIX: Mapping[str, str] = MappingProxyType(
    {
        "tf32": 'torch.set_float32_matmul_precision("high")',
        "bf16 autocast": 'with torch.autocast("cuda", dtype=torch.bfloat16): ...',
        "fp16 autocast": 'with torch.autocast("cuda", dtype=torch.float16): ...   # and a torch.amp.GradScaler',
    }
)


class GemmWithoutTensorCores(RankAnalyzer):
    """Matrix products run on CUDA cores although the device has Tensor Cores.

    What it finds:
        GEMM kernels whose name proves that they use CUDA cores (FFMA, SIMT, legacy sgemm), on a device that has
        Tensor Cores.

    Why it costs time:
        Tensor Cores multiply 5 to 16 times as fast: an A100 reaches 19.5 TFLOP/s in float32 on CUDA cores and 156 in
        TF32.

    How it is measured:
        Time of gemm kernels with verdict "no". Verdicts have four values: helpers (split-K tails, layout copies) are
        no matrix maths, and what a name does not tell stays unknown and is not counted. Vector products (gemv),
        products with a dimension of 16 or less, and devices without Tensor Cores (Pascal and older, GeForce GTX 16)
        never count.

    How to fix:
        float32: allow TF32, or train under autocast. float64: usually an accident, find where it comes from. Half
        precision on CUDA cores:
        alignment or layout; make dimensions multiples of 8.

    When it is wrong:
        When float32 or float64 accuracy is needed. Without recorded shapes small products cannot be told from large
        ones.

    Needs:
        Kernels; shapes and stacks to say which op and where.

    References:
        NVIDIA Deep Learning Performance, "Matrix Multiplication Background"; PyTorch CUDA semantics, "TensorFloat-32".
    """

    rule: ClassVar[str] = "PD201"
    name: ClassVar[str] = "gemm-without-tensor-cores"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step."""
        missed = missed_tensor_cores(rank, "gemm")
        if missed is None:
            return
        cost = rank.per_step(missed.total_ns)
        if (rank.share(cost) or 0) < self.settings["min_share"]:
            return
        op = top_op(rank, missed.rows)
        kind, ratio = _remedy(rank, missed)
        high = cost if ratio is None else round(cost * (1 - 1 / ratio))
        yield self.finding(
            rank,
            title=f"{missed.share_of_category:.0%} of the matrix product time runs on CUDA cores"
            + (f" in {missed.operand}" if missed.operand else ""),
            cost_ns=cost,
            saving=Saving(0, None, high, "bounded"),
            advice=_advice(missed, kind),
            fix=_FIX.get(kind or ""),
            claim=Claim(missed.time, kernels=True),
            confidence=0.9 if "shapes" in rank.evidence else 0.8,
            location=place_of_op(rank, op) if op else None,
            evidence=(
                Evidence("launched by", op),
                Evidence("peak of the remedy over the present peak", ratio, "x"),
                *top_kernels(rank, missed.rows),
            ),
            subject=missed.operand or "",
        )


def _remedy(rank: RankRun, missed: Missed) -> tuple[str | None, float | None]:
    """The precision to advise and how much faster its peak is; (None, None) where it is not a matter of precision."""
    if missed.operand == "fp32":
        advice = reduced_precision_advice(rank.device, rank.source.device.capability, rank.source.vendor)
        return (advice.precision, advice.peak_ratio) if advice else (None, None)
    return None, None


def _advice(missed: Missed, kind: str | None) -> str:
    if missed.operand == "fp64":
        return "These products are float64, usually by accident: find the tensor that brings it in, make it float32."
    if missed.operand in ("fp16", "bf16"):
        return "Alignment or layout keep half precision off the Tensor Cores: make M, N and K multiples of 8."
    if kind == "tf32":
        return "Allow TF32 for float32 products, or train under autocast in bfloat16: both use Tensor Cores."
    if kind == "bf16 autocast":
        return "On this device TF32 is no faster than float32: train under autocast in bfloat16."
    if kind == "fp16 autocast":
        return "This device has Tensor Cores for float16 only: train under autocast in float16 with a GradScaler."
    return "Use a precision for which the device has Tensor Cores: autocast, or TF32 where the device has it."
