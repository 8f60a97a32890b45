"""Cases of PD116, models left on the CPU, and of PD106 in programs that compute on the CPU."""

from __future__ import annotations

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

T4 = "Tesla T4"


def passes(
    *names: str, device: str | None = T4, us: float = 1000, frame: str | None = None, steps: int = 0
) -> TraceBuilder:
    """Twelve ops of `us` each, with the names in turn, and three short ones in the 10 us after each."""
    trace = TraceBuilder(device=device)
    for number in range(12):
        trace.op(names[number % len(names)], (us + 10) * number, us)
        for short in range(3):
            trace.op("aten::add", (us + 10) * number + us + 1 + 3 * short, 2)
    if frame:
        trace.frame(frame, 0, 12 * (us + 10))
    for step in range(steps):
        trace.step(step * 12 * (us + 10) / steps, 12 * (us + 10) / steps)
    return trace


def made_and_copied(maker: str, *, made_us: float = 900, device: str | None = T4, copied: bool = True) -> TraceBuilder:
    """Twelve times an op of `made_us` and a copy of 200 us to the GPU."""
    trace = TraceBuilder(device=device)
    for number in range(12):
        at = number * (made_us + 220)
        trace.op(maker, at, made_us)
        if maker == "aten::randn":
            trace.op("aten::normal_", at + 5, made_us - 10)
        if copied:
            trace.op("aten::to", at + made_us + 5, 205).op("aten::copy_", at + made_us + 6, 202)
            trace.call("cudaMemcpyAsync", at + made_us + 7, 200)
    return trace


def on_gpu() -> TraceBuilder:
    trace = TraceBuilder(device=T4)
    for number in range(12):
        trace.op("aten::mm", number * 1000, 50)
        trace.kernel("volta_sgemm_128x64_nn", number * 1000 + 20, 950, launch_us=number * 1000 + 10)
    return trace


def split_model(*, layer: str = "aten::addmm", busy: bool = False, first_layers: int = 4) -> TraceBuilder:
    """Four steps: some layers of 1 ms each on the CPU, a copy to the GPU, and four layers of 1 ms there.

    The GPU is `busy` meanwhile with the step before.
    """
    trace, length = TraceBuilder(device=T4), first_layers * 1000 + 4200
    if busy:
        trace.kernel("volta_sgemm_128x64_nn", 0, first_layers * 1000, launch_us=-10)
    for step in range(4):
        at = step * length
        trace.step(at, length)
        for number in range(first_layers):
            trace.op(layer, at + 1000 * number, 990)
        at += first_layers * 1000
        trace.op("aten::copy_", at, 40).memcpy(
            "HtoD", at + 20, 30, correlation=trace.call("cudaMemcpyAsync", at + 5, 10)
        )
        for number in range(4):
            trace.op("aten::addmm", at + 50 + 20 * number, 15)
            launched = trace.call("cudaLaunchKernel", at + 55 + 20 * number, 5)
            end = (length if busy else 4000) - 50
            trace.kernel("volta_sgemm_128x64_nn", at + 70 + end // 4 * number, end // 4, correlation=launched)
    return trace
