"""Cases of the rules about data-parallel training: PD403, PD405, PD406."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rule_cases import ALL_REDUCE, POINTWISE, TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import well_fed_steps
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
FORWARD = "DistributedDataParallel.forward"


def replicas(
    *moves: tuple[float, float], devices: int = 2, range_name: str = "DataParallel.forward", moving: str = "Broadcast"
) -> TraceBuilder:
    """A step whose forward pass copies to other devices in these spans; all of them compute from 500 to 1000 us."""
    trace = TraceBuilder().step(0, 1000).range(range_name, 0, 400)
    trace.op(moving, 0, 300)
    for row, (start, end) in enumerate(moves):
        trace.memcpy("PtoP", start, end - start, launch_us=1 + 10 * row)
    for device in range(devices):
        trace.kernel(TENSOR_GEMM, 500, 500, launch_us=300 + device, device=device, stream=7 + device)
    return trace


def model(**facts: Any) -> dict[str, Any]:
    """Captured facts of one model."""
    return {"models": [{"class": "Net", "data_parallel": False, "ddp": None} | facts]}


PD403 = [
    RuleCase(
        "PD403",
        "copies-the-weights",
        lambda: replicas((100, 400)),
        (
            ExpectedFinding(
                "high",
                300_000,
                (0, None, 300_000),
                title="drives 2 GPUs from one process",
                fix="torchrun --nproc-per-node 2",
                evidence={"forward passes of DataParallel seen": 1, "moving between GPUs, per step": 300_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD403",
        "eight-gpus",
        lambda: replicas((450, 500), devices=8),
        (ExpectedFinding("medium", 50_000, title="8 GPUs"),),
    ),
    RuleCase("PD403", "gathers", lambda: replicas((100, 200), moving="Gather"), (ExpectedFinding("high", 100_000),)),
    RuleCase(
        "PD403",
        "hidden-copies-are-a-fact-without-cost",
        lambda: replicas((600, 900)),
        (ExpectedFinding("info", 0, evidence={"moving between GPUs, per step": 300_000}),),
    ),
    RuleCase(
        "PD403",
        "as-captured",
        lambda: replicas((100, 400), range_name="forward"),
        (ExpectedFinding("high", 300_000, evidence={"forward passes of DataParallel seen": None}),),
        model(data_parallel=True),
    ),
    RuleCase("PD403", "one-device", lambda: replicas((100, 400), devices=1)),
    RuleCase(
        "PD403", "one-device-as-captured", lambda: replicas((100, 400), devices=1), facts=model(data_parallel=True)
    ),
    RuleCase("PD403", "model-parallel", lambda: replicas((100, 400), range_name="forward", moving="aten::to")),
    RuleCase("PD403", "distributed", lambda: replicas((100, 400), range_name=FORWARD)),
    RuleCase("PD403", "healthy", well_fed_steps),
]


def searched(span: tuple[float, float], *busy: tuple[float, float], device: str | None = "x") -> TraceBuilder:
    """A step that searches for unused parameters; the GPU computes in `busy`, launched at the end of the search."""
    trace = TraceBuilder(device=device and "NVIDIA A100-SXM4-80GB").step(0, 1000).range(FORWARD, 0, span[1])
    trace.op("torch.distributed.ddp.reducer::search_unused_parameters", span[0], span[1] - span[0])
    for start, end in busy:
        trace.kernel(TENSOR_GEMM, start, end - start, launch_us=start if start < span[0] else start - 6)
    return trace


def copied_back(each_us: float, name: str = "torch.distributed.ddp.reducer::copy_bucket_to_grad") -> TraceBuilder:
    """A step that ends with four copies from a bucket; otherwise the GPU multiplies."""
    trace = step_of((0, 1000 - 4 * each_us))
    for row in range(4):
        trace.op(name, 100 + 20 * row, 15, thread=2).op("aten::copy_", 102 + 20 * row, 10, thread=2)
        start = 1000 - each_us * (4 - row)
        trace.kernel(POINTWISE, start, each_us, launch_us=104 + 20 * row, thread=2)
    return trace


def broadcasts(*spans: tuple[float, float], busy: tuple[float, float], name: str = BROADCAST) -> TraceBuilder:
    """A step with such collectives before its forward pass."""
    trace = step_of(busy).range(FORWARD, 0, 300)
    for row, (start, end) in enumerate(spans):
        trace.kernel(name, start, end - start, stream=20, launch_us=0.01 * row)
    return trace


FLAGS = {"find_unused_parameters": True, "static_graph": None, "gradient_as_bucket_view": False}

PD405 = [
    RuleCase(
        "PD405",
        "search-starves-the-gpu",
        lambda: searched((200, 300), (0, 200), (310, 1000)),
        (
            ExpectedFinding(
                "high",
                100_000,
                (0, None, 100_000),
                title="searches the graph for unused parameters",
                advice="static_graph=True",
                evidence={"searching per step": 100_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD405",
        "search-on-the-cpu",
        lambda: searched((200, 250), device=None).op("aten::mm", 250, 700),
        (ExpectedFinding("medium", 50_000),),
    ),
    RuleCase(
        "PD405",
        "settings-as-captured",
        lambda: searched((200, 300), (0, 200), (310, 1000)),
        (
            ExpectedFinding(
                "high",
                100_000,
                evidence={
                    "find_unused_parameters, as captured": "yes",
                    "static_graph, as captured": None,
                    "gradient_as_bucket_view, as captured": "no",
                },
            ),
        ),
        model(ddp=FLAGS),
    ),
    RuleCase(
        "PD405",
        "copies-out-of-the-buckets",
        lambda: copied_back(20),
        (ExpectedFinding("medium", 80_000, title="copied out of", fix="gradient_as_bucket_view=True"),),
    ),
    RuleCase(
        "PD405",
        "buffers-broadcast",
        lambda: broadcasts((0, 50), (60, 110), busy=(110, 1000)),
        (
            ExpectedFinding(
                "high", 100_000, title="broadcasts the model's buffers", evidence={"broadcasts per step": 2}
            ),
        ),
    ),
    RuleCase("PD405", "search-behind-a-busy-gpu", lambda: searched((200, 300), (0, 1000))),
    RuleCase("PD405", "search-in-no-time", lambda: searched((200, 205), (0, 200), (205, 1000))),
    RuleCase("PD405", "copies-of-the-users-own", lambda: copied_back(20, name="aten::_foreach_copy_")),
    RuleCase("PD405", "broadcast-behind-the-work", lambda: broadcasts((0, 50), (60, 110), busy=(0, 1000))),
    RuleCase("PD405", "all-reduce-is-no-broadcast", lambda: broadcasts((0, 50), busy=(50, 1000), name=ALL_REDUCE)),
]


def accumulated(
    reduced: Sequence[bool],
    each_us: float = 100,
    updates: Sequence[float] = (950,),
    by: str = GRADIENT,
    hidden: bool = False,
) -> TraceBuilder:
    """A step of several passes on a GPU, 300 us each; some reduce gradients for `each_us` when nothing computes.

    `updates` says when optimizers step, `by` the op within which the all-reduce is issued.
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


def accumulated_on_the_cpu(reduced: Sequence[bool]) -> TraceBuilder:
    """The same on the CPU, where a thread of gloo's reduces."""
    trace = TraceBuilder(device=None).step(0, 1000)
    for number, reduces in enumerate(reduced):
        at = 300 * number
        trace.range(FORWARD, at, 100).op("aten::mm", at, 100).op(GRADIENT, at + 110, 40)
        if reduces:
            trace.op("c10d::allreduce_", at + 120, 20).range("gloo:all_reduce", at + 150, 140, thread=3)
    return trace.range("Optimizer.step#SGD.step", 950, 20)


def in_a_closure() -> TraceBuilder:
    """LBFGS: passes within the step of the optimizer, each with gradients of its own."""
    return accumulated([True, True, True], updates=[]).range("Optimizer.step#LBFGS.step", 0, 990)


PD406 = [
    RuleCase(
        "PD406",
        "three-micro-batches",
        lambda: accumulated([True, True, True]),
        (
            ExpectedFinding(
                "high",
                200_000,
                (0, 200_000, 200_000),
                title="3 times an update",
                fix="no_sync",
                evidence={"forward passes": 3, "of these needless": 2, "updates of the weights": 1},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD406",
        "two-micro-batches",
        lambda: accumulated([True, True], each_us=50),
        (ExpectedFinding("medium", 50_000),),
    ),
    RuleCase(
        "PD406",
        "without-sync-in-some-only",
        lambda: accumulated([True, False, True]),
        (ExpectedFinding("high", 100_000, evidence={"backward passes that reduce gradients": 2}),),
    ),
    RuleCase("PD406", "gloo", lambda: accumulated_on_the_cpu([True, True]), (ExpectedFinding("high", 140_000),)),
    RuleCase(  # two passes of a discriminator, then the generator's: only the first of these is reduced again
        "PD406",
        "two-losses-of-one-update",
        lambda: accumulated([True, True, True], updates=[575, 950]),
        (ExpectedFinding("high", 100_000, title="1.5 times an update"),),
    ),
    RuleCase("PD406", "under-no-sync", lambda: accumulated([False, False, True])),
    RuleCase("PD406", "gloo-under-no-sync", lambda: accumulated_on_the_cpu([False, True])),
    RuleCase("PD406", "an-update-each", lambda: accumulated([True, True, True], updates=[275, 575, 950])),
    RuleCase("PD406", "all-reduce-of-a-metric", lambda: accumulated([True, True, True], by="aten::mean")),
    RuleCase("PD406", "passes-of-a-closure", in_a_closure),
]
