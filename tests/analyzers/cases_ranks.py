"""Cases of the rules about communication and several ranks: PD401, PD402."""

from __future__ import annotations

from collections.abc import Sequence

from rule_cases import ALL_REDUCE, LOADER, POINTWISE, TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_TO_ALL = "ncclDevKernel_AllToAll_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
EXPERT_DISPATCH = "void deep_ep::internode::dispatch<false, 8, true>(int4*, float*, long*)"


def fleet(
    late_us: Sequence[Sequence[float]],
    offsets_us: Sequence[float] | None = None,
    collective: str = ALL_REDUCE,
    left_out: Sequence[tuple[int, int]] = (),
    hidden: bool = False,
    transfer_us: float = 100,
) -> list[TraceBuilder]:
    """Ranks that compute for 400 us in each step and then reduce.

    A collective begins when its rank arrives, and ends on all ranks `transfer_us` after the last arrival. The CPU waits
    for that.

    Args:
        late_us: By step and rank how much longer the rank computes.
        offsets_us: By rank how far its clock is ahead.
        collective: Name of the kernel that reduces.
        left_out: The (step, rank) without a collective.
        hidden: Whether another stream computes beside the collectives.
        transfer_us: From the last arrival to the end.
    """
    ranks = [TraceBuilder(rank=rank, world_size=len(late_us[0])) for rank in range(len(late_us[0]))]
    for step, late in enumerate(late_us):
        end = 400 + max(late) + transfer_us
        for rank, trace in enumerate(ranks):
            at = 1000 * step + (offsets_us[rank] if offsets_us else 0)
            trace.step(at, 1000).kernel(TENSOR_GEMM, at, 400 + late[rank], launch_us=at)
            if (step, rank) not in left_out:
                trace.kernel(collective, at + 400 + late[rank], end - 400 - late[rank], launch_us=at + 0.01, stream=20)
            if hidden:
                trace.kernel(POINTWISE, at + 400 + late[rank], end - 400 - late[rank], launch_us=at + 0.02, stream=21)
            trace.call("cudaStreamSynchronize", at + 10, end - 10)
    return ranks


def one_late(rank: int, by_us: float, ranks: int = 4, steps: int = 5) -> list[list[float]]:
    """One rank is late in every step."""
    return [[by_us if r == rank else 0 for r in range(ranks)] for _ in range(steps)]


def late_in_turns(steps: int = 12, ranks: int = 4, by_us: float = 200) -> list[list[float]]:
    """In each step another rank is late: noise."""
    return [[by_us if r == step % ranks else 0 for r in range(ranks)] for step in range(steps)]


def launched_late(late: Sequence[int], steps: int, ranks: int = 4, slow_us: float = 0) -> list[TraceBuilder]:
    """Twelve rounds of computing and reducing, 4 ms each, with or without marks of steps.

    Args:
        late: The rounds in which rank 2 launches its work 2 ms late.
        steps: How many rounds are marked as steps.
        ranks: The number of ranks.
        slow_us: How much longer rank 1 computes in each round.
    """
    traces = [TraceBuilder(rank=rank, world_size=ranks) for rank in range(ranks)]
    for number in range(12):
        at, delay_us = 4000 * number, 2000 if number in late else 0
        for rank, trace in enumerate(traces):
            begin = at + (delay_us if rank == 2 else 0)
            if number < steps:
                trace.step(at, 4000)
            arrival = begin + 400 + (slow_us if rank == 1 else 0)
            end = at + 500 + max(delay_us, slow_us)
            trace.kernel(TENSOR_GEMM, begin, arrival - begin, launch_us=begin)
            trace.kernel(ALL_REDUCE, arrival, end - arrival, launch_us=begin + 0.01, stream=20)
            trace.call("cudaStreamSynchronize", begin + 10, end - begin - 10)
    return traces


def slow_loader() -> list[TraceBuilder]:
    """Rank 1 waits for its loader from 400 to 600 us before it launches the collective."""
    quick, slow = TraceBuilder(rank=0, world_size=2), TraceBuilder(rank=1, world_size=2)
    for step in range(5):
        at = 1000 * step
        for trace, begin in ((quick, 400), (slow, 610)):
            trace.step(at, 1000).kernel(TENSOR_GEMM, at, 400, launch_us=at)
            trace.kernel(ALL_REDUCE, at + begin, 710 - begin, launch_us=at + (begin - 5 if begin > 400 else 0.01))
            trace.call("cudaStreamSynchronize", at + begin, 710 - begin)
        slow.range(LOADER, at + 300, 300)
    return [quick, slow]


def unequal_counts() -> list[TraceBuilder]:
    """Rank 1 has one collective more, and rank 3 lacks the last one, so that the k-th ones are no partners."""
    ranks = fleet(one_late(2, 200), left_out=[(4, 3)])
    ranks[1].kernel(ALL_REDUCE, 0, 5, launch_us=0, stream=20)
    return ranks


def step_with_collectives(
    *spans: tuple[float, float], compute: tuple[float, float] = (0, 600), name: str = ALL_REDUCE
) -> TraceBuilder:
    """A step of computation with collectives in some spans on another stream, all launched at its start."""
    trace = step_of(compute)
    for row, (start, end) in enumerate(spans):
        trace.kernel(name, start, end - start, stream=20, launch_us=0.1 + 0.01 * row)
    return trace


BEHIND_THE_WORK, BESIDE_THE_WORK = (600.0, 900.0), (100.0, 500.0)


def training_step(marks: str, name: str = ALL_REDUCE, span: tuple[float, float] = BEHIND_THE_WORK) -> TraceBuilder:
    """A step of a training program with a collective, and a range that shows how it is parallel."""
    trace = step_with_collectives(span, name=name).op("autograd::engine::evaluate_function: MulBackward0", 0, 20)
    return trace.range("Optimizer.step#SGD.step", 30, 10).range(marks, 0, 300)


def forward_step(span: tuple[float, float] = BEHIND_THE_WORK) -> TraceBuilder:
    """A step of a forward pass whose result is reduced."""
    trace = step_with_collectives(span).range("DistributedDataParallel.forward", 0, 300)
    for row in range(12):
        trace.op("aten::mm", 10 * row, 8)
    return trace


def gathered_output(longest_us: float, phase: str = "inference", hidden: bool = False) -> list[TraceBuilder]:
    """Two ranks that exchange 20 us after each of six layers and then gather the output of the model.

    Args:
        longest_us: How long that takes.
        phase: "inference", or "training" with a backward pass and an optimizer.
        hidden: Whether another stream computes all the time.
    """
    traces = [TraceBuilder(rank=number, world_size=2) for number in range(2)]
    for trace in traces:
        for row in range(12):
            trace.op("aten::mm", 10 * row, 8)
        for layer in range(6):
            trace.kernel(TENSOR_GEMM, 120 * layer, 100, launch_us=0.02 * layer)
            trace.kernel(ALL_GATHER, 120 * layer + 100, 20, launch_us=0.01 + 0.02 * layer, stream=20)
        trace.kernel(TENSOR_GEMM, 720, 10, launch_us=1)
        trace.kernel(ALL_GATHER, 730, longest_us, launch_us=1.1, stream=20)
        if hidden:
            trace.kernel(POINTWISE, 0, 730 + longest_us, launch_us=1.2, stream=21)
        if phase == "training":
            trace.op("autograd::engine::evaluate_function: MulBackward0", 140, 20)
            trace.range("Optimizer.step#SGD.step", 200, 10)
    return traces


def exposed_in_one_of_two_steps() -> TraceBuilder:
    trace = step_with_collectives((600, 1000)).step(1000, 1000)
    return trace.kernel(TENSOR_GEMM, 1000, 1000, launch_us=1000)


def broadcast_before_the_steps() -> TraceBuilder:
    trace = TraceBuilder().kernel(ALL_REDUCE, 0, 900, launch_us=0)
    return trace.step(1000, 1000).kernel(TENSOR_GEMM, 1000, 1000, launch_us=1000)


def gloo_on_the_cpu() -> TraceBuilder:
    return TraceBuilder(device=None).step(0, 1000).range("gloo:all_reduce", 500, 500, thread=2).op("aten::mm", 0, 500)


def gloo_beside_the_work() -> TraceBuilder:
    return TraceBuilder(device=None).step(0, 1000).range("gloo:all_reduce", 200, 500, thread=2).op("aten::mm", 0, 990)
