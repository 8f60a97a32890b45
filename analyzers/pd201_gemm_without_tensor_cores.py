"""PD201: matrix products that run on CUDA cores though the device has Tensor Cores."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analyzers._missed_tensor_cores import (
    Cause,
    Missed,
    TensorCoresMissed,
    half_remedy,
    precision_remedy,
    tf32_allowed,
)
from perfdoctor.rank import Rank
from perfdoctor.rules.matrix_kernels import MatrixCategory, Remedy, on_tensor_cores

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


class GemmWithoutTensorCores(TensorCoresMissed):
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

    category: ClassVar[MatrixCategory] = "gemm"

    def cause(self, rank: Rank, missed: Missed) -> Cause:
        """By what the trace shows: the operand type, and what the other products use."""
        sure = 0.9 if "shapes" in rank.available_data else 0.8  # shapes tell small products, which gain nothing
        if missed.operand in _HALF:
            return Cause(
                "Alignment or layout keep half precision off the Tensor Cores: make M, N and K multiples of 8.",
                half_remedy(rank, missed.operand),
                sure,
            )
        remedy = precision_remedy(rank) if missed.operand == "fp32" else Remedy()
        advice, fix = _ADVICE[remedy.name], _FIX.get(remedy.name or "")
        if remedy.name == "tf32" and tf32_allowed(rank, "gemm"):
            return Cause(
                "TF32 is allowed already: the sizes or layouts of these products keep them off the Tensor Cores. Make "
                "M, N and K multiples of 8, or train under autocast in bfloat16.",
                remedy,
                sure,
                although=" although TF32 is on",
            )
        if missed.operand == "fp32" and (half := _other_type(rank)):
            return Cause(
                f"The other products are in {half}: these stand outside of autocast, or something turns their inputs "
                f"into float32. {advice}",
                remedy,
                sure,
                fix,
                f", the others in {half}",
            )
        return Cause(advice, remedy, sure, fix)


def _other_type(rank: Rank) -> str | None:
    """The half precision type in which most of the products on Tensor Cores run; None when they do not."""
    dur_ns, rows = rank.trace.gpu.dur_ns, on_tensor_cores(rank, "gemm")
    for operand in _HALF:
        of_type = rows & rank.kernel_classes.match_rows(lambda k, operand=operand: k.operand == operand)
        if 2 * int(dur_ns[of_type].sum()) > int(dur_ns[rows].sum()):
            return operand
    return None
