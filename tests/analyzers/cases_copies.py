"""Cases of the rules about copies from and to the host: PD105, PD106."""

from __future__ import annotations

from rule_cases import LOADER, POINTWISE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder

A100 = "NVIDIA A100-SXM4-80GB"


def batch(
    kind: str = "HtoD",
    size: int = 6_000_000,
    waits: bool = True,
    device: str | None = A100,
    pinned: bool = False,
    steps: int = 1,
    name: str | None = None,
) -> TraceBuilder:
    """Steps of 10 ms: a copy of 1 ms within the op from 0 to 1.1 ms, and products from 1.15 ms until the end."""
    trace = TraceBuilder(device=device)
    for step in range(steps):
        at = 10_000 * step
        trace.step(at, 10_000).op("aten::to", at, 1100).op("aten::copy_", at + 10, 1080)
        call = trace.call("cudaMemcpyAsync", at + 50, 1000 if waits else 8)
        trace.memcpy(name or kind, at + 60, 1000, size_bytes=size, correlation=call, pinned=pinned)
        if waits:
            trace.call("cudaStreamSynchronize", at + 1060, 30)
        trace.kernel(TENSOR_GEMM, at + 1150, 8850, launch_us=at + 1120)
    return trace


def with_line(trace: TraceBuilder) -> TraceBuilder:
    return trace.range("@train.py:31", 0, 1100)


def to_host() -> TraceBuilder:
    """A result of 6 MB that the CPU waits 9 ms for and copies in 1 ms; the wait is no business of the copy."""
    trace = TraceBuilder().step(0, 10_000).kernel(TENSOR_GEMM, 20, 8930, launch_us=5)
    trace.op("aten::cpu", 20, 9940)
    return trace.memcpy("DtoH", 8960, 1000, 6_000_000, correlation=trace.call("cudaMemcpyAsync", 30, 9930))


def two_lines() -> TraceBuilder:
    """Two copies of 1 ms a step, at lines of their own."""
    trace = TraceBuilder().step(0, 10_000)
    for at, line in ((0, 7), (2000, 8)):
        trace.range(f"@train.py:{line}", at, 1100).op("aten::to", at, 1100)
        trace.memcpy("HtoD", at + 10, 1000, 6_000_000, correlation=trace.call("cudaMemcpyAsync", at + 10, 1000))
        trace.kernel(TENSOR_GEMM, at + 1020, 900, launch_us=at + 1015)
    return trace.kernel(TENSOR_GEMM, 4000, 6000, launch_us=3500)


def before_the_steps() -> TraceBuilder:
    trace = TraceBuilder().memcpy("HtoD", 10, 5000, 6_000_000, correlation=0)
    call = trace.call("cudaMemcpyAsync", 10, 5000)
    trace.memcpy("HtoD", 20, 4990, 6_000_000, correlation=call)
    return trace.step(6000, 1000).kernel(TENSOR_GEMM, 6005, 990, launch_us=6001)


def behind_kernels() -> TraceBuilder:
    """A pageable copy on a stream of its own while products run: nothing waits."""
    trace = TraceBuilder().step(0, 10_000).kernel(TENSOR_GEMM, 5, 9990, launch_us=0)
    return trace.memcpy("HtoD", 60, 1000, 6_000_000, stream=20, correlation=trace.call("cudaMemcpyAsync", 50, 1010))


PCIE_3 = {"nvml": {"devices": [{"max_pcie_generation": 3, "max_pcie_width": 16}]}}


def host_tensor(
    *ops: str, size: int = 64, name: str = "HtoD", loader: bool = False, first: bool = False, within: str = ""
) -> TraceBuilder:
    """Steps of 1000 us: kernels until 400 us, ops from 300 us on, the copy of the last one waits for them.

    The CPU goes on at 412 us and launches at 460 us what runs from 470 us on.
    """
    trace = TraceBuilder()
    for at in (0, 1000):
        trace.step(at, 1000)
        if not first:
            trace.kernel(TENSOR_GEMM, at + 10, 390, launch_us=at + 2)
        for number, op in enumerate(ops):
            trace.op(op, at + 300 + 10 * number, 8)
        if loader:
            trace.range(LOADER, at + 295, 10 * len(ops) + 5)
        if within:
            trace.op(within, at + 340, 80)
        trace.op("aten::to", at + 345, 70).op("aten::copy_", at + 346, 68)
        call = trace.call("cudaMemcpyAsync", at + 350, 5)
        trace.memcpy(name, at + 402, 2, size_bytes=size, correlation=call)
        trace.call("cudaStreamSynchronize", at + 356, 56)
        trace.kernel(TENSOR_GEMM, at + 470, 530, launch_us=at + 460)
    return trace


def beside_the_batch() -> TraceBuilder:
    """A list of labels that is copied right after the images."""
    trace = host_tensor("aten::empty")
    for at in (0, 1000):
        trace.memcpy("HtoD", at + 200, 1, 8_000_000, stream=20, launch_us=at + 200)
    return trace


def device_factory() -> TraceBuilder:
    """Zeros that were made on the GPU: the op before launched a kernel."""
    trace = host_tensor("aten::zeros")
    for at in (0, 1000):
        trace.kernel(POINTWISE, at + 400, 1, launch_us=at + 302)
    return trace


# The queue is empty from 400 to 470 us: a copy of 2 us and 68 us idle, 58 us of them behind the wait of 62 us.
