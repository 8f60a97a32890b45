"""PD203: convolutions that run on CUDA cores though the device has Tensor Cores."""

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

_CHANNELS_LAST = "model = model.to(memory_format=torch.channels_last)"
_ADVICE: Mapping[str | None, tuple[str, str]] = MappingProxyType(
    {
        "tf32": (
            "Float32 convolutions use TF32 on this device unless that was turned off: allow it, use channels_last, "
            "let cuDNN choose by measuring; or train under autocast in bfloat16.",
            f"torch.backends.cudnn.allow_tf32 = True\ntorch.backends.cudnn.benchmark = True\n{_CHANNELS_LAST}",
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
            f"torch.backends.cudnn.benchmark = True\n{_CHANNELS_LAST}",
        ),
        "fp64": ("These convolutions are float64, usually by accident: find the tensor that brings it in.", ""),
        None: ("Use a precision for which the device has Tensor Cores (autocast), with channels_last.", ""),
    }
)


class ConvolutionWithoutTensorCores(RankAnalyzer):
    """Convolutions run on CUDA cores although the device has Tensor Cores.

    What it finds:
        Convolution kernels whose name proves that they use CUDA cores (scudnn, convolve_sgemm, FFMA), on a device
        that has Tensor Cores.

    Why it costs time:
        As for matrix products: Tensor Cores are 5 to 16 times as fast.

    How it is measured:
        Time of convolution kernels with verdict "no". Helpers (Winograd transforms of inputs, layout copies, FFT
        passes) and depthwise convolutions, which gain nothing, do not count.

    How to fix:
        Autocast, channels_last, channel counts that are multiples of 8, cuDNN's benchmark mode.

    When it is wrong:
        A first layer with three input channels cannot use Tensor Cores well. The peak ratio is an upper bound:
        convolutions with few channels are bound by bandwidth.

    Needs:
        Kernels.

    References:
        NVIDIA Deep Learning Performance, "Convolutional Layers User's Guide"; PyTorch Performance Tuning Guide.
    """

    rule: ClassVar[str] = "PD203"
    name: ClassVar[str] = "convolution-without-tensor-cores"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step."""
        missed = missed_tensor_cores(rank, "convolution")
        if missed is None:
            return
        cost = rank.per_step(missed.total_ns)
        if (rank.share(cost) or 0) < self.settings["min_share"]:
            return
        op = top_op(rank, missed.rows)
        kind, ratio = _remedy(rank, missed)
        advice, fix = _ADVICE[kind]
        yield self.finding(
            rank,
            title=f"{missed.share_of_category:.0%} of the convolution time runs on CUDA cores"
            + (f" in {missed.operand}" if missed.operand else ""),
            cost_ns=cost,
            saving=Saving(0, None, cost if ratio is None else round(cost * (1 - 1 / ratio)), "bounded"),
            advice=advice,
            fix=fix or None,
            claim=Claim(missed.time, kernels=True),
            confidence=0.8,
            location=place_of_op(rank, op) if op else None,
            evidence=(
                Evidence("launched by", op),
                Evidence("peak of the remedy over the present peak", ratio, "x"),
                *top_kernels(rank, missed.rows),
            ),
        )


def _remedy(rank: RankRun, missed: Missed) -> tuple[str | None, float | None]:
    """Which advice to give and how much faster its peak is (None: not known, or not a matter of precision)."""
    if missed.operand in ("fp16", "bf16"):
        return "half", None
    if missed.operand == "fp64":
        return "fp64", None
    remedy = reduced_precision_advice(rank.device, rank.source.device.capability, rank.source.vendor)
    return (remedy.precision, remedy.peak_ratio) if remedy else (None, None)
