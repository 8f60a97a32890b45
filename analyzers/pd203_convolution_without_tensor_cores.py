"""PD203: convolutions that run on CUDA cores though the device has Tensor Cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
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

_CHANNELS_LAST = "model = model.to(memory_format=torch.channels_last)"
_BENCHMARK = f"torch.backends.cudnn.benchmark = True\n{_CHANNELS_LAST}"
_FP64 = "These convolutions are float64, usually by accident: PD204 tells what that costs in all."
_ADVICE: Mapping[str | None, tuple[str, str]] = MappingProxyType(
    {
        "tf32": (
            "Float32 convolutions use TF32 on this device unless that was turned off: allow it, use channels_last, "
            "let cuDNN choose by measuring; or train under autocast in bfloat16.",
            f"torch.backends.cudnn.allow_tf32 = True\n{_BENCHMARK}",
        ),
        "tf32 is on": (
            "TF32 is allowed already: layout or channel counts keep these convolutions off the Tensor Cores. Use "
            "channels_last and multiples of 8 (a first layer may have too few channels), and let cuDNN choose by "
            "measuring; or train under autocast in bfloat16.",
            _BENCHMARK,
        ),
        "bf16 autocast": (
            "Train under autocast in bfloat16, with channels_last.",
            f'{_CHANNELS_LAST}\nwith torch.autocast("cuda", dtype=torch.bfloat16): ...',
        ),
        "fp16 autocast": (
            "This device has Tensor Cores for float16 only: train under autocast in float16 with a GradScaler, with "
            "channels_last and channel counts that are multiples of 8.",
            f'{_CHANNELS_LAST}\nwith torch.autocast("cuda", dtype=torch.float16): ...   # and a torch.amp.GradScaler',
        ),
        "half": (
            "These convolutions are in half precision already: layout or channel counts keep them off the Tensor "
            "Cores. Use channels_last and multiples of 8 (a first layer may have too few channels), and let the "
            "library choose by measuring.",
            _BENCHMARK,
        ),
        "half on amd": (
            "These convolutions are in half precision already: MIOpen chose kernels for the vector units (Winograd, "
            "direct, naive). Use channels_last with PYTORCH_MIOPEN_SUGGEST_NHWC=1, and let MIOpen choose by measuring.",
            _BENCHMARK,
        ),
        None: ("Use a precision for which the device has Tensor Cores (autocast), with channels_last.", ""),
    }
)


class ConvolutionWithoutTensorCores(RankAnalyzer):
    """Convolutions run on CUDA cores although the device has Tensor Cores.

    What it finds:
        Convolution kernels that are known to use CUDA cores (scudnn, convolve_sgemm, FFMA; sgemm where a convolution
        launched it), on a device that has Tensor Cores; one finding for each operand type.

    Why it costs time:
        As for matrix products: Tensor Cores are 5 to 16 times as fast.

    How it is measured:
        Time of convolution kernels, and of gemm kernels that a convolution launched, with verdict "no". Helpers
        (Winograd transforms of inputs, layout copies, FFT passes), depthwise convolutions and those in groups of
        under 8 channels, which gain nothing, do not count; nor does what memory bounds by its recorded shapes. The
        saving is bounded by the roofline on Tensor Cores where shapes are recorded, else by the ratio of peaks.

    How to fix:
        Autocast, channels_last, channel counts that are multiples of 8, cuDNN's benchmark mode.

    When it is wrong:
        A first layer with three input channels cannot use Tensor Cores well. Without shapes the peak ratio is an
        upper bound: convolutions with few channels are bound by bandwidth. Winograd kernels do with fewer
        multiplications, so that Tensor Cores gain less over them than the peaks say.

    Needs:
        Kernels; launches to tell the products of convolutions from others, shapes for a closer bound.

    References:
        NVIDIA Deep Learning Performance, "Convolutional Layers User's Guide"; PyTorch Performance Tuning Guide.
    """

    rule: ClassVar[str] = "PD203"
    name: ClassVar[str] = "convolution-without-tensor-cores"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share: as for PD201.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding for each operand type that takes at least `min_share` of the step."""
        for missed in missed_tensor_cores(rank, "convolution"):
            cost = rank.per_step(missed.total_ns)
            if self.matters(rank, cost):
                yield self._told(rank, missed, cost)

    def _told(self, rank: RankRun, missed: Missed, cost: int) -> Finding:
        op = top_op(rank, missed.rows)
        pointer = missed.operand == "fp64"  # PD204 tells of all float64 at once: nothing is promised twice
        kind, remedy = (None, Remedy()) if pointer else _remedy(rank, missed)
        advice, fix = (_FP64, "") if pointer else _ADVICE[kind]
        saved = saved_share(rank, missed.rows, remedy)
        finding = self.finding(
            rank,
            title=f"{missed.share_of_category:.0%} of the convolution time runs on CUDA cores"
            + (f" in {missed.operand}" if missed.operand else ""),
            cost_ns=cost,
            saving=Saving() if pointer else Saving(0, None, round(cost * saved), "bounded"),
            advice=advice,
            fix=fix or None,
            claim=Claim() if pointer else Claim(missed.time, kernels=True),
            confidence=0.8 if remedy.peak_ratio else 0.6,
            location=place_of_op(rank, op) if op else None,
            evidence=(
                Evidence("launched by", op),
                Evidence("peak of the remedy over the present peak", remedy.peak_ratio, "x"),
                *top_kernels(rank, missed.rows),
            ),
            subject=missed.operand or "",
            edit=None if pointer else kernels_sped_up(rank.trace, missed.rows, saved),
        )
        return replace(finding, severity="info") if pointer else finding


def _remedy(rank: RankRun, missed: Missed) -> tuple[str | None, Remedy]:
    """Which advice to give, and what it would gain."""
    if missed.operand in ("fp16", "bf16"):
        return "half on amd" if rank.source.vendor == "amd" else "half", half_remedy(rank, missed.operand)
    remedy = precision_remedy(rank)
    return "tf32 is on" if remedy.name == "tf32" and _tf32_allowed(rank) else remedy.name, remedy


def _tf32_allowed(rank: RankRun) -> bool:
    """Whether float32 convolutions may use TF32: as captured, else because some of those in the window do."""
    flags: Any = (rank.facts or {}).get("flags")
    if isinstance(flags, dict) and isinstance(flags.get("cudnn_allow_tf32"), bool):
        return bool(flags["cudnn_allow_tf32"])
    tf32 = rank.kernels_where(lambda k: k.operand == "tf32" and k.tensor_core == "yes")
    return bool((tf32 & matrix_rows(rank, "convolution")).any())
