"""Cases of the rules about steps as such: PD003."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rule_cases import LOADER, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder


def steps_of(*lengths_us: float, device: str | None = "NVIDIA A100-SXM4-80GB", busy: bool = True) -> TraceBuilder:
    """Steps of such lengths; the GPU works through all of each (`busy`) or for the first 900 us."""
    trace, at = TraceBuilder(device=device), 0.0
    for length in lengths_us:
        trace.step(at, length)
        if device is None:
            trace.op("aten::addmm", at, length if busy else 900)
        else:
            trace.kernel(TENSOR_GEMM, at + 5, (length if busy else 900) - 5, launch_us=at)
        at += length
    return trace


def evaluation() -> TraceBuilder:
    """The fifth of six steps has a range of the user's after its usual work."""
    trace = steps_of(1000, 1000, 1000, 1000, 4000, 1000, device=None, busy=False)
    return trace.range("evaluate", 4950, 3000).range("inner", 4960, 2990).op("aten::mm", 5000, 100)


def slow_loader() -> TraceBuilder:
    return (
        steps_of(*[1000] * 7, 2000, busy=False).range(LOADER, 7950, 1000).kernel(TENSOR_GEMM, 8955, 45, launch_us=8952)
    )


def evaluation_in_each_step() -> TraceBuilder:
    trace = steps_of(*[1000] * 6, device=None, busy=False)
    for number in range(6):
        trace.range("evaluate", 1000 * number + 910, 80)
    return trace


def loader_in_each_step() -> TraceBuilder:
    trace = steps_of(*[2000] * 6, busy=False)
    for number in range(6):
        trace.range(LOADER, 2000 * number + 950, 1000)
    return trace


def marks_ahead(*lengths_us: float) -> TraceBuilder:
    """Marks of these lengths, in each of which a kernel is launched; the GPU needs 1000 us for each and is behind."""
    trace, at = TraceBuilder(), 0.0
    for row, length in enumerate(lengths_us):
        trace.kernel(TENSOR_GEMM, 1000 * (row + 1), 1000, launch_us=at + 1)
        trace.step(at, length)
        at += length
    return trace


TWO_KINDS = (1000, 1000, 3000, 1000, 3000, 1000, 3000)


def timed(
    lengths_us: Sequence[float],
    cpu_us: Sequence[float] | None = None,
    preempted: list[int] | None = None,
    backwards: list[int] | None = None,
) -> dict[str, Any]:
    """Facts of a capture about the steps of its trace."""
    cpu_ns = None if cpu_us is None else [round(1000 * us) for us in cpu_us]
    return {
        "timing_step_ns": [round(1000 * us) for us in lengths_us],
        "timing_cpu_ns": cpu_ns,
        "timing_preempted": preempted,
        "timing_backwards": backwards,
    }


def passes(*forwards: int, backwards: Sequence[int] = (1, 1, 1, 1, 1)) -> TraceBuilder:
    """A step for each number of forward passes of ten ops of 10 us, with so many backward passes of 100 us."""
    trace, at = TraceBuilder(device=None), 0.0
    for forward, backward in zip(forwards, backwards, strict=True):
        trace.step(at, 100 * (forward + backward))
        for _ in range(10 * forward):
            trace.op(f"aten::op{int(at / 10) % 10}", at, 10)
            at += 10
        for number in range(backward):
            trace.op("autograd::engine::evaluate_function: MmBackward0", at, 100, sequence=number)
            at += 100
    return trace
