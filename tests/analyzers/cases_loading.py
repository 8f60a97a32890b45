"""Cases of the rule about waits for the DataLoader: PD101."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rule_cases import LOADER, TENSOR_GEMM, WORKERS, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

STEP_US = 100_000
DATALOADER = "/x/site-packages/torch/utils/data/dataloader.py"
COLLATE = "/x/site-packages/torch/utils/data/_utils/collate.py"


def short_steps(name: str, wait_us: float, steps: int = 1) -> TraceBuilder:
    """Steps of 1000 us that begin with a wait in the loader and then keep the GPU busy from 20 us later on."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 1000 * number
        trace.step(at, 1000).range(name, at, wait_us)
        trace.kernel(TENSOR_GEMM, at + wait_us + 20, 980 - wait_us, launch_us=at + wait_us + 10)
    return trace


def cpu_program(wait_us: float, step_us: float, name: str = LOADER) -> TraceBuilder:
    trace = TraceBuilder(device=None).step(0, step_us).range(name, 0, wait_us)
    return trace.op("aten::addmm", wait_us, step_us - wait_us)


def sampled(sampler_ms: float) -> dict[str, Any]:
    """Facts of a loader without workers that takes 40 ms for a batch, so much of it in its sampler."""
    parts = {"sampler_ns": round(sampler_ms * 1e6), "items_ns": round((39 - sampler_ms) * 1e6), "collate_ns": 1_000_000}
    fetch = {"where": "main", "batches": 9, "median_ns": 40_000_000, "cpu_ns": 40_000_000, **parts}
    return {"loaders": [{"num_workers": 0, "wait_ns": 10**9, "fetch": fetch}], "cpu": {"affinity": 8}}


def legacy_loader() -> TraceBuilder:
    trace = TraceBuilder().step(0, 1000).kernel(TENSOR_GEMM, 320, 680, launch_us=310)
    return trace.event(ph="X", cat="Operator", name=LOADER, pid=1000, tid=1000, ts=0, dur=300)


def loader_in_a_frame() -> TraceBuilder:
    trace = short_steps(LOADER, 300)
    outer = trace.frame("train.py(7): main", 0, 1000)
    trace.frame("/usr/lib/python3/site-packages/torch/utils/data/dataloader.py(700): __next__", 0, 301, parent=outer)
    return trace


def loading_while_the_gpu_works() -> TraceBuilder:
    return step_of((0, 1000)).range(LOADER, 5, 700)


def gpu_not_recorded() -> TraceBuilder:
    """Device properties, launches and a long wait, but no GPU event: how long the GPU idled is not known."""
    trace = TraceBuilder().step(0, 1000).range(LOADER, 0, 900)
    trace.call("cudaLaunchKernel", 950)
    return trace


def load_before_the_first_step() -> TraceBuilder:
    trace = TraceBuilder().range(LOADER, 0, 500).step(500, 1000)
    return trace.kernel(TENSOR_GEMM, 510, 990, launch_us=501)


def long_steps(name: str, *waits_ms: float) -> TraceBuilder:
    """Steps of 100 ms, each with a wait at its beginning and the GPU busy for the rest."""
    trace = TraceBuilder()
    for number, wait in enumerate(waits_ms):
        at = STEP_US * number
        trace.step(at, STEP_US).range(name, at, 1000 * wait)
        began = at + 1000 * wait
        trace.kernel(TENSOR_GEMM, began + 10, at + STEP_US - began - 10, launch_us=began + 5)
    return trace


def epochs(seeded: bool = True, name: str = WORKERS, first_ms: float = 60) -> TraceBuilder:
    """Three steps of one epoch and three of the next, at the beginning of which workers start."""
    trace = long_steps(name, 1, 1, 1, first_ms, 1, 1)
    return trace.op("aten::random_", 3 * STEP_US - 2, 1) if seeded else trace


def epochs_in_frames() -> TraceBuilder:
    trace = epochs(seeded=False)
    trace.frame(f"{DATALOADER}(484): __iter__", 3 * STEP_US - 2, 1)
    return trace


def collation(op: str = "aten::stack") -> TraceBuilder:
    """20 ms of each wait of 40 ms."""
    trace = long_steps(LOADER, 40, 40)
    for at in (0, STEP_US):
        trace.op(op, at + 15_000, 20_000)
    return trace


def collation_in_frames() -> TraceBuilder:
    trace = long_steps(LOADER, 40, 40)
    for at in (0, STEP_US):
        trace.frame(f"{COLLATE}(120): default_collate", at + 15_000, 20_000)
    return trace


def loading_in(function: str, wait_ms: float = 40) -> TraceBuilder:
    """Waits in which a function runs that the user's data set calls."""
    trace = long_steps(LOADER, wait_ms, wait_ms)
    for at in (0, STEP_US):
        loop = trace.frame("train.py(3): main", at, STEP_US)
        load = trace.frame(f"{DATALOADER}(701): __next__", at + 100, 1000 * wait_ms - 200, parent=loop)
        load = trace.frame("faces.py(12): __getitem__", at + 200, 1000 * wait_ms - 400, parent=load)
        trace.frame(function, at + 1000, 900 * wait_ms, parent=load)
    return trace


def in_a_pipeline(trace: TraceBuilder) -> TraceBuilder:
    trace.frame("/x/site-packages/transformers/pipelines/base.py(1216): __call__", 2 * STEP_US, 1)
    return trace


def while_the_gpu_works(trace: TraceBuilder) -> TraceBuilder:
    """The trace with a kernel on another stream that hides all of its waits."""
    return trace.kernel(TENSOR_GEMM, 0, 6 * STEP_US, stream=9, launch_us=0)


def copies_in_loader() -> TraceBuilder:
    """A data set that gives tensors on the GPU: 10 ms of copies in each wait of 40 ms."""
    trace = long_steps(LOADER, 40, 40)
    for at in (0, STEP_US):
        trace.call("cudaMemcpyAsync", at + 20_000, 10_000)
    return trace


def iterators(first: Collection[int], *, ops: int = 2, steps: int = 4) -> TraceBuilder:
    """Steps that wait 40 ms each, before some of which an iterator draws its seed, with some ops from there on."""
    trace = long_steps(LOADER, *[40] * steps)
    for step in first:
        at = STEP_US * step - 10
        trace.op("aten::random_", at, 0.2)
        for number in range(1, ops):
            trace.op("aten::item", at + 0.5 * number, 0.2)
    return trace


def loader_in_frames(wait_ms: float) -> TraceBuilder:
    trace = long_steps("some_range", wait_ms, wait_ms)
    for at in (0, STEP_US):
        trace.frame(f"{DATALOADER}(701): __next__", at, 1000 * wait_ms)
    return trace


def loader_facts(**facts: Any) -> Mapping[str, Any]:
    return {"loaders": [{"num_workers": 4, "wait_ns": 1, **facts}]}


PD101: list[RuleCase] = [
    RuleCase(
        "PD101",
        "no-workers",
        lambda: short_steps(LOADER, 300),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, 300_000, 300_000),
                title="The GPU waits 0.3 ms of each 1 ms step for the DataLoader, which has no workers",
                fix="num_workers=2, persistent_workers=True, pin_memory=True",
                confidence=0.6,
                evidence={"step without the wait": 700_000, "batches": 1, "num_workers": 0, "CPU cores": None},
            ),
        ),
        via_file=True,
    ),
    RuleCase(  # 20 of 40 ms move
        "PD101",
        "half-of-the-wait-is-the-sampler",
        lambda: long_steps(LOADER, 40, 40),
        (
            ExpectedFinding(
                "medium",
                40_000_000,
                (0, 20_000_000, 20_000_000),
                fix="num_workers=2",
                evidence={
                    "of it fetching items": 20_000_000,
                    "of it choosing items, in the training process": 20_000_000,
                    "idle meanwhile that no worker hides": 20_000_000,
                },
            ),
        ),
        sampled(20),
    ),
    RuleCase("PD101", "all-of-the-wait-is-the-sampler", lambda: long_steps(LOADER, 40, 40), (), sampled(38.5)),
    RuleCase(
        "PD101",
        "a-twentieth-of-each-of-two-steps",
        lambda: short_steps(LOADER, 50, steps=2),
        (ExpectedFinding("medium", 50_000, (0, 50_000, 50_000), confidence=0.9, evidence={"batches": 2}),),
    ),
    RuleCase(  # two workers that are never idle deliver a batch each 1000 us: one takes 2000 us
        "PD101",
        "too-few-workers",
        lambda: short_steps(WORKERS, 400),
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, 400_000, 400_000),
                location="train.py:41",
                title="train.py:41, whose DataLoader has 2 workers that do not keep up",
                advice="in 5 worker processes",
                fix="num_workers=5, persistent_workers=True)",
            ),
        ),
        facts={
            "cpu": {"affinity": 8},
            "loaders": [
                {"num_workers": 9, "wait_ns": 1},
                {
                    "num_workers": 2,
                    "wait_ns": 400_000,
                    "pin_memory": True,
                    "location": {"file": "train.py", "line": 41, "function": "main"},
                },
            ],
        },
    ),
    RuleCase(  # as above, but the cores are all in use already: 2 workers on 2 cores deliver no faster
        "PD101",
        "too-few-cores",
        lambda: short_steps(WORKERS, 400),
        (ExpectedFinding("info", 400_000, (0, 0, 400_000), advice="there are 2 cores, and the training needs"),),
        facts={"cpu": {"affinity": 2}, "loaders": [{"num_workers": 2, "wait_ns": 400_000}]},
    ),
    RuleCase(  # 20 ms a batch and 5 ms of training: six workers, of which eight cores allow all and four cores three
        "PD101",
        "cores-enough",
        lambda: short_steps(LOADER, 800),
        (ExpectedFinding("medium", 800_000, advice="6 worker processes", fix="num_workers=6"),),
        facts={"cpu": {"affinity": 8}, "loaders": [{"num_workers": 0, "wait_ns": 1}]},
    ),
    RuleCase(
        "PD101",
        "all-cores-but-one",
        lambda: short_steps(LOADER, 800),
        (ExpectedFinding("medium", 800_000, advice="Use 3 workers, and make the batch cheaper", fix="num_workers=3"),),
        facts={"cpu": {"affinity": 4}, "loaders": [{"num_workers": 0, "wait_ns": 1}]},
    ),
    RuleCase(
        "PD101",
        "two-cores",
        lambda: short_steps(LOADER, 300),
        (ExpectedFinding("medium", 300_000, fix="num_workers=1, persistent_workers=True"),),
        facts={"cpu": {"affinity": 2}, "loaders": [{"num_workers": 0, "wait_ns": 1}]},
    ),
    RuleCase(  # other programs have the cores: neither a worker would get one, nor is a wait for a core one for data
        "PD101",
        "cores-of-other-programs",
        lambda: short_steps(LOADER, 300),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 300_000),
                title="The GPU waits 0.3 ms of each 1 ms step for the DataLoader, which has no workers",
                advice="Make the batch cheaper, as more workers do not help",
            ),
        ),
        facts={
            "cpu": {"affinity": 2},
            "cores": {"available": 2.0, "training": 0.3, "workers": 0.0, "others": 1.7},
            "devices": [{"name": "NVIDIA A100-SXM4-80GB"}],
            **{f"base_{name}": [ns] * 4 for name, ns in (("step_ns", 1_000_000), ("cpu_ns", 200_000))},
            "base_queued_ns": [600_000] * 4,
            "loaders": [
                {
                    "num_workers": 0,
                    "wait_ns": 4_000_000,
                    "wait_cpu_ns": 800_000,
                    "fetch": {
                        "where": "main",
                        "median_ns": 300_000,
                        "cpu_ns": 50_000,
                        "process_cpu_ns": 50_000,
                        "queued_ns": 250_000,
                    },
                }
            ],
        },
    ),
    RuleCase(  # both threads of the training and the worker share two cores: 8 ms in place of 10, and 0.3 to take over
        "PD101",
        "training-on-all-cores",
        lambda: cpu_program(4000, 10_000),
        (
            ExpectedFinding(
                "medium",
                4_000_000,
                (0, 1_700_000, 1_700_000),
                advice="The training itself computes with 2 threads on 2 cores",
                fix="num_workers=1",
            ),
        ),
        facts={"cpu": {"affinity": 2, "torch_threads": 2}, "loaders": [{"num_workers": 0, "wait_ns": 1}]},
    ),
    RuleCase(
        "PD101",
        "training-on-one-core",
        lambda: cpu_program(4000, 10_000),
        (ExpectedFinding("medium", 4_000_000, (0, 3_700_000, 3_700_000), fix="num_workers=1"),),
        facts={"cpu": {"affinity": 2, "torch_threads": 1}, "loaders": [{"num_workers": 0, "wait_ns": 1}]},
    ),
    RuleCase(
        "PD101",
        "decoding",
        lambda: loading_in("/x/site-packages/PIL/ImageFile.py(9): load"),
        (
            ExpectedFinding(
                "medium",
                40_000_000,
                location="train.py:3",
                advice="36 ms of the wait is load (ImageFile.py) (faces.py:12), image decoding: to make a batch "
                "cheaper, store smaller images",
                evidence={"what loading does": "load (ImageFile.py)", "called at": "faces.py:12"},
            ),
        ),
    ),
    RuleCase(
        "PD101",
        "own-transform",
        lambda: loading_in("faces.py(30): rotate"),
        (
            ExpectedFinding(
                "medium", 40_000_000, location="train.py:3", advice="36 ms of the wait is rotate (faces.py:30)."
            ),
        ),
    ),
    RuleCase(
        "PD101",
        "pipeline",
        lambda: in_a_pipeline(loading_in("faces.py(30): rotate", wait_ms=80)),
        (
            ExpectedFinding(
                "medium",
                80_000_000,
                location="train.py:3",
                advice="in one worker",
                fix="pipeline(dataset, num_workers=1)",
            ),
        ),
    ),
    RuleCase(
        "PD101",
        "workers-of-unknown-number",
        lambda: short_steps(WORKERS, 400),
        (
            ExpectedFinding(
                "medium", 400_000, (0, None, 400_000), fix="num_workers=...", evidence={"num_workers": None}
            ),
        ),
    ),
    # Training needs both cores for 6 ms and loading one for 4: spread evenly 8, and 0.3 to take the batch over.
    RuleCase(
        "PD101",
        "program-on-the-cpu",
        lambda: cpu_program(4000, 10_000),
        (ExpectedFinding("medium", 4_000_000, (0, 1_700_000, 3_700_000), title="The training loop waits"),),
    ),
    RuleCase(
        "PD101",
        "one-worker-on-the-cpu",
        lambda: cpu_program(4000, 10_000, WORKERS),
        (ExpectedFinding("medium", 4_000_000, title="has one worker that does not keep up"),),
        facts={"cpu": {"affinity": 8}, "loaders": [{"num_workers": 1, "wait_ns": 4_000_000}]},
    ),
    RuleCase(  # nearly all of the wait is sleeping: not the cores but memory bounds the workers
        "PD101",
        "loading-that-waits-itself",
        lambda: cpu_program(34_000, 35_000),
        (
            ExpectedFinding(
                "medium", 34_000_000, advice="computes for 2% of it: 51 workers would hide it", fix="num_workers=4"
            ),
        ),
        facts={"cpu": {"affinity": 2}, "loaders": [{"num_workers": 0, "wait_ns": 34_000_000, "wait_cpu_ns": 800_000}]},
    ),
    RuleCase("PD101", "an-epoch-begins-behind-the-gpu", lambda: while_the_gpu_works(iterators([2]))),
    RuleCase("PD101", "one-batch-an-iterator-behind-the-gpu", lambda: while_the_gpu_works(iterators([0, 1, 2, 3]))),
    RuleCase(
        "PD101", "a-pipeline-behind-the-gpu", lambda: while_the_gpu_works(in_a_pipeline(long_steps(LOADER, 80, 80)))
    ),
    RuleCase(
        "PD101",
        "a-pipeline-called-for-each-input-behind-the-gpu",
        lambda: while_the_gpu_works(in_a_pipeline(long_steps(LOADER, 80, 80).op("aten::random_", STEP_US - 2, 1))),
    ),
    RuleCase("PD101", "numbers-for-training-behind-the-gpu", lambda: while_the_gpu_works(iterators([1, 2, 3], ops=15))),
    RuleCase("PD101", "copies-inside-the-loader-behind-the-gpu", lambda: while_the_gpu_works(copies_in_loader())),
    RuleCase("PD101", "short-waits-with-cores-of-unknown-number", lambda: long_steps(LOADER, 0.5, 0.5)),
    # Nobody loads the first batch of an iterator ahead, and no worker copies to the GPU: that stays in any case.
    RuleCase(
        "PD101",
        "an-epoch-begins",
        lambda: iterators([2]),
        (
            ExpectedFinding(
                "medium",
                40_000_000,
                (0, 30_000_000, 30_000_000),
                title="which has no workers",
                evidence={"idle meanwhile that no worker hides": 10_000_000},
            ),
        ),
    ),
    RuleCase(
        "PD101",
        "one-batch-an-iterator",
        lambda: iterators([0, 1, 2, 3]),
        (
            ExpectedFinding(
                "medium",
                40_000_000,
                (0, None, 40_000_000),
                title="the DataLoader, which begins anew for each batch",
                advice="Make the iterator once",
                fix="batches = iter(loader)",
            ),
        ),
    ),
    RuleCase(  # one worker prepares the next input in 80 ms of a step of 100
        "PD101",
        "one-batch-a-call-of-a-pipeline",
        lambda: in_a_pipeline(long_steps(LOADER, 80, 80).op("aten::random_", STEP_US - 2, 1)),
        (
            ExpectedFinding(
                "medium", 80_000_000, (0, 20_000_000, 40_000_000), advice="Hand the pipeline a data set or a generator"
            ),
        ),
    ),
    RuleCase(
        "PD101",
        "a-pipeline-called-for-each-input",
        lambda: in_a_pipeline(
            long_steps(LOADER, 80, 80).op("aten::random_", -2, 1).op("aten::random_", STEP_US - 2, 1)
        ),
        (ExpectedFinding("medium", 80_000_000, (0, None, 20_000_000), title="begins anew for each batch"),),
    ),
    RuleCase(  # a loop that draws numbers for each batch, as for mixup, trains with them: no iterator begins
        "PD101",
        "numbers-for-training",
        lambda: iterators([1, 2, 3], ops=15),
        (ExpectedFinding("medium", 40_000_000, (0, 40_000_000, 40_000_000), title="which has no workers"),),
    ),
    RuleCase(
        "PD101",
        "copies-to-the-gpu-inside-the-loader",
        copies_in_loader,
        (ExpectedFinding("medium", 40_000_000, (0, 30_000_000, 30_000_000)),),
    ),
    RuleCase(  # 17 workers would hide it; of a machine whose cores were not captured nobody knows that it has them
        "PD101",
        "cores-of-unknown-number",
        lambda: long_steps(LOADER, 92, 92),
        (
            ExpectedFinding(
                "medium",
                92_000_000,
                (0, 88_500_000, 92_000_000),
                advice="18 workers would hide it, but how many cores there are was not recorded",
                fix="num_workers=8",
            ),
        ),
    ),
    RuleCase("PD101", "range-among-the-operators", legacy_loader, (ExpectedFinding("medium", 300_000),)),
    RuleCase(
        "PD101",
        "line-from-a-python-frame",
        loader_in_a_frame,
        (ExpectedFinding("medium", 300_000, location="train.py:7"),),
    ),
    RuleCase("PD101", "healthy", build_healthy_trace),
    RuleCase("PD101", "workers-that-keep-up", lambda: short_steps(WORKERS, 20)),
    RuleCase("PD101", "loading-while-the-gpu-works", loading_while_the_gpu_works),
    RuleCase("PD101", "gpu-not-recorded", gpu_not_recorded),
    RuleCase("PD101", "wait-before-the-first-step", load_before_the_first_step),
    RuleCase("PD101", "range-of-another-name", lambda: short_steps("load_batch", 300)),
    RuleCase("PD101", "taking-a-batch-over-takes-as-long", lambda: cpu_program(80, 700)),
    RuleCase("PD101", "workers-that-are-ahead-on-the-cpu", lambda: cpu_program(280, 700, WORKERS)),
    RuleCase(
        "PD101", "gpu-events-only", lambda: TraceBuilder().kernel(TENSOR_GEMM, 0, 10).kernel(TENSOR_GEMM, 500, 10)
    ),
    RuleCase(
        "PD101",
        "program-on-the-cpu-that-loads-fast",
        lambda: TraceBuilder(device=None).step(0, 1000).range(LOADER, 0, 20).op("aten::addmm", 20, 980),
    ),
    RuleCase(
        "PD101",
        "collating",
        collation,
        (
            ExpectedFinding(
                "medium",
                40_000_000,
                title="The GPU waits 40 ms of each 100 ms step",
                advice="20 ms of the wait is collating the samples; it moves to the workers",
                evidence={"of it collating": 20_000_000, "of it fetching items": 20_000_000},
            ),
        ),
    ),
    RuleCase(
        "PD101",
        "collating-in-frames",
        collation_in_frames,
        (ExpectedFinding("medium", 40_000_000, advice="is collating"),),
    ),
    RuleCase(
        "PD101",
        "copying",
        copies_in_loader,
        (ExpectedFinding("medium", 40_000_000, advice="10 ms of the wait is copying or pinning"),),
    ),
    RuleCase(
        "PD101",
        "frames-only",
        lambda: loader_in_frames(30),
        (ExpectedFinding("medium", 30_000_000, (0, None, 30_000_000)),),
    ),
    RuleCase("PD101", "collating-quickly", lambda: long_steps(LOADER, 2, 2).op("aten::stack", 100, 1800)),
    RuleCase("PD101", "frames-only-that-are-short", lambda: loader_in_frames(1)),
    RuleCase(
        "PD101",
        "decoding-while-the-gpu-works",
        lambda: while_the_gpu_works(loading_in("/x/site-packages/PIL/ImageFile.py(9): load")),
    ),
    RuleCase("PD101", "copying-while-the-gpu-works", lambda: while_the_gpu_works(copies_in_loader())),
    RuleCase("PD101", "own-transform-that-is-short", lambda: loading_in("faces.py(30): rotate", wait_ms=2)),
    RuleCase("PD101", "pipeline-of-short-waits", lambda: in_a_pipeline(loading_in("faces.py(30): rotate", wait_ms=2))),
    RuleCase(
        "PD101",
        "few-workers-that-keep-up",
        lambda: short_steps(WORKERS, 20),
        facts={"cpu": {"affinity": 8}, "loaders": [{"num_workers": 2, "wait_ns": 20_000}]},
    ),
    RuleCase(
        "PD101",
        "training-on-one-core-that-loads-fast",
        lambda: cpu_program(200, 10_000),
        facts={"cpu": {"affinity": 2, "torch_threads": 1}, "loaders": [{"num_workers": 0, "wait_ns": 1}]},
    ),
    RuleCase(
        "PD101",
        "one-worker-that-keeps-up-on-the-cpu",
        lambda: cpu_program(200, 10_000, WORKERS),
        facts={"cpu": {"affinity": 8}, "loaders": [{"num_workers": 1, "wait_ns": 200_000}]},
    ),
    RuleCase("PD101", "copies-outside-the-loader", lambda: long_steps(LOADER, 1, 1).op("aten::_to_copy", 2000, 9000)),
]
