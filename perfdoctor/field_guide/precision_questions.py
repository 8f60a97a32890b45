"""Questions about Tensor Cores and numbers that rows of the field guide ask: 1 to 14, 38 to 40."""

from __future__ import annotations

from perfdoctor.field_guide.guide_row import Subject
from perfdoctor.field_guide.program_traits import ProgramTraits
from perfdoctor.field_guide.subjects import (
    all_of,
    convolutions,
    gradient_scaler,
    kernels,
    matrix_work,
    recurrent,
    tensor_cores,
    training,
)
from perfdoctor.report.finding import Finding
from perfdoctor.rules.requirements import REQUIREMENTS
from perfdoctor.units import format_share


def scaler_unscales(traits: ProgramTraits) -> str | None:
    """The op by which a GradScaler unscales."""
    op = traits.has_op(r"^aten::_amp_foreach_non_finite_check_and_unscale_$")
    return f"GradScaler unscales the gradients in each step ({op})" if op else None


def clipping(traits: ProgramTraits) -> Subject:
    """Gradients that a GradScaler scales and that are clipped."""
    found = all_of(training, gradient_scaler)(traits)
    if not found.is_present:
        return found
    clipped = traits.facts.amp.clipped
    if clipped is None:
        return Subject(None, REQUIREMENTS["facts"])
    return Subject(clipped > 0, f"gradients are clipped {clipped:,} times" if clipped else "gradients are not clipped")


def levels(traits: ProgramTraits) -> str | None:
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


def fast_path(traits: ProgramTraits) -> Subject:
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


def _of_convolution(traits: ProgramTraits, finding: Finding) -> bool:
    del traits
    return "convolution" in finding.topics


def of_narrow_convolution(traits: ProgramTraits, finding: Finding) -> bool:
    """Convolutions whose dtype suits Tensor Cores, so that their channels decide; float32 is row 38's."""
    if finding.rule == "PD203":
        return finding.subject != "fp32"
    return _of_convolution(traits, finding)


def of_recurrent(traits: ProgramTraits, finding: Finding) -> bool:
    """Whether a finding is about recurrent layers."""
    return bool(recurrent(traits).is_present and "recurrent" in finding.topics)


def of_product(traits: ProgramTraits, finding: Finding) -> bool:
    """Whether a finding is about matrix products."""
    return not _of_convolution(traits, finding)


def matrix_kernels(traits: ProgramTraits) -> Subject:
    """Matrix work on a device with Tensor Cores."""
    return all_of(tensor_cores, matrix_work)(traits)


def verdicts(traits: ProgramTraits) -> str | None:
    """How much of the matrix work's time Tensor Cores serve."""
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


def convolutions_to_compare(traits: ProgramTraits) -> Subject:
    """Convolutions by kernels, of which depthwise ones may have a share."""
    found = all_of(kernels, convolutions)(traits)
    if not found.is_present or not traits.depthwise_share:
        return found
    share = format_share(traits.depthwise_share)
    return Subject(None, f"{share} of their time is in depthwise ones: what dense ones do for it only training tells")


def dense(traits: ProgramTraits) -> str | None:
    """Convolutions of which none is depthwise."""
    return None if traits.depthwise_share else "no convolution is depthwise"
