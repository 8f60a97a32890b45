"""PD203: convolutions that run on CUDA cores though the device has Tensor Cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from perfdoctor.analyzers._matrix_remedies import Remedy
from perfdoctor.analyzers._missed_tensor_cores import (
    Cause,
    MissedKernels,
    MissedTensorCores,
    find_float32_remedy,
    find_half_of_tf32,
    find_half_remedy,
    is_tf32_allowed,
)
from perfdoctor.rules import MatrixCategory, Rank, advise

# By the name of the remedy, or by what is so already, the situation in the table of advice.
_SITUATIONS: Mapping[str | None, str] = {
    "tf32": "float32 convolutions: TF32",
    "tf32 is on": "float32 convolutions: TF32 is on",
    "bf16 autocast": "float32 convolutions: bfloat16",
    "fp16 autocast": "float32 convolutions: float16",
    "half": "half-precision convolutions",
    "half on amd": "half-precision convolutions on an AMD device",
    None: "float32 convolutions",
}


class ConvolutionWithoutTensorCores(MissedTensorCores):
    """Convolutions run on CUDA cores although the device has Tensor Cores."""

    rule = "PD203"
    name = "convolution-without-tensor-cores"
    needs = frozenset({"kernels"})
    # min_share: share of the step, as for PD201.
    defaults = {"min_share": 0.01}
    references = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    category: ClassVar[MatrixCategory] = "convolution"

    def find_cause(self, rank: Rank, missed: MissedKernels) -> Cause:
        """The cause by the operand type, and by whether float32 may use TF32 already."""
        case: str | None = "half on amd" if rank.hardware.vendor == "amd" else "half"
        if missed.operand in ("fp16", "bf16"):
            remedy = find_half_remedy(rank, missed.operand)
        else:
            remedy = Remedy() if missed.operand == "fp64" else find_float32_remedy(rank)
            case = "tf32 is on" if remedy.name == "tf32" and is_tf32_allowed(rank, "convolution") else remedy.name
        advice = advise(_SITUATIONS[case], rank.context)
        better = find_half_of_tf32(rank, remedy)
        return Cause(advice, remedy, 0.8 if remedy.peak_ratio else 0.6, better=better)
