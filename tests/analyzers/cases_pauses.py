"""Cases of calls that keep the CPU from its work: PD110, PD113 and PD515."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rule_cases import LOADER, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder

MS = 1_000_000
LINE = {"file": "train.py", "line": 30, "function": "fit"}
FRAMES = {
    "collect": "<built-in function collect>",
    "fsync": "<built-in function fsync>",
    "save": "/venv/torch/serialization.py(944): save",
    "deepcopy": "copy.py(128): deepcopy",
    "print": "<built-in function print>",
}


def training(*frames: tuple[str, float], device: str | None = None, rank: int | None = None) -> TraceBuilder:
    """Four steps of 10 ms; on the CPU with an op of 4 ms and then frames that take so many ms, one after the other."""
    ranks = {} if rank is None else {"rank": rank, "world_size": 2}
    trace = TraceBuilder(device=device, **ranks)  # type: ignore[arg-type]
    for number in range(4):
        at = 10_000 * number
        trace.step(at, 10_000)
        if device is None:
            trace.op("aten::addmm", at, 4000)
        else:
            trace.kernel(TENSOR_GEMM, at + 10, 4000, launch_us=at)
        begin = at + 4000.0
        for name, dur_ms in frames:
            trace.range("@train.py:8 write", begin, 1000 * dur_ms).frame(FRAMES[name], begin, 1000 * dur_ms)
            begin += 1000 * dur_ms
    return trace


def captured(*calls: Mapping[str, Any], world_size: int = 1, **collector: int) -> Mapping[str, Any]:
    """Facts of 20 steps without a profiler, of 10 ms each in the median, and of 240 ms together."""
    return {
        "base_step_ns": [10 * MS] * 3,
        "world_size": world_size,
        "run": {"steps": 40, "median_ns": 10 * MS, "unprofiled_steps": 20, "unprofiled_ns": 240 * MS},
        "collector": {"enabled": True, "frozen": 0, "location": LINE, "collect_calls": 0, **collector},
        "host_calls": list(calls),
    }


def calls_of(call: str, each_ms: float, steps: int, **others: Any) -> Mapping[str, Any]:
    """One call in each of some steps, which take 10 ms and the call."""
    each_ns = round(each_ms * MS)
    return {
        "call": call,
        "location": LINE,
        "count": steps,
        "ns": each_ns * steps,
        "steps": steps,
        "step_ns": steps * (10 * MS + each_ns),
        "largest_step_ns": each_ns,
        **others,
    }


def collected(each_ms: float, steps: int, **others: int) -> Mapping[str, Any]:
    """Facts of a program that calls gc.collect in so many steps."""
    of_calls = calls_of("gc.collect", each_ms, steps)
    keys = ("ns", "steps", "step_ns", "largest_step_ns")
    return captured(**{"collect_calls": steps, **{f"collect_{key}": of_calls[key] for key in keys}, **others})


def collected_by_itself(each_ms: float, steps: int, **others: int) -> Mapping[str, Any]:
    """Facts of a program in which Python collects in so many steps."""
    of_calls = calls_of("gc.collect", each_ms, steps)
    figures = {f"collection_{key}": of_calls[key] for key in ("steps", "step_ns", "largest_step_ns")}
    return captured(**{"collections": steps, "collections_ns": of_calls["ns"], **figures, **others})


def saves_of_ranks(each_ms: float, steps: int, wait_ms: float = 0.0, **others: Any) -> Mapping[str, Any]:
    """Facts of one of two ranks that save the same; steps with a save are longer by that, and by a wait."""
    step_ns = round(steps * (10 + each_ms + wait_ms) * MS)
    same = {"checksum": "4096-0badcafe", "bytes": 4096 * steps, "step_ns": step_ns}
    return captured(calls_of("torch.save", each_ms, steps, **{**same, **others}), world_size=2)


def two_ranks() -> list[TraceBuilder]:
    return [training(rank=0), training(rank=1)]


def collecting_on_gpu(kernel_us: float) -> TraceBuilder:
    """Four steps of 10 ms with a kernel and, from 5 to 7 ms, a collection."""
    trace = TraceBuilder()
    for number in range(4):
        at = 10_000 * number
        trace.step(at, 10_000).kernel(TENSOR_GEMM, at + 10, kernel_us, launch_us=at)
        trace.range("perfdoctor::gc.collect", at + 5000, 2000)
    return trace


def copying(name: str, ms: float = 3) -> TraceBuilder:
    """Four steps of 10 ms in which a range, or a frame, of such a name is around or inside of a copy of so many ms."""
    trace = training(("deepcopy", ms))
    for at in range(4000, 40_000, 10_000):
        if name == LOADER:
            trace.range(name, at - 10, 1000 * ms + 20)
        else:
            trace.frame(name, at + 10, 1000 * ms - 20)
    return trace


def saving_with_fsync() -> TraceBuilder:
    trace = training(("save", 3))
    trace.frame(FRAMES["fsync"], 4100, 2000)
    return trace


GPU = "NVIDIA A100-SXM4-80GB"


def evaluating(
    calls: int = 4, function: str = "validate", *, every: int = 1, used: bool = False, device: str | None = None
) -> TraceBuilder:
    """Four steps of 1 ms that call a model so often in a function, 100 us each and 20 us between, and then train it.

    `every`: in how many steps they do. `used`: whether the backward pass goes through these calls, too.
    """
    trace = TraceBuilder(device=device)
    for step in range(4):
        at, number = 1000.0 * step, 10 * step
        trace.step(at, 1000)
        for call in range(calls if step % every == 0 else 0):
            start = at + 120 * call
            trace.range(f"perfdoctor::module_call @train.py:8 {function}", start, 100)
            trace.op("aten::addmm", start, 100, sequence=number + 9 if used else None)
            if device is not None:
                trace.kernel(TENSOR_GEMM, start + 10, 100, launch_us=start + 2)
        trace.range("perfdoctor::module_call @train.py:20 main", at + 600, 100)
        trace.op("aten::addmm", at + 600, 100, sequence=number)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 710, 200, sequence=number)
        if used:
            trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 920, 50, sequence=number + 9)
        if device is not None:
            trace.kernel(TENSOR_GEMM, at + 610, 100, launch_us=at + 602)
            trace.kernel(TENSOR_GEMM, at + 720, 200, launch_us=at + 712)
    return trace
