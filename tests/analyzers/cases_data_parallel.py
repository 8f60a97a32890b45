"""Cases of the rules about data-parallel training: PD405, PD406."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rule_cases import ALL_REDUCE, POINTWISE, TENSOR_GEMM, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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

PD405 = [
    RuleCase(
        "PD405",
        "search-starves-the-gpu",
        lambda: search_step((200, 300), (0, 200), (310, 1000)),
        (
            ExpectedFinding(
                "medium",
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
        lambda: search_step((200, 250), device=None).op("aten::mm", 250, 700),
        (ExpectedFinding("low", 50_000),),
    ),
    RuleCase(
        "PD405",
        "settings-as-captured",
        lambda: search_step((200, 300), (0, 200), (310, 1000)),
        (
            ExpectedFinding(
                "medium",
                100_000,
                evidence={
                    "find_unused_parameters, as captured": "yes",
                    "static_graph, as captured": None,
                    "gradient_as_bucket_view, as captured": "no",
                },
            ),
        ),
        captured_model(ddp=FLAGS),
    ),
    RuleCase(
        "PD405",
        "search-that-finds-nothing",
        lambda: search_step((200, 300), (0, 200), (310, 1000)),
        (
            ExpectedFinding(
                "medium",
                100_000,
                title="and none is unused",
                evidence={"elements of unused parameters, by the reducer": 0, "buckets follow the backward pass": "no"},
            ),
        ),
        captured_model(ddp={**FLAGS, "unused_elements": 0, "has_rebuilt_buckets": False}),
    ),
    RuleCase(
        "PD405",
        "search-that-finds-nothing-behind-a-busy-gpu",
        lambda: search_step((200, 300), (0, 1000)),
        facts=captured_model(ddp={**FLAGS, "unused_elements": 0}),
    ),
    RuleCase(
        "PD405",
        "constructor-as-captured",
        lambda: search_step((200, 300), (0, 200), (310, 1000)),
        (ExpectedFinding("medium", 100_000, location="model.py:8"),),
        captured_model(ddp={**FLAGS, "created": {"file": "model.py", "line": 8, "function": "wrap"}}),
    ),
    RuleCase(
        "PD405",
        "copies-out-of-the-buckets",
        lambda: bucket_copies(20),
        (ExpectedFinding("medium", 80_000, title="copied out of", fix="gradient_as_bucket_view=True"),),
    ),
    RuleCase(
        "PD405",
        "buffers-broadcast",
        lambda: buffer_broadcasts((0, 50), (60, 110), busy=(110, 1000)),
        (
            ExpectedFinding(
                "medium", 100_000, title="broadcasts the model's buffers", evidence={"broadcasts per step": 2}
            ),
        ),
    ),
    # The GPU idles from 20 to 320 us but for three kernels of 4 us that flatten and copy.
    RuleCase(
        "PD405",
        "buffers-flattened-and-copied-back",
        lambda: buffer_syncs(),
        (
            ExpectedFinding(
                "medium",
                288_000,
                (0, None, 288_000),
                title="broadcasts the model's buffers",
                fix="broadcast_buffers=False",
                evidence={"buffers copied back per step": 2, "CPU at the buffers per step": 300_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD405",
        "buffers-in-a-forward-pass",
        lambda: buffer_syncs(training=False),
        (ExpectedFinding("medium", 288_000, advice="needs no wrapper", fix="model.module(x)"),),
    ),
    RuleCase(  # half of 50 us of 1000, times the confidence of 0.8
        "PD405",
        "one-buffer-broadcast",
        lambda: buffer_broadcasts((0, 50), busy=(50, 1000)),
        (ExpectedFinding("low", 50_000, title="broadcasts the model's buffers", evidence={"broadcasts per step": 1}),),
    ),
    RuleCase(  # two of 16 reductions remain
        "PD405",
        "tiny-buckets",
        lambda: tiny_buckets(16),
        (
            ExpectedFinding(
                "medium",
                640_000,
                (0, 560_000, 640_000),
                location="model.py:8",
                title="16 buckets of gradients are reduced one by one in a step: bucket_cap_mb is 0.01",
                fix="bucket_cap_mb=25",
                evidence={"all-reduces per step": 16},
            ),
        ),
        captured_model(ddp=TINY),
    ),
    RuleCase(
        "PD405",
        "eight-tiny-buckets",
        lambda: tiny_buckets(8),
        (ExpectedFinding("medium", 320_000, (0, 240_000, 320_000), location="model.py:8"),),
        captured_model(ddp=TINY),
    ),
    RuleCase(
        "PD405", "usual-buckets", lambda: tiny_buckets(16), (), captured_model(ddp={"bucket_bytes_cap": 25 << 20})
    ),
    RuleCase("PD405", "few-tiny-buckets", lambda: tiny_buckets(4), (), captured_model(ddp=TINY)),
    RuleCase("PD405", "buffers-behind-a-busy-gpu", lambda: buffer_syncs(busy_us=1000)),
    RuleCase("PD405", "a-broadcast-of-the-model", lambda: buffer_syncs(ops_before=12)),
    RuleCase("PD405", "flattened-for-no-broadcast", lambda: buffer_syncs(broadcast="aten::mul")),
    RuleCase("PD405", "search-behind-a-busy-gpu", lambda: search_step((200, 300), (0, 1000))),
    RuleCase("PD405", "search-in-no-time", lambda: search_step((200, 205), (0, 200), (205, 1000))),
    RuleCase("PD405", "copies-in-no-time", lambda: bucket_copies(2)),  # 8 us of 1000
    RuleCase("PD405", "copies-of-the-users-own", lambda: bucket_copies(20, name="aten::_foreach_copy_")),
    RuleCase("PD405", "broadcast-behind-the-work", lambda: buffer_broadcasts((0, 50), (60, 110), busy=(0, 1000))),
    RuleCase(
        "PD405", "all-reduce-is-no-broadcast", lambda: buffer_broadcasts((0, 50), busy=(50, 1000), name=ALL_REDUCE)
    ),
]


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


PD406 = [
    RuleCase(
        "PD406",
        "three-micro-batches",
        lambda: micro_batches([True, True, True]),
        (
            ExpectedFinding(
                "medium",
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
        lambda: micro_batches([True, True], each_us=50),
        (ExpectedFinding("medium", 50_000),),
    ),
    RuleCase(
        "PD406",
        "without-sync-in-some-only",
        lambda: micro_batches([True, False, True]),
        (ExpectedFinding("medium", 100_000, evidence={"backward passes that reduce gradients": 2}),),
    ),
    RuleCase("PD406", "gloo", lambda: micro_batches_on_the_cpu([True, True]), (ExpectedFinding("medium", 140_000),)),
    RuleCase(  # two passes of a discriminator, one of a generator: only the first one's gradients are reduced again
        "PD406",
        "two-losses-of-one-update",
        lambda: micro_batches([True, True, True], updates=[575, 950]),
        (ExpectedFinding("medium", 100_000, title="1.5 times an update"),),
    ),
    RuleCase("PD406", "under-no-sync", lambda: micro_batches([False, False, True])),
    RuleCase("PD406", "gloo-under-no-sync", lambda: micro_batches_on_the_cpu([False, True])),
    RuleCase("PD406", "an-update-each", lambda: micro_batches([True, True, True], updates=[275, 575, 950])),
    RuleCase("PD406", "all-reduce-of-a-metric", lambda: micro_batches([True, True, True], by="aten::mean")),
    RuleCase("PD406", "passes-of-a-closure", closure_passes),
]
