"""Cases of the rule about compiling in the middle of training: PD108."""

from __future__ import annotations

from typing import Any

from rule_cases import TENSOR_GEMM

from perfdoctor.testing import TraceBuilder

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
