"""Cases of the rule about copies that nothing overlaps: PD109."""

from __future__ import annotations

from rule_cases import ALL_REDUCE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder

A100 = "NVIDIA A100-SXM4-40GB"
LAYERS = 8
TRITON = "triton_poi_fused_add_0"


def layers(
    copy_us: float = 1000,
    kernel_us: float = 200,
    stream: int = 7,
    op: str = "aten::to",
    frame: str = "",
    device: str | None = A100,
    steps: int = 2,
    name: str = "",
    back: bool = False,
) -> TraceBuilder:
    """Steps that copy 24 MB before each of 8 layers, of which each waits for its weights; `back`: and back again."""
    trace = TraceBuilder(device=device)
    at = 0.0
    for _ in range(steps):
        layer_us = copy_us * (2 if back else 1) + kernel_us
        trace.step(at, LAYERS * layer_us)
        if frame:
            trace.frame(frame, at, LAYERS * layer_us)
        for _ in range(LAYERS):
            trace.op(op, at, 20)
            trace.memcpy(name or "HtoD", at, copy_us, 24_000_000, stream, launch_us=at, pinned=True)
            trace.kernel(TENSOR_GEMM, at + copy_us, kernel_us, launch_us=at + 10)
            if back:
                trace.memcpy("DtoH", at + copy_us + kernel_us, copy_us, 24_000_000, launch_us=at + 15, pinned=True)
            at += layer_us
    return trace


def by_diffusers() -> TraceBuilder:
    trace = layers(frame="/lib/diffusers/hooks/group_offloading.py(77): onload_", steps=1)
    trace.frame("/lib/diffusers/pipelines/flux/pipeline_flux.py(650): __call__", 0, LAYERS * 1200)
    return trace


def made_on_the_host() -> TraceBuilder:
    """Steps in which each of 10 masks is made on the host and copied, from memory of which AMD does not say more."""
    trace = TraceBuilder(device="AMD Instinct MI300X")
    for at in range(0, 2000, 100):
        if at % 1000 == 0:
            trace.step(at, 1000)
        trace.op("aten::ones", at, 2).op("aten::to", at + 3, 20)
        trace.memcpy("Memcpy HtoD (Host -> Device)", at + 10, 40, 4_000_000, launch_us=at + 5)
        trace.kernel(TENSOR_GEMM, at + 50, 50, launch_us=at + 15)
    return trace


def batch(
    kind: str = "HtoD", stream: int = 7, pinned: bool = True, hidden: bool = False, copy_us: float = 2000
) -> TraceBuilder:
    """Steps of 10 ms that copy a batch of 50 MB first, then compute."""
    trace = TraceBuilder(device=A100)
    for at in (0, 10_000):
        trace.step(at, 10_000).op("aten::to", at, 20)
        trace.memcpy(kind, at, copy_us, 50_000_000, stream, launch_us=at, pinned=pinned)
        start = 0 if hidden else copy_us
        trace.kernel(TENSOR_GEMM, at + start, 10_000 - start, launch_us=at + 1)
    return trace


def within(
    op: str, copy_us: float = 50, size: int = 10_000_000, around: str = "", kernel: str = SGEMM, count: int = 20
) -> TraceBuilder:
    """A step of 10 ms with copies from device to device, between the halves of the matrix maths."""
    trace = TraceBuilder(device=A100).step(0, 10_000)
    if around:
        trace.op(around, 0, 1000)
    trace.op(op, 1, 990)
    for number in range(count):
        trace.memcpy("DtoD", 100 + number * copy_us, copy_us, size, launch_us=10 + number)
    end = 100 + count * copy_us
    return trace.kernel(kernel, 0, 100, launch_us=0).kernel(kernel, end, 10_000 - end, launch_us=900)


def overlapping() -> TraceBuilder:
    """Two streams copy 15 MB each within the device, from 0 to 100 us and from 50 to 150 us: 30 MB in 150 us."""
    trace = TraceBuilder(device=A100).step(0, 1000)
    trace.memcpy("DtoD", 0, 100, 15_000_000, 20, launch_us=0).memcpy("DtoD", 50, 100, 15_000_000, 21, launch_us=1)
    return trace.kernel(TENSOR_GEMM, 150, 850, launch_us=2)


def without_kernels() -> TraceBuilder:
    """No kernel at all: weights of 270 MB come again and again."""
    trace = TraceBuilder(device=A100)
    for number in range(9):
        trace.memcpy("HtoD", number * 10_000, 9_747, 270_000_000, launch_us=number * 10_000, pinned=True)
    return trace


def beside_collectives() -> TraceBuilder:
    trace = TraceBuilder(device=A100).step(0, 1000).memcpy("HtoD", 0, 500, launch_us=0, pinned=True)
    return trace.kernel(ALL_REDUCE, 0, 500, 20, launch_us=1).kernel(TENSOR_GEMM, 500, 500, launch_us=2)


def two_devices() -> TraceBuilder:
    """A step that sends activations from one GPU to another, which then computes."""
    trace = TraceBuilder(device=A100).step(0, 1000).kernel(TENSOR_GEMM, 0, 400, launch_us=0)
    trace.memcpy("PtoP", 400, 200, 4_000_000, launch_us=1)
    return trace.kernel(TENSOR_GEMM, 600, 400, launch_us=2, device=1)
