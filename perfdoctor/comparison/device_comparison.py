"""A program on two devices: what its time follows, what is usual by their rates, and which part did not get its share.

The work of both sides is paired by op, sizes and module. What the second device should take of a pair is the first
device's time, scaled as `perfdoctor expect` scales it; what takes longer than the whole range has a reason, if any is
seen: the kernels of an older generation, another library path, a unit without Tensor Cores, too little work to fill the
device, or all kernels alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from perfdoctor.analysis.device_work import DeviceWork, ratios_on
from perfdoctor.analysis.kernels.device_scaling import NOTHING, SCALES_WITH
from perfdoctor.comparison.recording import Recording
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import Device, classify_kernel, find_device
from perfdoctor.trace.arrays import FloatArray
from perfdoctor.value_limits import Amount, Share, Signed

ShareReason = Literal[
    "older_kernels", "no_tensor_cores", "tf32_off", "other_path", "small_work", "all_alike", "unknown"
]

MAX_LOST = 5
# Of the second device's step; less is not worth a line.
_MIN_LOST = 0.01
# Work that scales with nothing on one side is short, or leaves most of the device empty.
_STAYS = SCALES_WITH[NOTHING]
# All kernels alike: this share of the time has a partner and takes so many times the usual, within a quarter of the
# median.
_ALIKE_SHARE, _ALIKE_RATIO, _ALIKE_SPREAD = 0.7, 1.25, 0.25
# The newest architecture, by a device's major one, for which libraries have kernels of their own for Tensor Cores.
_OWN_KERNELS = {8: (8, 0), 9: (9, 0), 10: (10, 0), 12: (8, 0)}
# Libraries name the kernels of each generation anew (nvjet, cutlass, xmma): that alone is no other path.
_PATHS = r"winograd|fft|implicit|depthwise|flash|fmha|triton|splitk|gemv|at::native"


@frozen_dataclass
class ScalingPart:
    """What the step's time follows: its time on both devices, in ns, and what is usual for the second one."""

    scales_with: str
    before_ns: int
    after_ns: int
    usual_low_ns: int
    usual_ns: int
    usual_high_ns: int


@frozen_dataclass
class LostShare:
    """Work that takes longer on the second device than is usual by the rates of both.

    Attributes:
        op, shape, module: What it is; "" where not known.
        before_ns, after_ns: Its time in a step.
        usual_ns, usual_high_ns: What is usual on the second device, and the longest of the range.
        reason: Why, as far as it is seen.
        kernel_before, kernel_after: The longest kernel of each side.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("op", "shape", "module", "before_ns", "after_ns", "usual_ns", "usual_high_ns", "lost_ns", "reason"),
        *("kernel_before", "kernel_after"),
    )

    op: str
    shape: str
    module: str
    before_ns: int
    after_ns: int
    usual_ns: int
    usual_high_ns: int
    reason: ShareReason
    kernel_before: str
    kernel_after: str

    @property
    def lost_ns(self) -> Signed:
        """How much longer it takes than usual."""
        return self.after_ns - self.usual_ns


@frozen_dataclass
class LoneWork:
    """Work of one side whose op, sizes and module the other side does not have: what it is, and its time in a step."""

    side: Literal["before", "after"]
    op: str
    shape: str
    module: str
    time_ns: int


@frozen_dataclass
class DeviceComparison:
    """A program on two devices; times in ns of a recorded step.

    Attributes:
        before, after: The devices.
        before_ns, after_ns: The mean step.
        usual_low_ns, usual_ns, usual_high_ns: What is usual on the second device, by the rates of both.
        parts: What the step's time follows.
        lost: What takes longer than the usual range, the most lost time first, at most MAX_LOST.
        paired_share: The share (0 to 1) of the second device's GPU time whose work has a partner.
        alone: The work of both sides without a partner, the longest first, at most MAX_LOST.
        pairs_by: What pairs work: "op, shape", and "module" where both sides know it; "op" alone without sizes.
        alike_ratio: How many times the usual all kernels take alike, which clocks or a power cap do; None elsewhere.
    """

    before: str
    after: str
    before_ns: int
    after_ns: int
    usual_low_ns: int
    usual_ns: int
    usual_high_ns: int
    parts: tuple[ScalingPart, ...]
    lost: tuple[LostShare, ...]
    paired_share: Share
    alone: tuple[LoneWork, ...]
    pairs_by: str
    alike_ratio: Amount | None = None


def compare_devices(before: Recording, after: Recording) -> DeviceComparison | None:
    """What became of a program on another device; None unless both are known, differ, and ran work with known rates."""
    here, there = (None if each.is_device_inferred else find_device(each.device) for each in (before, after))
    if here is None or there is None or here.name == there.name or not (before.device_work and after.device_work):
        return None
    ratios = ratios_on(there, here, before.device_work)
    parts = tuple(_compare_parts(before, after, ratios))
    names = _names_of_key(before.device_work, after.device_work)
    old, new = (_group(each.device_work, names) for each in (before, after))
    usual_ns = _usual_by_key(before.device_work, ratios, names)
    step_ns = sum(part.after_ns for part in parts)
    shares = [_describe(old[key], new[key], usual_ns[key], there) for key in new if key in old]
    paired_share = min(sum(each.after_ns for each in shares) / max(sum(w.time_ns for w in after.device_work), 1.0), 1.0)
    alike = _find_alike(shares) if paired_share >= _ALIKE_SHARE else None
    lost = [share for share in shares if share.after_ns > share.usual_high_ns and share.lost_ns >= _MIN_LOST * step_ns]
    if alike is not None:
        lost = [replace(each, reason="all_alike") if each.reason == "unknown" else each for each in lost]
    return DeviceComparison(
        before=here.name,
        after=there.name,
        before_ns=sum(part.before_ns for part in parts),
        after_ns=step_ns,
        usual_low_ns=sum(part.usual_low_ns for part in parts),
        usual_ns=sum(part.usual_ns for part in parts),
        usual_high_ns=sum(part.usual_high_ns for part in parts),
        parts=parts,
        lost=tuple(sorted(lost, key=lambda each: -each.lost_ns)[:MAX_LOST]),
        paired_share=paired_share,
        alone=tuple(sorted(_find_alone(old, new), key=lambda each: -each.time_ns)[:MAX_LOST]),
        pairs_by=", ".join(names),
        alike_ratio=alike,
    )


def _compare_parts(before: Recording, after: Recording, ratios: FloatArray) -> Iterator[ScalingPart]:
    """The parts of the step; work of a part has the mean ratio of its kernels, and the CPU takes as long as now."""
    for name in SCALES_WITH:
        old_ns, new_ns = (each.scaling_ns.get(name, 0.0) for each in (before, after))
        rows = [row for row, work in enumerate(before.device_work) if work.scales_with == name]
        weights = np.array([before.device_work[row].time_ns for row in rows])
        mean = weights @ ratios[rows] / weights.sum() if len(rows) and weights.sum() else np.ones(3)
        if old_ns or new_ns:
            yield ScalingPart(name, round(old_ns), round(new_ns), *(round(old_ns * float(each)) for each in mean))


def _names_of_key(*sides: Sequence[DeviceWork]) -> tuple[str, ...]:
    """What pairs the work: sizes and modules where both sides know some."""
    known = [name for name in ("shape", "module") if all(any(getattr(work, name) for work in side) for side in sides)]
    return ("op", *known)


_Key = tuple[str, ...]


def _key_of(work: DeviceWork, names: Sequence[str]) -> _Key:
    """What a kernel is paired by; without an op the kind of kernel stands for it."""
    op = work.op or f"{classify_kernel(work.kernel).category} kernels"
    return (op, *(getattr(work, name) for name in names[1:]))


def _group(works: Sequence[DeviceWork], names: Sequence[str]) -> dict[_Key, list[DeviceWork]]:
    groups: dict[_Key, list[DeviceWork]] = defaultdict(list)
    for work in works:
        groups[_key_of(work, names)].append(work)
    return groups


def _find_alone(
    old: Mapping[_Key, Sequence[DeviceWork]], new: Mapping[_Key, Sequence[DeviceWork]]
) -> Iterator[LoneWork]:
    sides: tuple[Literal["before", "after"], ...] = ("before", "after")
    for side, groups, others in zip(sides, (old, new), (new, old), strict=True):
        for key, works in groups.items():
            if key not in others:
                time_ns = round(sum(work.time_ns for work in works))
                yield LoneWork(side, key[0], works[0].shape, works[0].module, time_ns)


def _usual_by_key(works: Sequence[DeviceWork], ratios: FloatArray, names: Sequence[str]) -> Mapping[_Key, FloatArray]:
    result: dict[_Key, FloatArray] = defaultdict(lambda: np.zeros(3))
    for work, ratio in zip(works, ratios, strict=True):
        result[_key_of(work, names)] += work.time_ns * ratio
    return result


def _describe(old: Sequence[DeviceWork], new: Sequence[DeviceWork], usual_ns: FloatArray, there: Device) -> LostShare:
    one, other = old[0], new[0]  # the longest of each
    return LostShare(
        one.op or classify_kernel(other.kernel).category,
        other.shape,
        other.module,
        round(sum(work.time_ns for work in old)),
        round(sum(work.time_ns for work in new)),
        round(float(usual_ns[1])),
        round(float(usual_ns[2])),
        _find_reason(one, other, there),
        one.kernel,
        other.kernel,
    )


def _find_reason(old: DeviceWork, new: DeviceWork, there: Device) -> ShareReason:
    """Why the work did not get its share, by the longest kernel of each side."""
    before, after = classify_kernel(old.kernel), classify_kernel(new.kernel)
    if old.on_matrix_units and not new.on_matrix_units and after.tensor_core == "no":
        return "tf32_off" if before.operand == "tf32" else "no_tensor_cores"
    if new.on_matrix_units and _is_of_older_generation(after.arch, there):
        return "older_kernels"
    if new.scales_with == _STAYS and old.scales_with != _STAYS:
        return "small_work"
    if _path_of(old.kernel) != _path_of(new.kernel):
        return "other_path"
    return "unknown"


def _is_of_older_generation(arch: str | None, device: Device) -> bool:
    found = re.fullmatch(r"sm(\d+)(\d)", arch or "")
    own = _OWN_KERNELS.get((device.compute_capability or (0, 0))[0])
    return found is not None and own is not None and (int(found[1]), int(found[2])) < own


def _path_of(kernel: str) -> tuple[str, ...]:
    """The library and algorithm that a kernel's name shows."""
    return tuple(sorted(set(re.findall(_PATHS, kernel.lower()))))


def _find_alike(shares: Sequence[LostShare]) -> float | None:
    """How many times the usual the kernels take, where nearly all take alike; None elsewhere."""
    judged = [share for share in shares if share.usual_ns]
    if not judged:
        return None
    ratios = np.array([share.after_ns / share.usual_ns for share in judged])
    weights = np.array([share.after_ns for share in judged], np.float64)
    order = np.argsort(ratios)
    middle = float(ratios[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])
    near = np.abs(ratios / middle - 1) <= _ALIKE_SPREAD
    are_alike = near.sum() > 1 and weights[near].sum() >= _ALIKE_SHARE * weights.sum()
    return middle if are_alike and middle >= _ALIKE_RATIO else None
