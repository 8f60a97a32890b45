"""Cases of the rule about incomplete traces: PD002."""

from __future__ import annotations

from rule_cases import TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace


def kernels(with_launch: int, without: int, calls: bool = True, stepped: bool = True) -> TraceBuilder:
    """Kernels of one step, some of them without a launch."""
    trace = TraceBuilder()
    if stepped:
        trace.step(0, 10 * (with_launch + without))
    for row in range(with_launch + without):
        launched = calls and row < with_launch
        trace.kernel(TENSOR_GEMM, 10 * row + 5, 4, launch_us=10 * row if launched else None)
    return trace


def unreadable(of: int, count: int = 1) -> TraceBuilder:
    """Some events without a time, among others."""
    trace = TraceBuilder(device=None)
    for row in range(of):
        trace.op("aten::mm", 10 * row, 5)
    for _ in range(count):
        trace.event(ph="X", cat="cpu_op", name="aten::mm", pid=1, tid=1)
    return trace


def launched_before_recording() -> TraceBuilder:
    """What was launched before the recording began lies before the first step."""
    trace = TraceBuilder()
    for row in range(20):
        trace.kernel(TENSOR_GEMM, 10 * row, 5)
    trace.step(300, 100)
    for row in range(5):
        trace.kernel(TENSOR_GEMM, 305 + 10 * row, 5, launch_us=301 + row)
    return trace


def frames_only(step: bool, op: bool = False) -> TraceBuilder:
    """Python's frames, and the mark of a step."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 1000)
    if step:
        trace.step(0, 1000)
    return trace.op("aten::mm", 10, 5) if op else trace
