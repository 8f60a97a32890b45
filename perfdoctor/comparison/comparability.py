"""Whether two recordings can be compared: the same device, model, shapes, ranks, phase and recorder, and steps at all.

Where they differ the tables are shown all the same, but nothing is judged: each reason is a sentence with what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from perfdoctor.comparison.recording import Recording
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.trace import vocabulary

# Two recordings are of one model where their steps share half of the work: a fused attention is 4 of 7 calls a layer.
_SAME_MODEL = 0.5


@frozen_dataclass
class Reason:
    """Why two sides cannot be judged: what differs, and a sentence with what to do."""

    aspect: Literal["steps", "device", "model", "shapes", "ranks", "phase", "recorder"]
    sentence: str


def find_differences(before: Sequence[Recording], after: Sequence[Recording]) -> tuple[Reason, ...]:
    """The reasons why the step of two sides cannot be judged; empty where it can."""
    checks: tuple[Callable[[Sequence[Recording], Sequence[Recording]], Iterator[Reason]], ...] = (
        _check_steps,
        _check_devices,
        _check_work,
        _check_ranks,
        _check_phases,
        _check_recorders,
    )
    return tuple(reason for check in checks for reason in check(before, after))


def _check_steps(before: Sequence[Recording], after: Sequence[Recording]) -> Iterator[Reason]:
    without = [each.path for each in (*before, *after) if not each.has_steps]
    if not without:
        return
    if len(without) == len(before) + len(after):
        sentence = (
            "neither side has steps, so whole recordings are compared, whose lengths are accidents: record with "
            "prof.step() in the loop, or with perfdoctor run"
        )
    else:
        sentence = (
            f"{without[0]} has no steps, and the other side has: record it with prof.step() in the loop, or with "
            "perfdoctor run"
        )
    yield Reason("steps", sentence)


def _check_devices(before: Sequence[Recording], after: Sequence[Recording]) -> Iterator[Reason]:
    # What kernels say is a family of devices, which has another name than a device of it.
    inferred = _values(before, after, lambda each: each.device if each.is_device_inferred else None)
    named = _values(before, after, lambda each: None if each.is_device_inferred else each.device)
    devices = max(inferred, named, key=len)
    kinds = _values(before, after, lambda each: each.device_kind)
    if len(devices) > 1:
        yield Reason(
            "device",
            f"the devices differ ({' and '.join(devices)}), so no change of the program can be judged: record both on "
            "the same device for that",
        )
    elif len(kinds) > 1:
        names = {"gpu": "on a GPU", "cpu": "on the CPU", "gpu_not_recorded": "on a GPU that was not recorded"}
        where = " and the other ".join(names.get(kind, kind) for kind in kinds)
        yield Reason("device", f"one side ran {where}: record both on the same device")


def _check_work(before: Sequence[Recording], after: Sequence[Recording]) -> Iterator[Reason]:
    """Whether a step does the same work: the same kinds of it, on the same shapes.

    Compiled code calls others ops than the same model in eager mode, and hides some: then nothing is said.
    """
    every = (*before, *after)
    if not all(each.matrix_ops for each in every) or len({is_compiled(each) for each in every}) > 1:
        return
    one, *others_of_both = every
    for other in others_of_both:
        kinds, others = _by_category(one), _by_category(other)
        if _similarity(kinds, others) < _SAME_MODEL:
            yield Reason(
                "model",
                f"the models differ, or much of one was changed ({_describe_unlike(kinds, others)}): "
                "compare recordings of one program, before and after a change",
            )
            return
        shapes = _count_shapes(one, other)
        if shapes is not None and _similarity(*shapes) < _SAME_MODEL:
            unlike = _describe_unlike(*shapes)
            yield Reason(
                "shapes",
                f"the shapes differ, so that a step does other work ({unlike}): record both with the same batch and "
                "model",
            )
            return


def is_compiled(recording: Recording) -> bool:
    """Whether a step runs code of torch.compile."""
    return any(re.search(vocabulary.COMPILED_OP, name) for name, _ in recording.matrix_ops)


def common_ops(recordings: Sequence[Recording]) -> set[str]:
    """The names of the matrix ops that a step of each recording calls."""
    return set.intersection(*({name for name, _ in each.matrix_ops} for each in recordings))


def _by_category(recording: Recording) -> dict[str, float]:
    """How often a step calls ops of each category, by name where compiled code hides it."""
    counts: dict[str, float] = {}
    for (name, _), count in recording.matrix_ops.items():
        category = classify_op(name)
        kind = category if category in MATRIX_CATEGORIES else name
        counts[kind] = counts.get(kind, 0.0) + count
    return counts


def _count_shapes(one: Recording, other: Recording) -> tuple[dict[str, float], dict[str, float]] | None:
    """How often a step of each recording calls an op on a shape; None where shapes are not known, or vary.

    Of the ops that both call, None without any: a fused one, as of a whole encoder layer in inference, replaces others.
    """
    known = all(any(shape for _, shape in each.matrix_ops) for each in (one, other))
    judged = common_ops((one, other))
    if not known or not judged or one.has_varying_shapes or other.has_varying_shapes:
        return None
    before, after = (
        {f"{name} {shape}": count for (name, shape), count in each.matrix_ops.items() if name in judged}
        for each in (one, other)
    )
    return before, after


def _similarity(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """The share of the calls that both have (the Jaccard index of multisets), from 0 to 1."""
    keys = {*one, *other}
    shared = sum(min(one.get(key, 0.0), other.get(key, 0.0)) for key in keys)
    every = sum(max(one.get(key, 0.0), other.get(key, 0.0)) for key in keys)
    return shared / every if every else 1.0


def _describe_unlike(one: Mapping[str, float], other: Mapping[str, float]) -> str:
    """The work in which two recordings differ most, in words."""
    key = max({*one, *other}, key=lambda each: (abs(one.get(each, 0.0) - other.get(each, 0.0)), each))
    return f"{key}: {one.get(key, 0.0):.3g} times a step before, {other.get(key, 0.0):.3g} after"


def _check_ranks(before: Sequence[Recording], after: Sequence[Recording]) -> Iterator[Reason]:
    counts = _values(before, after, lambda each: each.ranks)
    if len(counts) > 1:
        numbers = " and ".join(map(str, counts))
        yield Reason("ranks", f"the numbers of ranks differ ({numbers}): record both with the same number of ranks")


def _check_phases(before: Sequence[Recording], after: Sequence[Recording]) -> Iterator[Reason]:
    phases = _values(before, after, lambda each: None if each.phase == "unknown" else each.phase)
    if len(phases) > 1:
        yield Reason("phase", f"one side is {' and the other '.join(phases)}: record both in the same phase")


def _check_recorders(before: Sequence[Recording], after: Sequence[Recording]) -> Iterator[Reason]:
    every = (*before, *after)
    if all(each.is_unprofiled for each in every):
        return
    recorded = _values(before, after, lambda each: each.recorded)
    if len(recorded) > 1:
        what = " and the other ".join(f"with {', '.join(names)}" if names else "with neither" for names in recorded)
        yield Reason(
            "recorder",
            f"the profiler recorded one side {what} (shapes, stacks), which takes time in the step: record both alike, "
            "or with perfdoctor run, which times steps without the profiler",
        )


def _values(before: Sequence[Recording], after: Sequence[Recording], value_of: Callable[[Recording], Any]) -> list[Any]:
    """The distinct values of all recordings, in their order; None is not a value."""
    return [*dict.fromkeys(value for each in (*before, *after) if (value := value_of(each)) is not None)]
