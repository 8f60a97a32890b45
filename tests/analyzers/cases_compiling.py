"""Cases of the rule about compiling in the middle of training: PD108."""

from __future__ import annotations

from typing import Any

from rule_cases import TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

PHASE = "_compile.compile_inner (dynamo_timed)"


def compiling(
    *steps: int, count: int = 5, device: str | None = None, phase: str = PHASE, ids: bool = True
) -> TraceBuilder:
    """Steps of 1000 us with one region of compiled code each, some of which compile for 500 us before."""
    trace = TraceBuilder(device=device)
    for step in range(count):
        at = 1000 * step
        trace.step(at, 1000).op("aten::addmm", at + 600, 390).op("Torch-Compiled Region: 0/0", at + 590, 405)
        if step in steps:
            trace.op("dynamo", at + 48, 504).op(phase, at + 50, 500)
            if phase == PHASE:
                trace.op("bytecode_tracing (dynamo_timed)", at + 60, 90)
            if ids:
                name = f"entire_frame_compile_data: fn_name=_compile.compile_inner, compile_id=0/{step}"
                trace.range(name, at + 49, 0.5)
    return trace


def compile_annotations() -> TraceBuilder:
    """As older versions of PyTorch record it: phases as annotations, no ids."""
    trace = TraceBuilder(device=None)
    for step in range(4):
        trace.step(1000 * step, 1000).op("aten::addmm", 1000 * step + 600, 390)
    return trace.range("_compile (dynamo_timed)", 3100, 200).range(
        "OutputGraph.call_user_compiler (dynamo_timed)", 3110, 180
    )


def while_the_gpu_works(until: float) -> TraceBuilder:
    """The GPU has work until some time of each step; it compiles from 50 to 550 us of the last one."""
    trace = compiling(4, device="NVIDIA A100-SXM4-80GB")
    for at in range(0, 5000, 1000):
        trace.kernel(TENSOR_GEMM, at + 10, until - 10, launch_us=at)
        trace.kernel(TENSOR_GEMM, at + 600, 399, launch_us=at + 598)
    return trace


def at_a_line() -> TraceBuilder:
    trace = compiling(2, 3)
    trace.frame("train.py(12): train_step", 2000, 2000)
    return trace


def facts(base: dict[str, int] | None, steps: int = 10, **more: Any) -> dict[str, Any]:
    """Facts of a capture with this compile time in its base window; None for a capture without one."""
    windows = {"skip": {"frames": 3, "ns": 9_000_000_000}} | ({} if base is None else {"base": base})
    return {"base_step_ns": [1_000_000] * steps, "compile": {"windows": windows, **more}}


PD108 = [
    RuleCase(
        "PD108",
        "two-sizes-that-change",
        lambda: compiling(0, 2, 4),
        (
            ExpectedFinding(
                "medium",
                200_000,
                (0, None, 200_000),
                title="in 2 of 3 steady steps",
                evidence={"compile ids": "0/2, 0/4", "frames compiled": 1, "compiled regions per step": 1.0},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD108",
        "the-first-of-a-capture-is-steady",
        lambda: compiling(0),
        (ExpectedFinding("info", 0, (None, None, None), title="Once in this trace"),),
        facts(None),
    ),
    RuleCase(
        "PD108",
        "less-without-the-profiler",
        lambda: compiling(0, 2),
        (ExpectedFinding("medium", 200_000, (0, 60_000, 200_000), title="in 2 of 5 steady steps"),),
        facts({"frames": 3, "ns": 600_000}),
    ),
    RuleCase(
        "PD108", "annotations", compile_annotations, (ExpectedFinding("low", 50_000, evidence={"compile ids": None}),)
    ),
    RuleCase(
        "PD108",
        "the-gpu-runs-dry-meanwhile",
        lambda: while_the_gpu_works(200),
        (
            ExpectedFinding(
                "info", 0, (None, None, None), title="Once in this trace: torch.compile compiles for 0.35 ms"
            ),
        ),
    ),
    RuleCase(
        "PD108",
        "by-the-facts",
        lambda: compiling(),
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, None, 400_000),
                title="in 2 of 10 steady steps",
                evidence={"recompilations of the whole run": 7, "graph breaks of the whole run": 1},
            ),
        ),
        facts({"frames": 2, "ns": 4_000_000}, recompiles=7, graph_breaks=1),
    ),
    RuleCase(  # the recorded steps compile nothing, and are a twentieth of what the others take
        "PD108",
        "most-of-the-run",
        lambda: compiling(),
        (
            ExpectedFinding(
                "medium",
                98_000_000,
                (0, None, 98_000_000),
                title="98% of the run compiles: torch.compile takes 2.94 s in 12 of 30 steps",
            ),
        ),
        {
            "base_step_ns": [100_000_000] * 10,
            "run": {"unprofiled_steps": 30, "unprofiled_ns": 3_000_000_000},
            "compile": {"windows": {name: {"frames": 6, "ns": 1_470_000_000} for name in ("base", "after")}},
        },
    ),
    RuleCase(  # in two recorded steps of eight, each as long as a hundred others: no one-off
        "PD108",
        "most-of-the-run-in-a-few-steps",
        lambda: compiling(1, 4, count=8),
        (ExpectedFinding("medium", 125_000, (0, 125_000, 125_000), title="90% of the run compiles"),),
        {
            "base_step_ns": [1_000_000] * 10,
            "run": {"unprofiled_steps": 126, "unprofiled_ns": 1_000_000_000},
            "compile": {"windows": {"base": {"frames": 0, "ns": 0}, "after": {"frames": 11, "ns": 900_000_000}}},
        },
    ),
    RuleCase(
        "PD108",
        "a-tenth-of-the-run",
        lambda: compiling(),
        facts={
            "base_step_ns": [1_000_000] * 10,
            "run": {"unprofiled_steps": 10_000, "unprofiled_ns": 10_000_000_000},
            "compile": {"windows": {"base": {"frames": 3, "ns": 3_000_000}}},
        },
    ),
    RuleCase(  # ten thousand steps after a few that compiled
        "PD108",
        "long-ago",
        lambda: compiling(),
        facts={
            "base_step_ns": [1_000_000] * 10,
            "run": {"unprofiled_steps": 10_000, "unprofiled_ns": 10_000_000_000},
            "compile": {"windows": {"base": {"frames": 3, "ns": 9_000_000}, "after": {"frames": 0, "ns": 0}}},
        },
    ),
    RuleCase(
        "PD108",
        "a-line",
        at_a_line,
        (ExpectedFinding("medium", 200_000, location="train.py:12", title="at train.py:12"),),
    ),
    RuleCase("PD108", "too-little", lambda: compiling(), facts=facts({"frames": 1, "ns": 90_000})),
    RuleCase("PD108", "warm-up", lambda: compiling(0, 1)),
    RuleCase("PD108", "compiled-code-only-runs", lambda: compiling(ids=False)),
    RuleCase("PD108", "hidden-behind-the-gpu", lambda: while_the_gpu_works(598)),
    RuleCase("PD108", "before-the-windows-of-a-capture", lambda: compiling(), facts=facts(None, recompiles=2)),
    RuleCase("PD108", "no-steps-timed", lambda: compiling(), facts=facts({"frames": 2, "ns": 4_000_000}, steps=0)),
    RuleCase("PD108", "a-look-up-is-no-compiling", lambda: compiling(2, 3, phase="TorchDynamo Cache Lookup")),
]
