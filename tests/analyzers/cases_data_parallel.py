"""Cases of the rules about data-parallel training: PD405, PD406."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rule_cases import ALL_REDUCE, POINTWISE, TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
FORWARD = "DistributedDataParallel.forward"


def captured_model(**facts: Any) -> dict[str, Any]:
    """Captured facts with one model."""
    return {"models": [{"class": "Net", "data_parallel": False, "ddp": None} | facts]}


def search_step(span: tuple[float, float], *busy: tuple[float, float], device: str | None = "x") -> TraceBuilder:
    """A step that searches for unused parameters; the GPU computes in `busy`, launched at the end of the search."""
    trace = TraceBuilder(device=device and "NVIDIA A100-SXM4-80GB").step(0, 1000).range(FORWARD, 0, span[1])
    trace.op("torch.distributed.ddp.reducer::search_unused_parameters", span[0], span[1] - span[0])
    for start, end in busy:
        trace.kernel(TENSOR_GEMM, start, end - start, launch_us=start if start < span[0] else start - 6)
    return trace


def bucket_copies(each_us: float, name: str = "torch.distributed.ddp.reducer::copy_bucket_to_grad") -> TraceBuilder:
    """A step that ends with four copies from a bucket; before them the GPU multiplies."""
    trace = step_of((0, 1000 - 4 * each_us))
    for row in range(4):
        trace.op(name, 100 + 20 * row, 15, thread=2).op("aten::copy_", 102 + 20 * row, 10, thread=2)
        start = 1000 - each_us * (4 - row)
        trace.kernel(POINTWISE, start, each_us, launch_us=104 + 20 * row, thread=2)
    return trace


def buffer_broadcasts(*spans: tuple[float, float], busy: tuple[float, float], name: str = BROADCAST) -> TraceBuilder:
    """A step with broadcasts, or other collectives, in some spans; the GPU computes in `busy`."""
    trace = step_of(busy).range(FORWARD, 0, 300)
    for row, (start, end) in enumerate(spans):
        trace.kernel(name, start, end - start, stream=20, launch_us=0.01 * row)
    return trace


def buffer_syncs(
    *, broadcast: str = "c10d::broadcast_", ops_before: int = 2, busy_us: float = 0, training: bool = True
) -> TraceBuilder:
    """A step whose forward pass begins with two flattened, broadcast and copied buffers, from 20 to 320 us.

    Args:
        broadcast: Name of the op between flattening and unflattening.
        ops_before: The number of ops of the pass before it.
        busy_us: How long the GPU works on what was launched before the step.
        training: Whether a backward pass and an optimizer follow.
    """
    trace = TraceBuilder(rank=0, world_size=2)
    if busy_us:
        trace.kernel(TENSOR_GEMM, 0, busy_us, launch_us=-5)
    trace.step(0, 1000).range(FORWARD, 10, 400)
    for row in range(ops_before):
        trace.op("aten::mul", 11 + row * 0.5, 0.4)
    trace.op("aten::flatten_dense_tensors", 20, 60).op("aten::cat", 30, 40).kernel(POINTWISE, 70, 4, launch_us=60)
    trace.op(broadcast, 85, 15).kernel(BROADCAST, 100, 8, launch_us=90, stream=20)
    trace.op("aten::unflatten_dense_tensors", 110, 150)
    for row in range(2):
        trace.op("aten::copy_", 265 + 30 * row, 25).kernel(POINTWISE, 280 + 30 * row, 4, launch_us=270 + 30 * row)
    trace.op("aten::conv2d", 330, 40).kernel(TENSOR_GEMM, 345, 655, launch_us=340)
    trace.op("aten::copy_", 380, 10)  # the model's own
    if training:
        trace.op(GRADIENT, 420, 20, thread=2).range("Optimizer.step#SGD.step", 450, 20)
    return trace


def tiny_buckets(count: int, us: float = 40) -> TraceBuilder:
    """A step on the CPU with reductions one after the other behind 300 us of work."""
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 300)
    for number in range(count):
        trace.range("gloo:all_reduce", 300 + us * number, us, thread=2)
    return trace


TINY = {"bucket_bytes_cap": 10_485, "created": {"file": "model.py", "line": 8, "function": "wrap"}}
FLAGS = {"find_unused_parameters": True, "static_graph": None, "gradient_as_bucket_view": False}


def micro_batches(
    reduced: Sequence[bool],
    each_us: float = 100,
    updates: Sequence[float] = (950,),
    by: str = GRADIENT,
    hidden: bool = False,
) -> TraceBuilder:
    """A step of several forward passes of 300 us each on a GPU.

    Args:
        reduced: For each pass whether gradients are reduced after it.
        each_us: How long a reduction takes, at the end of its pass.
        updates: When optimizers step.
        by: The op in which the all-reduces are issued.
        hidden: Whether another stream computes beside the reductions.
    """
    trace = TraceBuilder().step(0, 1000)
    for number, reduces in enumerate(reduced):
        at = 300 * number
        trace.range(FORWARD, at, 40).kernel(TENSOR_GEMM, at + 10, 290 - each_us, launch_us=at + 2)
        if reduces:
            trace.op(by, at + 50, 30, thread=2).op("c10d::allreduce_", at + 55, 20, thread=2)
            trace.kernel(ALL_REDUCE, at + 300 - each_us, each_us, stream=20, launch_us=at + 60, thread=2)
        if hidden:
            trace.kernel(POINTWISE, at + 300 - each_us, each_us, stream=21, launch_us=at + 45)
    for at in updates:
        trace.range("Optimizer.step#SGD.step", at, 20)
    return trace.kernel(TENSOR_GEMM, 950, 50, launch_us=945)


def micro_batches_on_the_cpu(reduced: Sequence[bool]) -> TraceBuilder:
    """A step of several forward passes on the CPU, where a thread of gloo reduces gradients after some."""
    trace = TraceBuilder(device=None).step(0, 1000)
    for number, reduces in enumerate(reduced):
        at = 300 * number
        trace.range(FORWARD, at, 100).op("aten::mm", at, 100).op(GRADIENT, at + 110, 40)
        if reduces:
            trace.op("c10d::allreduce_", at + 120, 20).range("gloo:all_reduce", at + 150, 140, thread=3)
    return trace.range("Optimizer.step#SGD.step", 950, 20)


def closure_passes() -> TraceBuilder:
    """LBFGS: passes in the step of the optimizer, whose gradients are not accumulated."""
    return micro_batches([True, True, True], updates=[]).range("Optimizer.step#LBFGS.step", 0, 990)
