"""Cases of the rule about incomplete traces: PD002."""

from __future__ import annotations

from rule_cases import TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase


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


def note(title: str, **evidence: object) -> tuple[ExpectedFinding, ...]:
    return (
        ExpectedFinding(
            "info", 0, (None, None, None), title=title, evidence={k.replace("_", " "): v for k, v in evidence.items()}
        ),
    )


def frames_only(step: bool, op: bool = False) -> TraceBuilder:
    """Python's frames, and the mark of a step."""
    trace = TraceBuilder(device=None)
    trace.frame("train.py(3): main", 0, 1000)
    if step:
        trace.step(0, 1000)
    return trace.op("aten::mm", 10, 5) if op else trace


def without_work(advice: str) -> tuple[ExpectedFinding, ...]:
    return (ExpectedFinding("medium", 1_000_000, title="No op of PyTorch is in the trace", advice=advice),)


PD002 = [
    RuleCase("PD002", "export-after-the-schedule", lambda: frames_only(True), without_work("begins its next cycle")),
    RuleCase(
        "PD002", "ops-in-other-threads", lambda: frames_only(False), without_work("ops of other threads are not in")
    ),
    RuleCase("PD002", "one-op", lambda: frames_only(True, op=True)),
    RuleCase("PD002", "one-op-without-steps", lambda: frames_only(False, op=True)),
    RuleCase("PD002", "three-quarters", lambda: kernels(6, 2), note("Only 75% of the GPU items", launch_coverage=75.0)),
    RuleCase("PD002", "without-steps", lambda: kernels(9, 1, stepped=False), note("Only 90% of the GPU items")),
    RuleCase("PD002", "an-event-without-time", lambda: unreadable(10), note("1 events could not", events_read=10)),
    RuleCase("PD002", "many-of-them", lambda: unreadable(2000, 30), note("30 events could not be read"), via_file=True),
    RuleCase(
        "PD002",
        "both",
        lambda: kernels(3, 3).event(ph="X", cat="kernel", name="k", pid=0, tid=7),
        (*note("1 events could not"), *note("Only 50% of the GPU items")),
    ),
    RuleCase("PD002", "healthy", build_healthy_trace),
    RuleCase("PD002", "nineteen-of-twenty", lambda: kernels(19, 1)),
    RuleCase("PD002", "no-calls-recorded", lambda: kernels(0, 8, calls=False)),
    RuleCase("PD002", "launched-before-the-recording", launched_before_recording),
    RuleCase("PD002", "one-in-a-thousand", lambda: unreadable(1000)),
]
