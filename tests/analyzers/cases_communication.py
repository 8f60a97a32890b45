"""Cases of the rules about when ranks begin, in what gradients travel, and when parameters do: PD409, PD410, PD411."""

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


def sharded_step(
    exposed_us: float, backward_us: float | None = None, *, units: int = 6, wrapper: str = FSDP, steps: int = 3
) -> list[TraceBuilder]:
    """Two ranks with a sharded model: each unit gathers its parameters, computes, and scatters its gradients.

    Each pass of a unit takes 100 us of computation. Of its all-gather of 60 us some is exposed, the rest runs beside
    the computation of the unit before.

    Args:
        exposed_us: How much in the forward pass.
        backward_us: How much in the backward pass; None if the parameters are kept until then.
        units: The number of units.
        wrapper: The range around the forward pass.
        steps: The number of steps.
    """
    ranks = [TraceBuilder(rank=rank, world_size=2) for rank in range(2)]
    length = 2 * units * (100 + max(exposed_us, backward_us or 0)) + 200
    for trace in ranks:
        for step in range(steps):
            at = begin = length * step
            trace.step(at, length).range(wrapper, at, 50)
            trace.op(AUTOGRAD, at + 60, 20, thread=2).range("Optimizer.step#SGD.step", at + 90, 10)
            for number in range(2 * units):
                exposed = exposed_us if number < units else backward_us
                if exposed is not None:
                    start = begin if number == 0 else begin - (60 - exposed)
                    begin += 60.0 if number == 0 else exposed
                    trace.kernel(ALL_GATHER, start, begin - start, stream=20, launch_us=at + 0.1 * number)
                trace.kernel(TENSOR_GEMM, begin, 100, launch_us=at + 0.1 * number + 0.05)
                begin += 100
                if number >= units:
                    trace.kernel(REDUCE_SCATTER, begin - 30, 25, stream=22, launch_us=at + 0.1 * number + 0.07)
    return ranks


def waiting_for_a_slower_rank() -> list[TraceBuilder]:
    """Two ranks of a sharded model; one computes 160 us in each unit, and its gathers begin 10 us before the end."""
    ranks = [TraceBuilder(rank=rank, world_size=2) for rank in range(2)]
    for trace, compute_us in zip(ranks, (100, 160), strict=True):
        for step in range(3):
            at = 1200 * step
            trace.step(at, 1200).range(FSDP, at, 50).op(AUTOGRAD, at + 60, 20, thread=2)
            trace.range("Optimizer.step#SGD.step", at + 90, 10).kernel(ALL_GATHER, at, 60, launch_us=at, stream=20)
            for unit in range(6):
                begin = at + 60 + 160 * unit
                trace.kernel(TENSOR_GEMM, begin, compute_us, launch_us=at + 0.1 * unit + 0.05)
                start = begin + (40 if compute_us == 100 else 150)
                trace.kernel(ALL_GATHER, start, begin + 160 - start, launch_us=at + 0.1 * unit + 0.07, stream=20)
    return ranks


def sharded(reserved: int, **fsdp: Any) -> dict[str, Any]:
    """Captured facts of a model of a billion parameters under fully_shard, on a GPU with 80 GB."""
    settings = {"version": 2, "units": 6, "reshard_after_forward": True, "param_dtype": "torch.bfloat16", **fsdp}
    return {
        "models": [{"class": "FSDPNet", "parameters": 10**9, "ddp": None, "fsdp": settings}],
        "cuda_memory": {"reserved_bytes.all.peak": reserved},
        "devices": [{"current": True, "memory_bytes": 80 * 10**9}],
    }
