"""What the step of a rank should take on another device, or usually takes on its own, with what that rests on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np

from perfdoctor.analysis.kernels.device_scaling import (
    CPU,
    LINK,
    NOTHING,
    SCALES_WITH,
    device_ratios_of,
    group_kernels,
    usual_ratios_of,
)
from perfdoctor.errors import InputError, UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import Device
from perfdoctor.gpu.roofline.efficiencies import ANY, count_samples
from perfdoctor.gpu.roofline.scale_kernels import ScalingKernels, gains_matrix_units, generation_name, unit_of, unit_on
from perfdoctor.rank import Rank
from perfdoctor.report.to_plain import to_plain
from perfdoctor.savings.expected_step import ExpectationGround, ExpectedStep, Verdict, expect_step, judge_step
from perfdoctor.trace.arrays import NONE, FloatArray, Int64Array
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.units import format_duration, format_share
from perfdoctor.value_limits import Share

_WIDE = 1.6  # the worst over the best time
_MIN_SHARE = 0.05  # of the GPU's time, to be named
_FEW_KINDS = 5  # quartiles of fewer say little


@frozen_dataclass
class Expectation:
    """What the step of a recording should take on a device.

    Attributes:
        version: The version of perfdoctor.
        path: The recorded file.
        rank: The number of the rank; None where the recording does not name it.
        steps: How many steps were analysed; 0 where the recording has none, and all times are of the whole.
        device: The device of the recording.
        on: The device of the expectation.
        generation: Its generation, such as "Hopper", or AMD's architecture; None where unknown.
        is_own_device: Whether both are the same: then the range is what comparable kernels take.
        cpu_scale: How many times as long the CPU's work takes.
        step: The step as recorded, and as expected.
        verdict: On the own device whether the step is as usual; None on another one.
        known_share: The share (0 to 1) of the GPU's time whose work is known; None where it does nothing.
        rests_on: What the expectation rests on, that of most time first.
        notes: Sentences: why the range is wide, what is assumed, what was left out.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("schema", "version", "path", "rank", "steps", "device", "on", "generation", "is_own_device"),
        *("cpu_scale", "step", "verdict", "known_share", "rests_on", "notes"),
    )

    schema: ClassVar[str] = "perfdoctor.expect/1"

    version: str
    path: str
    rank: int | None
    steps: int
    device: str
    on: str
    generation: str | None
    is_own_device: bool
    cpu_scale: Annotated[float, ("exclusiveMinimum", 0)]
    step: ExpectedStep
    verdict: Verdict | None
    known_share: Share | None
    rests_on: tuple[ExpectationGround, ...]
    notes: tuple[str, ...]

    @property
    def unit_name(self) -> str:
        """What the times are of: "step", or "recording" where there are no steps."""
        return "step" if self.steps else "recording"

    @property
    def is_wide(self) -> bool:
        """Whether the worst time is far from the best."""
        return self.step.high_ns > _WIDE * self.step.low_ns

    def to_dict(self) -> dict[str, Any]:
        """The expectation as plain data by schema perfdoctor.expect/1."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def expect_on(
    rank: Rank, there: Device | None, version: str, cpu_scale: float = 1.0, notes: tuple[str, ...] = ()
) -> Expectation:
    """What the step of a rank should take on a device.

    Args:
        rank: The rank.
        there: The device; None for the rank's own.
        version: The version of perfdoctor.
        cpu_scale: How many times as long the CPU's work takes there.
        notes: What was left out in reading.

    Raises:
        InputError: The recording has no work on a GPU of known peaks, or lacks most of it.
        UsageError: The peaks of the other device are not known.
    """
    here = _check_rank(rank)
    own = there is None or there.name == here.name
    there = here if there is None else there
    if there.memory_bandwidth_bytes_per_s is None or there.peak_flops("fp32") is None:
        raise UsageError(f"the peaks of {there.name} are not known; name another device, or add them to your own table")
    sized = _find_sized(rank)
    ratios = _find_ratios(rank, here, None if own else there)
    if sized is not rank:
        ratios = _average_by_name(sized, _find_ratios(sized, here, None if own else there), rank, ratios)
    weights_ns = _weights_ns(rank)
    split = {name: rank.per_step(ns) for name, ns in rank.time_by_scaling.items()}
    step = expect_step(rank.mean_step_ns, split, rank.scaling, weights_ns, ratios, rank.replay, cpu_scale)
    generation = generation_name(there)
    grounds = tuple(sorted(_find_grounds(sized, here, there), key=lambda ground: -ground.share))
    known_share = _known_share(sized)
    notes = (*_describe_assumptions(sized, here, there), *notes)
    made = Expectation(
        version,
        rank.trace.path,
        rank.rank,
        rank.steps.count,
        rank.hardware.label or here.name,
        there.name,
        generation if generation != ANY else None,
        own,
        cpu_scale,
        step,
        judge_step(step, known_share or 0.0) if own else None,
        known_share,
        grounds,
        (),
    )
    return replace(made, notes=(*_explain(made), *notes))


def _check_rank(rank: Rank) -> Device:
    path = rank.trace.path
    if rank.device_kind != "gpu":
        raise InputError(f"{path} has no work on a GPU, so nothing in it scales with one; give a recording of a GPU")
    if rank.is_subsampled:
        raise InputError(f"{path} lacks most of its events, so its step cannot be expected anywhere; give all of it")
    if rank.device is None:
        label = f" but that it is a {rank.hardware.label}" if rank.hardware.label else ""
        raise InputError(f"{path} does not say which GPU it is of{label}, so its peaks are unknown; give --device NAME")
    return rank.device


def _find_sized(rank: Rank) -> Rank:
    """The rank, or the evidence window of its capture where only that has the sizes of the work."""
    evidence = rank.evidence
    has_sizes = evidence is not None and "shapes" not in rank.available_data and evidence.device_kind == "gpu"
    return evidence if evidence is not None and has_sizes else rank


def _find_ratios(rank: Rank, here: Device, there: Device | None) -> FloatArray:
    """How many times as long each item takes on another device, or usually takes on its own."""
    facts = (rank.kernel_classes, rank.kernel_costs, rank.verdicts, rank.roof_shares.roof, rank.scaling)
    return usual_ratios_of(*facts, here) if there is None else device_ratios_of(*facts, here, there)


def _average_by_name(sized: Rank, known: FloatArray, rank: Rank, ratios: FloatArray) -> FloatArray:
    """The ratios of a rank's items, for names that occur in the sized window their average there."""
    names, result = sized.trace.gpu.name, ratios.copy()
    weights_ns = np.maximum(sized.trace.gpu.dur_ns, 1)
    code_of = {text: code for code, text in enumerate(rank.trace.strings)}
    for name in occurring(names).tolist():
        rows = rank.trace.gpu.name == code_of.get(sized.trace.strings[name], NONE)
        result[rows] = np.average(known[names == name], axis=0, weights=weights_ns[names == name])
    return result


def _weights_ns(rank: Rank) -> FloatArray:
    """The time of each GPU item that starts in the window, 0 for others."""
    return np.where(rank.in_window, rank.trace.gpu.dur_ns, 0).astype(np.float64)


def _known_share(rank: Rank) -> float | None:
    costs, works, weights_ns = rank.kernel_costs, rank.scaling != LINK, _weights_ns(rank)
    total_ns = float(weights_ns[works].sum())
    known = works & (~np.isnan(costs.bytes) | (rank.scaling == NOTHING))
    return float(weights_ns[known].sum()) / total_ns if total_ns else None


def _groups(rank: Rank) -> Iterator[tuple[Int64Array, ScalingKernels]]:
    return group_kernels(rank.kernel_classes, rank.kernel_costs, rank.verdicts, rank.roof_shares.roof, rank.scaling)


def _find_grounds(rank: Rank, here: Device, there: Device) -> Iterator[ExpectationGround]:
    """The families of kernels that take more than a little of the GPU's time, with the samples that stand for them."""
    weights_ns = _weights_ns(rank)
    total_ns = max(float(weights_ns[rank.scaling != LINK].sum()), 1.0)
    found: dict[tuple[str, str], list[float]] = {}
    for rows, kernels in _groups(rank):
        known = ~np.isnan(kernels.bytes)
        sums = found.setdefault((kernels.family, _unit_name(there, here, kernels)), [0.0, 0.0])
        sums[0] += float(weights_ns[rows].sum())
        sums[1] += float(weights_ns[rows[known]].sum())
    for (family, dtype), (all_ns, known_ns) in found.items():
        if all_ns >= _MIN_SHARE * total_ns:
            samples = count_samples(family, dtype, generation_name(there))
            yield ExpectationGround(family, dtype, min(all_ns / total_ns, 1.0), known_ns / all_ns, *samples)


def _describe_assumptions(rank: Rank, here: Device, there: Device) -> Iterator[str]:
    """Sentences for collectives, and for each type whose Tensor Cores the other device lacks."""
    weights_ns = _weights_ns(rank)
    collectives = rank.kernel_classes.match_rows(lambda kernel: kernel.category == "communication")
    if there.name != here.name and weights_ns[collectives].sum() > _MIN_SHARE * weights_ns.sum():
        yield "collectives are expected to follow the link, or, where they wait for other ranks, to take as long as now"
    lost = set()
    for _, kernels in _groups(rank):
        if gains_matrix_units(there, here, kernels) < 0:
            lost.add(unit_of(here, kernels.operand, kernels.on_matrix_units).name)
    for name in sorted(lost):
        yield f"{there.name} has no {name} on Tensor Cores: such products are taken to run on CUDA cores"


def _unit_name(there: Device, here: Device, kernels: ScalingKernels) -> str:
    return "any" if kernels.family == "memory" else unit_on(there, here, kernels).name


def _explain(made: Expectation) -> Iterator[str]:
    """Why the range is wide, and what is assumed."""
    step = made.step
    if step.reason is not None:
        yield f"not replayed but bounded by the account: {step.reason}"
    if made.is_wide and (made.known_share or 0.0) < 0.5:
        yield (
            f"the range is wide: the sizes behind {format_share(1 - (made.known_share or 0.0))} of the GPU's time were "
            "not recorded (record_shapes=True, or perfdoctor run)"
        )
    few = [ground for ground in made.rests_on if ground.of_generation < _FEW_KINDS]
    if few:
        names = " and ".join(dict.fromkeys(describe_kernels(ground) for ground in few))
        yield f"too few kernels of this generation were recorded for {names}; those of other generations stand for them"
    if not made.is_own_device:
        yield from _describe_cpu(made)


def _describe_cpu(made: Expectation) -> Iterator[str]:
    """How long the GPU waits for the CPU there, where that is much more than now, and that the CPU is the same."""
    step = made.step
    now_ns = sum(part.now_ns for part in step.parts if part.scales_with == SCALES_WITH[CPU])
    waits_ns = step.expected_ns - sum(
        part.now_ns * part.expected_ratio for part in step.parts if part.scales_with != SCALES_WITH[CPU]
    )
    same = "" if made.cpu_scale != 1 else "; it is taken to be the same (--cpu-scale)"
    if waits_ns > now_ns + _MIN_SHARE * step.expected_ns:
        waits, now = format_duration(waits_ns), format_duration(now_ns)
        yield f"the GPU waits for the CPU there for {waits} of the {made.unit_name}, now for {now}{same}"
    elif same:
        yield "the CPU is taken to be the same (--cpu-scale)"


def describe_kernels(ground: ExpectationGround) -> str:
    """What kernels a ground is of, such as "gemm in bf16"."""
    return ground.family if ground.dtype == "any" else f"{ground.family} in {ground.dtype}"
