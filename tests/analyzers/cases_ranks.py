"""Cases of the rules about communication and several ranks: PD401, PD402."""

from __future__ import annotations

from collections.abc import Sequence

from rule_cases import ALL_REDUCE, LOADER, POINTWISE, TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


LATE = (0, 200_000, 200_000)
IN_TURNS = ExpectedFinding("medium", 150_000, (None, None, None), title="Ranks take turns at coming last: none is slow")

PD401 = [
    RuleCase(
        "PD401",
        "rank-2-of-4",
        lambda: fleet(one_late(2, 200)),
        (
            ExpectedFinding(
                "medium",
                200_000,
                LATE,
                rank=2,
                title="Rank 2 is 200 us late in each step, computing",
                confidence=0.6,
                evidence={
                    "collectives matched over all ranks": 5,
                    "share of all waiting that it causes": 100.0,
                    "largest single lateness": 200_000,
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD401",
        "clocks-seconds-apart",
        lambda: fleet(one_late(2, 200), offsets_us=[0, 3e6, 6e6, 1.5e6]),
        (ExpectedFinding("medium", 200_000, LATE, rank=2, title="Rank 2"),),
    ),
    RuleCase(  # four of five collectives are matched, and the cost is spread over five steps
        "PD401",
        "different-counts",
        unequal_counts,
        (
            ExpectedFinding(
                "medium", 160_000, (0, 160_000, 160_000), rank=2, evidence={"collectives matched over all ranks": 4}
            ),
        ),
    ),
    RuleCase(
        "PD401",
        "collectives-of-another-library",
        lambda: fleet(one_late(0, 200), collective=EXPERT_DISPATCH),
        (ExpectedFinding("medium", 200_000, LATE, rank=0),),
    ),
    RuleCase(
        "PD401",
        "waiting-for-its-loader",
        slow_loader,
        (ExpectedFinding("medium", 210_000, (0, 210_000, 210_000), rank=1, title="waiting for its DataLoader"),),
    ),
    RuleCase(
        "PD401",
        "a-twentieth-twelve-times",
        lambda: fleet(one_late(3, 50, steps=12)),
        (ExpectedFinding("medium", 50_000, (0, 50_000, 50_000), rank=3, confidence=0.9),),
    ),
    # Rank 2 is late by 200 us and rank 1 by 150: only the 50 us between them can be saved on rank 2 alone.
    RuleCase(
        "PD401",
        "second-latest",
        lambda: fleet([[0, 150, 200, 0]] * 5),
        (ExpectedFinding("medium", 50_000, (0, 50_000, 50_000), rank=2),),
    ),
    RuleCase("PD401", "noise-on-rotating-ranks", lambda: fleet(late_in_turns()), (IN_TURNS,)),
    RuleCase(
        "PD401", "noise-with-clocks-apart", lambda: fleet(late_in_turns(), offsets_us=[0, 3e6, 6e6, 1.5e6]), (IN_TURNS,)
    ),
    # All waiting is for rank 2, in one step of twelve.
    RuleCase(
        "PD401",
        "late-once",
        lambda: fleet([*[[0, 0, 0, 0]] * 11, [0, 0, 300, 0]]),
        (ExpectedFinding("info", 0, rank=2, title="Once in this trace: Rank 2 is 300 us late in 1 of 12 steps"),),
    ),
    RuleCase(  # every fourth step: that comes back
        "PD401",
        "late-now-and-then",
        lambda: fleet([[0, 0, 400 if step % 4 == 1 else 0, 0] for step in range(12)]),
        (ExpectedFinding("medium", 100_000, (0, 100_000, 100_000), rank=2, title="is 400 us late in 3 of 12 steps"),),
    ),
    RuleCase(
        "PD401",
        "late-once-without-steps",
        lambda: launched_late([1], steps=0),
        (ExpectedFinding("info", 2_000_000, rank=2, title="Once in this trace: Rank 2 is 2 ms late in all"),),
    ),
    RuleCase(
        "PD401",
        "late-again-and-again-without-steps",
        lambda: launched_late([1, 4, 7, 10], steps=0),
        (ExpectedFinding("medium", 8_000_000, (0, 8_000_000, 8_000_000), rank=2, title="Rank 2 is 8 ms late in all"),),
    ),
    RuleCase(  # only the steps in which it is late by a pause that happens once
        "PD401",
        "paused-once",
        lambda: launched_late([1], steps=12),
        (ExpectedFinding("info", 0, rank=2, title="Once in this trace: Rank 2 is 2 ms late"),),
    ),
    RuleCase(  # rank 2 pauses once for 2 ms; rank 1 computes 300 us longer in each step
        "PD401",
        "slow-beside-one-that-paused-once",
        lambda: launched_late([1], steps=12, slow_us=300),
        (
            ExpectedFinding(
                "medium", 275_000, (0, 275_000, 275_000), rank=1, title="Rank 1 is 275 us late in each step"
            ),
        ),
    ),
    RuleCase("PD401", "equally-slow", lambda: launched_late([], steps=12)),
    RuleCase("PD401", "balanced", lambda: fleet(one_late(0, 0))),
    RuleCase("PD401", "balanced-without-steps", lambda: launched_late([], steps=0)),
    RuleCase("PD401", "nobody-late-in-the-steps", lambda: launched_late([11], steps=11)),
    RuleCase("PD401", "other-ranks-once-without-steps", lambda: launched_late([1], steps=0)[:2]),
    RuleCase("PD401", "others-once", lambda: launched_late([1], steps=12)[:2]),
    RuleCase("PD401", "balanced-with-clocks-apart", lambda: fleet(one_late(0, 0), offsets_us=[0, 3e6, 6e6, 1.5e6])),
    RuleCase("PD401", "too-little-noise", lambda: fleet(late_in_turns(by_us=50))),
    RuleCase("PD401", "too-few-collectives-for-noise", lambda: fleet(late_in_turns(steps=8))),
    RuleCase("PD401", "one-rank-alone", lambda: fleet(one_late(2, 200))[:1]),
    RuleCase("PD401", "wait-hidden-by-work", lambda: fleet(one_late(2, 200), hidden=True)),
    RuleCase("PD401", "no-collectives", lambda: [build_healthy_trace(), build_healthy_trace()]),
    RuleCase("PD401", "late-by-a-hundredth-of-a-percent", lambda: fleet(one_late(2, 0.1))),
    RuleCase("PD401", "sends-wait-by-design", lambda: fleet(one_late(2, 200), collective=SEND_RECV)),
    RuleCase("PD401", "late-to-a-hidden-collective", lambda: fleet(one_late(0, 50, steps=12), hidden=True)),
]


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


PD402 = [
    RuleCase(
        "PD402",
        "after-backward",
        lambda: step_with_collectives((600, 900)),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 300_000),
                title="none of it overlaps",
                fix="async_op=True",
                evidence={
                    "collectives per step": 1,
                    "communication per step": 300_000,
                    "all_reduce, exposed per step": 300_000,
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD402",
        "partly-overlapped",
        lambda: step_with_collectives((400, 900)),
        (ExpectedFinding("medium", 300_000, (0, None, 300_000), title="only 40%", evidence={"overlapped": 40.0}),),
    ),
    RuleCase(
        "PD402",
        "experts",
        lambda: step_with_collectives((600, 750), (750, 800), name=EXPERT_DISPATCH),
        (ExpectedFinding("medium", 200_000),),
    ),
    RuleCase(
        "PD402",
        "exchange-of-embeddings",
        lambda: training_step("## all2all_data:kjt splits ##", ALL_TO_ALL),
        (
            ExpectedFinding(
                "medium", 300_000, title="all of the exposed part is all_to_all", fix="TrainPipelineSparseDist"
            ),
        ),
    ),
    RuleCase(
        "PD402",
        "gradients-under-ddp",
        lambda: training_step("DistributedDataParallel.forward"),
        (ExpectedFinding("medium", 300_000, advice="no_sync()", fix="DistributedDataParallel(model, bucket_cap_mb"),),
    ),
    RuleCase(
        "PD402",
        "gradients-by-hand",
        lambda: training_step("loss"),
        (ExpectedFinding("medium", 300_000, advice="by hand", fix="DistributedDataParallel(model, device_ids"),),
    ),
    RuleCase(
        "PD402",
        "shards-under-fsdp",
        lambda: training_step("FullyShardedDataParallel.forward", ALL_GATHER),
        (ExpectedFinding("medium", 300_000, title="all_gather", fix="set_modules_to_forward_prefetch"),),
    ),
    RuleCase(
        "PD402",
        "results-of-a-forward-pass",
        forward_step,
        (ExpectedFinding("medium", 300_000, advice="needs no wrapper", fix="model.module(x)"),),
    ),
    RuleCase("PD402", "a-twentieth", lambda: step_with_collectives((600, 650)), (ExpectedFinding("low", 50_000),)),
    # 100 us of computation hide no more than 100 us of communication.
    RuleCase(
        "PD402",
        "little-to-hide-behind",
        lambda: step_with_collectives((100, 900), compute=(0, 100)),
        (ExpectedFinding("medium", 800_000, (0, None, 100_000)),),
    ),
    RuleCase(  # the 610 us of work could hide so much, and the output need not be gathered at all
        "PD402",
        "output-of-a-split-model",
        lambda: gathered_output(2000),
        (
            ExpectedFinding(
                "medium",
                2_120_000,
                (0, None, 2_120_000),
                title="one all_gather takes 2 ms",
                advice="Keep the logits sharded",
            ),
        ),
    ),
    RuleCase(  # no longer than ten of the others: all are exchanges of layers
        "PD402",
        "exchanges-of-a-split-model",
        lambda: gathered_output(190),
        (ExpectedFinding("medium", 310_000, (0, None, 310_000), title="all of the exposed part is all_gather"),),
    ),
    RuleCase(  # what a training step gathers are parameters
        "PD402",
        "long-gather-of-a-training-step",
        lambda: gathered_output(2000, "training"),
        (ExpectedFinding("medium", 2_120_000, (0, None, 610_000), title="all of the exposed part is all_gather"),),
    ),
    RuleCase("PD402", "gloo-on-the-cpu", gloo_on_the_cpu, (ExpectedFinding("medium", 500_000, (0, None, 500_000)),)),
    RuleCase(
        "PD402",
        "one-of-two-steps",
        exposed_in_one_of_two_steps,
        (ExpectedFinding("medium", 200_000, evidence={"collectives per step": 0.5}),),
    ),
    # PD401 reports 300 us of each collective of the other ranks, in which they only wait for rank 2.
    RuleCase(
        "PD402",
        "transfer-without-the-wait",
        lambda: fleet(one_late(2, 300)),
        (ExpectedFinding("medium", 100_000, rank=None),),
    ),
    RuleCase("PD402", "nothing-but-the-wait", lambda: fleet(one_late(2, 300), transfer_us=20)),
    RuleCase("PD402", "output-behind-another-stream", lambda: gathered_output(2000, hidden=True)),
    RuleCase("PD402", "exchanges-behind-another-stream", lambda: gathered_output(190, hidden=True)),
    RuleCase("PD402", "parameters-behind-another-stream", lambda: gathered_output(2000, "training", hidden=True)),
    RuleCase("PD402", "overlapped", lambda: step_with_collectives((100, 400), (450, 600))),
    RuleCase("PD402", "experts-overlapped", lambda: step_with_collectives(BESIDE_THE_WORK, name=EXPERT_DISPATCH)),
    RuleCase(
        "PD402",
        "exchange-overlapped",
        lambda: training_step("## all2all_data:kjt splits ##", ALL_TO_ALL, BESIDE_THE_WORK),
    ),
    RuleCase(
        "PD402",
        "gradients-overlapped-under-ddp",
        lambda: training_step("DistributedDataParallel.forward", span=BESIDE_THE_WORK),
    ),
    RuleCase(
        "PD402",
        "shards-overlapped-under-fsdp",
        lambda: training_step("FullyShardedDataParallel.forward", ALL_GATHER, BESIDE_THE_WORK),
    ),
    RuleCase("PD402", "results-overlapped-in-a-forward-pass", lambda: forward_step(BESIDE_THE_WORK)),
    RuleCase("PD402", "healthy", build_healthy_trace),
    RuleCase("PD402", "tail-of-the-last-bucket", lambda: step_with_collectives((300, 620))),
    RuleCase("PD402", "before-the-steps", broadcast_before_the_steps),
    RuleCase("PD402", "gloo-beside-the-work", gloo_beside_the_work),
    RuleCase("PD402", "behind-another-stream", lambda: fleet(one_late(0, 0), hidden=True)[0]),
    RuleCase("PD402", "copies-are-no-collectives", lambda: step_of((0, 600)).memcpy("PtoP", 600, 300, launch_us=1)),
]
