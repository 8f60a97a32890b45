"""Rows of the field guide about Tensor Cores and numbers: 1 to 14, 38 to 40."""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import GuideRow, Subject
from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.field_guide.subjects import (
    all_of,
    convolutions,
    gpu,
    gradient_scaler,
    gradient_sharing,
    kernels,
    matrix_work,
    products,
    recurrent,
    reduced_precision,
    tensor_cores,
    training,
)
from perfdoctor.report.finding import Finding
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_share

_MAIN_SHARE = 0.9
_HALF = {"c10::Half": "float16", "c10::BFloat16": "bfloat16"}
_SHAPES = "input shapes (record_shapes=True, or `perfdoctor run`)"


def _scaler_unscales(traits: ProgramTraits) -> str | None:
    op = traits.has_op(r"^aten::_amp_foreach_non_finite_check_and_unscale_$")
    return f"GradScaler unscales the gradients in each step ({op})" if op else None


def _clipping(traits: ProgramTraits) -> Subject:
    """Gradients that a GradScaler scales and that are clipped."""
    found = all_of(training, gradient_scaler)(traits)
    if not found.is_present:
        return found
    clipped = traits.facts.amp.clipped
    if clipped is None:
        return Subject(None, REQUIREMENTS["facts"])
    return Subject(clipped > 0, f"gradients are clipped {clipped:,} times" if clipped else "gradients are not clipped")


def _levels(traits: ProgramTraits) -> str | None:
    """The three levels as this program has them."""
    share, account = tensor_core_share(traits), traits.account
    if share is None or not account:
        return None
    outside = 1 - sum(traits.time_share.get(name, 0.0) for name in ("gemm", "convolution", "attention"))
    return (
        f"Tensor Cores do {format_share(share)} of the matrix work's time; {format_share(account['compute'])} of the "
        f"{traits.unit} is near the compute roof; {format_share(outside)} of the kernel time is outside of matrix work"
    )


def tensor_core_share(traits: ProgramTraits) -> float | None:
    """Share (0 to 1) of the known time of matrix work that Tensor Cores do, slow path included; None if unknown."""
    use = {name: ns or 0 for name, ns in traits.tensor_core.items()}
    known = sum(use.get(name, 0) for name in ("used", "slow_path", "not_used"))
    return (use.get("used", 0) + use.get("slow_path", 0)) / known if known else None


def _fast_path(traits: ProgramTraits) -> Subject:
    """Matrix work on Tensor Cores, whose dimensions matter."""
    found = all_of(tensor_cores, matrix_work)(traits)
    if not found.is_present:
        return found
    share = tensor_core_share(traits)
    if share is None:
        return Subject(None, "whether Tensor Cores are used is not known of these kernels: name the --device")
    if share == 0:
        return Subject(False, "no matrix work runs on Tensor Cores yet: row 38 comes first")
    return Subject(True, f"Tensor Cores do {format_share(share)} of the matrix work's time")


def _convolutions_to_compare(traits: ProgramTraits) -> Subject:
    found = all_of(kernels, convolutions)(traits)
    if not found.is_present or not traits.depthwise_share:
        return found
    share = format_share(traits.depthwise_share)
    return Subject(None, f"{share} of their time is in depthwise ones: what dense ones do for it only training tells")


def _dense(traits: ProgramTraits) -> str | None:
    return None if traits.depthwise_share else "no convolution is depthwise"


def _of_convolution(traits: ProgramTraits, finding: Finding) -> bool:
    del traits
    return "convolution" in finding.topics


def _of_narrow_convolution(traits: ProgramTraits, finding: Finding) -> bool:
    """Convolutions whose dtype suits Tensor Cores, so that their channels decide; float32 is row 38's."""
    if finding.rule == "PD203":
        return finding.subject != "fp32"
    return _of_convolution(traits, finding)


def _of_recurrent(traits: ProgramTraits, finding: Finding) -> bool:
    return bool(recurrent(traits).is_present and "recurrent" in finding.topics)


def _of_product(traits: ProgramTraits, finding: Finding) -> bool:
    return not _of_convolution(traits, finding)


def _matrix_kernels(traits: ProgramTraits) -> Subject:
    return all_of(tensor_cores, matrix_work)(traits)


def _verdicts(traits: ProgramTraits) -> str | None:
    use = {name: ns or 0 for name, ns in traits.tensor_core.items()}
    whole = sum(use.values())
    if not whole or use.get("unknown", 0) == whole:
        return None
    parts = (
        ("used", "on Tensor Cores"),
        ("slow_path", "on their slow path"),
        ("not_used", "without them"),
        ("unknown", "in kernels whose type is not known"),
    )
    said = ", ".join(f"{format_share(use[name] / whole)} {words}" for name, words in parts if use.get(name))
    return f"of the time of products, convolutions and attention {said}"


ROWS = (
    GuideRow(
        1,
        "A",
        "Gradients of a scaled loss are unscaled before they update the weights.",
        ("PD505",),
        "facts, or the ops of the optimizer's step",
        gradient_scaler,
        _scaler_unscales,
        since="torch.amp.GradScaler does it in scaler.step; bfloat16 needs no scale.",
    ),
    GuideRow(
        2,
        "A",
        "Clipping and regularisation see gradients that are unscaled.",
        ("PD505",),
        "facts",
        _clipping,
        since="scaler.unscale_(optimizer) before clip_grad_norm_; weight decay of AdamW does not touch gradients.",
    ),
    GuideRow(
        3,
        "A",
        "Master weights stay the same on all GPUs.",
        ("PD516",),
        "facts of all ranks",
        gradient_sharing,
        since="DDP and FSDP keep them so; what an own loop changes on one rank only is still a fault.",
    ),
    GuideRow(
        4,
        "AD",
        "The loss is computed in FP32, and so are reductions and norms.",
        ("PD506",),
        _SHAPES,
        reduced_precision,
        since="autocast keeps losses, softmax and norms in float32 by itself; a model cast by .half() does not.",
    ),
    GuideRow(
        5,
        "A",
        "Work on three levels: shapes for Tensor Cores, then arithmetic intensity, then less work outside of them.",
        ("PD201", "PD202", "PD203", "PD301", "PD303"),
        "kernels",
        _matrix_kernels,
        _levels,
        checked_by="the account",
        has_figure=True,
        since="Which level binds is measured instead of tried in order.",
    ),
    GuideRow(
        6,
        "AD",
        "M, N and K of matrix products are multiples of 8.",
        ("PD202",),
        _SHAPES,
        _fast_path,
        concerns=_of_product,
        since="16 bytes: 4 values of TF32, 8 of FP16 and BF16, 16 of FP8; since cuBLAS 11 others are only slower.",
    ),
    GuideRow(
        7,
        "AD",
        "Fully connected layers: batch, inputs and outputs are multiples of 8; dictionaries are padded.",
        ("PD202",),
        f"{_SHAPES}; the model's layers from facts",
        all_of(_fast_path, products),
        concerns=_of_product,
        since="The vocabulary of a language model is padded, to 64 or 128 as a rule.",
    ),
    GuideRow(
        8,
        "A",
        "Recurrent layers: batch, hidden size, embedding and dictionary are multiples of 8.",
        ("PD202",),
        _SHAPES,
        all_of(gpu, recurrent, _fast_path),
        concerns=_of_recurrent,
    ),
    GuideRow(
        9,
        "AD",
        "Convolutions: channels are multiples of 8.",
        ("PD203", "PD202"),
        _SHAPES,
        all_of(convolutions, _fast_path),
        concerns=_of_narrow_convolution,
        since="cuDNN 7.3 lifted the condition; since then it costs a transposition or a padded copy.",
    ),
    GuideRow(
        10,
        "A",
        "Minibatch, layers, vocabulary and sequence are padded to multiples of 8.",
        ("PD202",),
        _SHAPES,
        _fast_path,
        concerns=_of_product,
        since="PD202 names the dimension and what the padding costs; masks keep padded tokens out of the loss.",
    ),
    GuideRow(
        12,
        "AD",
        "Weights and gates of recurrent cells are concatenated, and their inputs over time.",
        ("PD206",),
        "kernels and launches",
        all_of(gpu, recurrent),
        concerns=_of_recurrent,
        since="nn.LSTM and nn.GRU do both by cuDNN; only cells in a loop of one's own need it.",
    ),
    GuideRow(
        13,
        "A",
        "Dense convolutions are preferred to depthwise ones.",
        (),
        f"kernels; {_SHAPES}",
        _convolutions_to_compare,
        _dense,
        checked_by="the share of depthwise kernels",
        since="EfficientNetV2 came to the same conclusion for the early layers (Fused-MBConv).",
    ),
    GuideRow(
        14,
        "AD",
        "Wider layers and a larger K cost little where products are small.",
        ("PD206",),
        f"kernels; {_SHAPES}",
        all_of(kernels, products),
        since="The roofline of the device says up to which width that is so: `perfdoctor show gemms`.",
    ),
    GuideRow(
        38,
        "D",
        "Mixed precision: twice to five times as fast, with the same accuracy and less memory.",
        ("PD201", "PD203"),
        "kernels",
        _matrix_kernels,
        checked_by="`perfdoctor try --only autocast-bf16`",
        since="torch.autocast instead of Apex; bfloat16 needs no loss scale; TF32 takes one line.",
    ),
    GuideRow(
        39,
        "D",
        "Tensor Cores serve convolutions, fully connected and recurrent layers.",
        ("PD201", "PD203"),
        "kernels",
        _matrix_kernels,
        _verdicts,
        checked_by="the classes of kernels",
        has_figure=True,
        since="And attention, as one fused kernel (scaled_dot_product_attention).",
    ),
    GuideRow(
        40,
        "D",
        "Kernels on Tensor Cores are known by their names: h884 (Volta), s1688 and h1688 (Turing).",
        (),
        "kernels",
        _matrix_kernels,
        _verdicts,
        checked_by="the verdicts of kernels",
        since="s16816 and tensorop (Ampere), sm90_xmma and wgmma (Hopper), tcgen05 (Blackwell), MFMA (AMD); Triton's "
        "and nvjet's are known by what they achieve.",
    ),
)
