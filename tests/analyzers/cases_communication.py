"""Cases of the rules about when ranks begin, and in what gradients travel: PD409, PD410."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rule_cases import ALL_REDUCE, LOADER, POINTWISE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder, collective
from perfdoctor.testing.check_rule import build_healthy_trace

ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
VOLTA_GEMM = "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn"
DDP, FSDP = "DistributedDataParallel.forward", "FullyShardedDataParallel.forward"
AUTOGRAD = "autograd::engine::evaluate_function: MmBackward0"


def passes(
    begin_us: Sequence[Sequence[float]],
    slower_us: Sequence[float] = (),
    *,
    wrapper: str = DDP,
    offsets_us: Sequence[float] = (),
    before: str | None = None,
    steps_begin_late: bool = False,
) -> list[TraceBuilder]:
    """Ranks whose passes through the model begin at some time of each step, take 400 us, and end in an all-reduce.

    Args:
        begin_us: By step and rank when its pass begins.
        slower_us: By rank how much longer its passes take.
        wrapper: The range around the forward pass.
        offsets_us: By rank how far its clock is ahead.
        before: A range that lasts from the begin of the step to that of the pass.
        steps_begin_late: Whether the marks of the steps begin when the passes do.
    """
    count = len(begin_us[0])
    ranks = [TraceBuilder(rank=rank, world_size=count) for rank in range(count)]
    slower = slower_us or [0.0] * count
    for number, begins in enumerate(begin_us):
        arrivals = [begin + 400 + more for begin, more in zip(begins, slower, strict=True)]
        for rank, trace in enumerate(ranks):
            at = 1000 * number + (offsets_us[rank] if offsets_us else 0)
            late = begins[rank] if steps_begin_late else 0
            following = begin_us[number + 1][rank] if steps_begin_late and number + 1 < len(begin_us) else late
            trace.step(at + late, 1000 + following - late)
            if before and begins[rank]:
                trace.range(before, at + 1, begins[rank] - 1)
            begin = at + begins[rank] + 5
            trace.range(wrapper, begin - 3, 60).kernel(
                TENSOR_GEMM, begin, arrivals[rank] - begins[rank] - 5, launch_us=begin - 2
            )
            end = at + max(arrivals) + 100
            trace.kernel(ALL_REDUCE, at + arrivals[rank], end - at - arrivals[rank], launch_us=begin, stream=20)
            trace.call("cudaStreamSynchronize", begin + 60, end - begin - 60)  # for the loss
    return ranks


def late_to_begin(rank: int, by_us: float, ranks: int = 4, steps: int = 12) -> list[list[float]]:
    """One rank begins late in every step."""
    return [[by_us if each == rank else 0.0 for each in range(ranks)] for _ in range(steps)]


def begin_in_turns(by_us: float = 200, steps: int = 12) -> list[list[float]]:
    """In each step another one of four ranks begins late."""
    return [[by_us if rank == step % 4 else 0.0 for rank in range(4)] for step in range(steps)]


def on_the_cpu(begin_us: float, slower_us: float = 0) -> list[TraceBuilder]:
    """Two ranks on CPUs; rank 0 begins its passes later than rank 1, or is slower inside them."""
    ranks = [TraceBuilder(device=None, rank=rank, world_size=2) for rank in range(2)]
    for step in range(12):
        at = 2000 * step
        arrivals = (begin_us + 800 + slower_us, 800.0)
        for trace, begin, arrival in zip(ranks, (begin_us, 0.0), arrivals, strict=True):
            trace.step(at, 2000).range(DDP, at + begin, 300).op("aten::mm", at + begin, 290)
            trace.op(AUTOGRAD, at + begin + 310, arrival - begin - 320)
            trace.range("gloo:all_reduce", at + arrival, max(arrivals) + 100 - arrival, thread=3)
            trace.range("Optimizer.step#SGD.step", at + max(arrivals) + 110, 20)
    return ranks


def reduced_gradients(
    us: float = 300,
    *,
    dtype: str = "Float",
    elements: int = 25_000_000,
    work: str = TENSOR_GEMM,
    wrapper: str = DDP,
    hidden: bool = False,
    training: bool = True,
    kernel: str = ALL_REDUCE,
    device: str = "NVIDIA A100-SXM4-80GB",
    capability: tuple[int, int] = (8, 0),
) -> list[TraceBuilder]:
    """Two ranks that compute for 700 us and then reduce gradients for some time, with another 100 us under the work.

    Args:
        us: How long the last reduction takes, of 25 million elements.
        dtype: Type of the elements.
        elements: How many there are.
        work: The kernel that computes.
        wrapper: The range around the forward pass.
        hidden: Whether another stream computes beside the reductions.
        training: Whether there is a backward pass and an optimizer.
        kernel: The collective.
        device, capability: The device.
    """
    ranks = [TraceBuilder(device, capability, rank=rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(4):
            at = 1000 * step
            trace.step(at, 1000).range(wrapper, at, 100).op("aten::mm", at + 1, 5)
            if training:
                trace.op(AUTOGRAD, at + 110, 30, thread=2).range("Optimizer.step#SGD.step", at + 150, 10)
            trace.kernel(work, at, 700, launch_us=at + 1)
            comm = collective(in_elements=elements, dtype=dtype)
            trace.kernel(kernel, at + 600, 100, stream=20, launch_us=at + 2, comm=comm)
            trace.kernel(kernel, at + 700, us, stream=20, launch_us=at + 3, comm=comm)
            if hidden:
                trace.kernel(POINTWISE, at + 700, us, stream=21, launch_us=at + 4)
    return ranks


def wrapped(**ddp: Any) -> dict[str, Any]:
    """Captured facts of a model under DistributedDataParallel."""
    return {"models": [{"class": "Net", "ddp": {"created": {"file": "model.py", "line": 8, "function": "f"}, **ddp}}]}
