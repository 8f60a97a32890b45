"""Cases of what loaders and threads cost besides waiting for workers: PD111, PD112, PD512 and PD513."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cases_loading import epochs, epochs_in_frames, loader_facts, while_the_gpu_works
from cases_shared_cores import MADE, MS, USED, measured, training
from rule_cases import LOADER, WORKERS

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

ONCE = (
    ExpectedFinding(
        "info",
        0,
        (None, None, None),
        title="Once in this trace: the GPU waits 60 ms at the start of an epoch",
        fix="persistent_workers=True",
    ),
)
STARTUP = (
    ExpectedFinding(
        "low", 10_000_000, (0, None, 10_000_000), title="starts its workers", fix="persistent_workers=True"
    ),
)

PD112 = [
    RuleCase("PD112", "workers-start", epochs, ONCE),
    RuleCase("PD112", "workers-start-in-frames", epochs_in_frames, ONCE),
    RuleCase(
        "PD112", "workers-start-each-epoch", epochs, STARTUP, facts=loader_facts(persistent_workers=False, iterations=2)
    ),
    RuleCase("PD112", "workers-are-kept", epochs, facts=loader_facts(persistent_workers=True, iterations=2)),
    RuleCase("PD112", "one-epoch", epochs, facts=loader_facts(persistent_workers=False, iterations=1)),
    RuleCase("PD112", "a-first-batch-that-is-little-late", lambda: epochs(first_ms=4)),
    RuleCase("PD112", "workers-that-start-quickly", lambda: epochs(first_ms=4.9)),
    RuleCase("PD112", "workers-start-while-the-gpu-works", lambda: while_the_gpu_works(epochs())),
]

_RESTARTED = {
    **measured(3, 50, load_ms=1, load_cpu_ms=1, workers=2),
    "loaders": [
        {
            "num_workers": 2,
            "persistent_workers": False,
            "iterations": 9,
            "wait_ns": 60 * MS,
            "created": MADE,
            "location": USED,
            "fetch": {"where": "worker", "median_ns": 2 * MS, "cpu_ns": MS, "collate_ns": MS, "items_ns": MS},
            "restarts": {"count": 8, "stop_ns": 10 * MS, "start_ns": 15 * MS, "first_batch_ns": 5 * MS},
        }
    ],
}


def _facts_with(loader: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**_RESTARTED, "loaders": [{**_RESTARTED["loaders"][0], **loader}]}


def short_epochs(
    *, stop_ms: float = 10, start_ms: float = 15, first_ms: float = 5, marked: bool = True
) -> TraceBuilder:
    """Four steps of 50 ms on the CPU: two epochs of two, each of which ends and starts workers."""
    trace = TraceBuilder(device=None)
    for number in range(4):
        at = begin = 50_000.0 * number
        trace.step(at, 50_000)
        if number % 2 == 0:
            trace.range(WORKERS, at, 1000 * stop_ms)
            begin = at + 1000 * stop_ms
            if marked:
                trace.range("perfdoctor::loader_start", begin + 10, 1000 * start_ms)
            begin += 1000 * start_ms + 20
        wait_ms = first_ms if number % 2 == 0 else 0.2
        trace.range(WORKERS, begin, 1000 * wait_ms)
        begin += 1000 * wait_ms
        trace.op("aten::addmm", begin, at + 50_000 - begin)
    return trace


def in_trainer(trace: TraceBuilder) -> TraceBuilder:
    trace.frame("/x/site-packages/transformers/trainer.py(2500): _inner_training_loop", 199_000, 900)
    return trace


PD112 += [
    RuleCase(  # 30 of 50 ms in two of four steps; 3 ms of each start remain, and 70 % are sure
        "PD112",
        "short-epochs",
        short_epochs,
        (
            ExpectedFinding(
                "medium",
                15 * MS,
                (0, 13_500_000, 15 * MS),
                location="train.py:12",
                title="30 ms at the start of an epoch at train.py:12, while the DataLoader starts its workers anew",
                fix="persistent_workers=True",
                evidence={"used at": "train.py:20", "starting workers in iter(loader)": 15 * MS},
            ),
        ),
        facts=_RESTARTED,
    ),
    RuleCase(
        "PD112",
        "starts-that-are-forked-slowly",
        lambda: short_epochs(stop_ms=0.1, start_ms=20, first_ms=1),
        (ExpectedFinding("medium", 10_550_000, location="train.py:12", fix="persistent_workers=True"),),
        facts=_RESTARTED,
    ),
    RuleCase(
        "PD112",
        "batches-that-are-easy-to-load",
        short_epochs,
        (ExpectedFinding("medium", 15 * MS, location="train.py:12", advice="num_workers=0"),),
        facts=_facts_with({"fetch": {"where": "worker", "median_ns": MS // 2, "cpu_ns": MS // 2}}),
    ),
    RuleCase(
        "PD112",
        "short-epochs-without-facts",
        short_epochs,
        (
            ExpectedFinding(
                "medium",
                15 * MS,
                (0, None, 15 * MS),
                title="waits 30 ms at the start of an epoch, while the DataLoader starts its workers anew",
                advice="here its cost is spread over the recorded steps",
                confidence=0.5,
                evidence={"epochs that began": 2},
            ),
        ),
    ),
    RuleCase(  # 60 of 600 ms; of 30 ms that a restart takes 3 remain, and 70 % are sure
        "PD112",
        "an-epoch-on-a-gpu-as-captured",
        epochs,
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, 9 * MS, 10 * MS),
                location="train.py:12",
                title="The GPU waits 60 ms at the start of an epoch at train.py:12",
                confidence=0.9,
            ),
        ),
        facts={**_RESTARTED, "base_step_ns": [100 * MS] * 3},
    ),
    RuleCase(  # the loop waits longer for the one whose workers start once
        "PD112",
        "the-loader-whose-workers-start-longest",
        short_epochs,
        (
            ExpectedFinding(
                "medium",
                15 * MS,
                (0, 13_500_000, 15 * MS),
                location="train.py:12",
                evidence={"starts of workers after the first": 8, "num_workers": 2},
            ),
        ),
        facts={
            **_RESTARTED,
            "loaders": [
                {"num_workers": 6, "iterations": 1, "wait_ns": 900 * MS, "created": USED},
                *_RESTARTED["loaders"],
            ],
        },
    ),
    RuleCase(
        "PD112",
        "under-the-trainer-of-hugging-face",
        lambda: in_trainer(short_epochs()),
        (
            ExpectedFinding(
                "medium",
                15 * MS,
                location="train.py:12",
                fix="TrainingArguments(..., dataloader_persistent_workers=True)",
            ),
        ),
        facts=_RESTARTED,
    ),
    RuleCase("PD112", "starts-that-take-little", lambda: short_epochs(stop_ms=0.5, start_ms=0.5, first_ms=0.5)),
    RuleCase("PD112", "marked-and-persistent", short_epochs, facts=_facts_with({"persistent_workers": True})),
    RuleCase("PD112", "marked-and-one-epoch", short_epochs, facts=_facts_with({"iterations": 1})),
    RuleCase(
        "PD112", "no-workers", lambda: training(10, 30, LOADER), facts=measured(10, 30, load_ms=10, load_cpu_ms=9)
    ),
    RuleCase("PD112", "healthy", build_healthy_trace, facts=_RESTARTED),
]


def loaded(wait_ms: float, step_ms: float, *, items_ms: float, collate_ms: float, **others: Any) -> Mapping[str, Any]:
    """As `measured`, with the parts of a fetch, and other facts of the loader (collate_fn, batch_tensors, ...)."""
    in_loader = {
        name: others.pop(name)
        for name in ("collate_fn", "batch_tensors", "collate_location", "items_location", "sampler_location")
        if name in others
    }
    parts = {"sampler_ns": others.pop("sampler_ns", None)}
    facts = measured(
        wait_ms, step_ms, **{"load_ms": wait_ms, "load_cpu_ms": wait_ms, "used": 1.9, "threads": 2, **others}
    )
    loader = facts["loaders"][0]
    fetch = {**loader["fetch"], "items_ns": round(items_ms * MS), "collate_ns": round(collate_ms * MS), **parts}
    return {**facts, "loaders": [{**loader, "fetch": fetch, **in_loader}]}


def transforms_of_a_library(wait_ms: float, step_ms: float) -> TraceBuilder:
    """Steps that wait for items which a library's data set makes by its transform."""
    trace = training(wait_ms, step_ms)
    for at in (0, 1000 * step_ms):
        loop = trace.frame("train.py(20): main", at, 1000 * step_ms)
        load = trace.frame("/x/site-packages/torch/utils/data/dataloader.py(701): __next__", at, 9900, parent=loop)
        trace.frame("/x/site-packages/torchvision/transforms/transforms.py(95): __call__", at + 20, 9700, parent=load)
    return trace


def rows_of_a_data_frame(wait_ms: float, step_ms: float) -> TraceBuilder:
    """Steps that wait for items which pandas makes."""
    trace = training(wait_ms, step_ms)
    for at in (0, 1000 * step_ms):
        loop = trace.frame("train.py(20): main", at, 1000 * step_ms)
        load = trace.frame("/x/site-packages/torch/utils/data/dataloader.py(701): __next__", at, 9900, parent=loop)
        item = trace.frame("data.py(12): __getitem__", at + 10, 9800, parent=load)
        trace.frame("/x/site-packages/pandas/core/indexing.py(1191): __getitem__", at + 20, 9700, parent=item)
    return trace


_COLLATE = {"file": "train.py", "line": 5, "function": "collate"}
_SAMPLER = {"file": "data.py", "line": 50, "function": "__iter__"}
_ITEMS = {"file": "data.py", "line": 30, "function": "__getitem__"}


def prepared(us: float, op: str = "aten::abs", frame: str = "train.py(9): features", steps: int = 2) -> TraceBuilder:
    """Steps of 1 ms: an op before the model, a layer in a module, and its backward pass."""
    trace = TraceBuilder(device=None)
    for number in range(steps):
        at = 1000 * number
        trace.step(at, 1000).op(op, at + 5, us)
        trace.frame(frame, at + 4, us + 2)
        trace.frame("nn.Module: Linear_0", at + 550, 110)
        trace.op("aten::linear", at + 555, 100, sequence=number)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 700, 200, sequence=number)
    return trace


def layer_outside_of_modules() -> TraceBuilder:
    """Steps of 1 ms: a `linear` of 500 us that is called by itself, the `addmm` in it, and its backward pass."""
    trace = TraceBuilder(device=None)
    for number in range(2):
        at = 1000 * number
        trace.step(at, 1000).op("aten::linear", at + 5, 500)
        trace.frame("train.py(9): forward", at + 4, 502)
        trace.op("aten::addmm", at + 50, 450, sequence=number)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 600, 300, sequence=number)
    return trace


def cut_before_the_backward_pass(us: float) -> TraceBuilder:
    """Steps of 1 ms that begin between a forward pass and its backward pass; this long an op lies before the model."""
    trace = TraceBuilder(device=None)
    for number in range(3):
        at = 1000 * number
        trace.step(at, 1000)
        trace.frame("train.py(11): <module>", at + 4, 400)
        trace.op("aten::ones_like", at + 5, 200)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 210, 190, sequence=number)
        trace.op("aten::abs", at + 450, us).frame("train.py(9): features", at + 449, us + 2)
        trace.frame("nn.Module: Linear_0", at + 850, 110)
        trace.op("aten::linear", at + 855, 100, sequence=number + 1)
    return trace


def after_backward(op: str) -> TraceBuilder:
    """Steps of 1 ms that begin at zero_grad: a backward pass of 300 us, an op before the model, and a layer."""
    trace = TraceBuilder(device=None)
    for number in range(2):
        at = 1000 * number
        trace.step(at, 1000).frame("train.py(9): main", at, 1000)
        trace.op("autograd::engine::evaluate_function: MulBackward0", at + 5, 300, sequence=number)
        trace.op(op, at + 310, 300)
        trace.frame("nn.Module: Linear_0", at + 620, 110)
        trace.op("aten::linear", at + 625, 100, sequence=number + 1)
    return trace.op("autograd::engine::evaluate_function: AddmmBackward0", 2005, 300, sequence=2)


def _sampler_beside_workers(sampler_ms: float) -> Mapping[str, Any]:
    """Two workers that keep up with a loop which waits 10 ms of 30 ms, of which the sampler takes so much."""
    facts = loaded(10, 30, items_ms=8, collate_ms=1, load_ms=9, workers=2, sampler_location=_SAMPLER)
    (loader,) = facts["loaders"]
    fetch = {**loader["fetch"], "sampler_ns": round(sampler_ms * MS)}
    return {**facts, "loaders": [{**loader, "fetch": fetch, "wait_median_ns": 10 * MS}]}


PD111 = [
    RuleCase(
        "PD111",
        "features-in-the-loop",
        lambda: prepared(500),
        (
            ExpectedFinding(
                "medium",
                500_000,
                (0, None, 500_000),
                location="train.py:9",
                title="The step prepares its batch itself: 0.5 ms of 1 ms before the model",
                advice="Prepare data once",
            ),
        ),
    ),
    RuleCase(
        "PD111",
        "a-product-in-the-loop",
        lambda: prepared(300, "aten::mm"),
        (ExpectedFinding("medium", 300_000, location="train.py:9"),),
    ),
    RuleCase(
        "PD111",
        "logarithms",
        lambda: prepared(450, "aten::log"),
        (ExpectedFinding("medium", 450_000, location="train.py:9"),),
    ),
    RuleCase(
        "PD111",
        "features-in-five-steps",
        lambda: prepared(500, steps=5),
        (ExpectedFinding("medium", 500_000, location="train.py:9"),),
    ),
    RuleCase("PD111", "a-backward-pass-before-the-model", lambda: cut_before_the_backward_pass(100)),
    RuleCase(
        "PD111",
        "features-after-a-backward-pass",
        lambda: cut_before_the_backward_pass(300),
        (ExpectedFinding("medium", 200_000, location="train.py:9"),),
    ),
    RuleCase(
        "PD111",
        "features-behind-the-last-backward-pass",
        lambda: after_backward("aten::abs"),
        (ExpectedFinding("medium", 300_000, location="train.py:9"),),
    ),
    RuleCase("PD111", "a-step-that-begins-with-the-backward-pass", lambda: after_backward("aten::randn")),
    RuleCase("PD111", "a-layer-outside-of-modules", layer_outside_of_modules),
    RuleCase("PD111", "features-of-a-tenth", lambda: prepared(100)),
    RuleCase("PD111", "noise-in-the-loop", lambda: prepared(500, "aten::randn")),
    RuleCase("PD111", "a-teacher-before-the-model", lambda: prepared(500, frame="nn.Module: Teacher_0")),
    RuleCase("PD111", "features-of-one-step", lambda: prepared(500, steps=1)),
    RuleCase(
        "PD111",
        "own-collate-function",
        lambda: training(10, 30),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, None, 10 * MS),
                location="train.py:5",
                title="for a batch: the collate function collate (train.py:5) takes 9 ms of that",
                advice="More workers would not help",
                evidence={"used at": "train.py:20", "putting them together": 9 * MS, "making its items": MS},
            ),
        ),
        facts=loaded(10, 30, items_ms=1, collate_ms=9, collate_fn="collate", collate_location=_COLLATE),
    ),
    RuleCase(
        "PD111",
        "items-made-in-python",
        lambda: training(10, 30),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, None, 10 * MS),
                location="data.py:30",
                title="making its items in __getitem__ (data.py:30) takes 9.5 ms of that",
            ),
        ),
        facts=loaded(10, 30, items_ms=9.5, collate_ms=0.5, collate_fn="default_collate", items_location=_ITEMS),
    ),
    RuleCase(
        "PD111",
        "a-sampler",
        lambda: training(10, 30),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, None, 9 * MS),
                location="data.py:50",
                title="choosing its items in __iter__ (data.py:50) takes 9 ms of that",
                advice="The sampler stays in the training process, however many workers there are.",
                evidence={
                    "time to load a batch": 10 * MS,
                    "making its items": 800_000,
                    "putting them together": 100_000,
                    "choosing them, in the training process": 9 * MS,
                    "the rest of it": 100_000,
                },
            ),
        ),
        facts=loaded(10, 30, items_ms=0.8, collate_ms=0.1, sampler_ns=9 * MS, sampler_location=_SAMPLER),
    ),
    RuleCase(
        "PD111",
        "what-is-left-of-a-wait-is-its-sampler",
        lambda: training(10, 30),
        (ExpectedFinding("medium", 10 * MS, (0, None, 8 * MS), location="train.py:12", title="in main (train.py:12)"),),
        facts=loaded(10, 30, items_ms=1.5, collate_ms=0.5),
    ),
    RuleCase(
        "PD111",
        "a-sampler-beside-workers-that-keep-up",
        lambda: training(10, 30, WORKERS),
        (
            ExpectedFinding(
                "medium", 10 * MS, (0, None, 9 * MS), location="data.py:50", title="takes 9 ms of that", advice="stays"
            ),
        ),
        facts=_sampler_beside_workers(9),
    ),
    RuleCase(
        "PD111", "a-short-sampler-beside-workers", lambda: training(10, 30, WORKERS), facts=_sampler_beside_workers(1)
    ),
    RuleCase(
        "PD111",
        "a-sampler-of-a-fiftieth",
        lambda: training(0.6, 30),
        facts=loaded(0.6, 30, items_ms=0.05, collate_ms=0.05, sampler_ns=500_000),
    ),
    RuleCase(
        "PD111",
        "a-sampler-whose-batches-were-ready-in-time",
        lambda: training(0, 30),
        facts=_sampler_beside_workers(0.01),
    ),
    RuleCase(  # little enough that one may leave it, too much to be silent
        "PD111",
        "a-tenth-of-the-step",
        lambda: training(3, 40),
        (ExpectedFinding("low", 3 * MS, (0, None, 3 * MS), location="data.py:30", title="in __getitem__"),),
        facts=loaded(3, 40, items_ms=2.9, collate_ms=0.1, items_location=_ITEMS),
    ),
    RuleCase(  # the line to change is the one that makes the loader
        "PD111",
        "items-of-a-library",
        lambda: training(10, 30),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, None, 10 * MS),
                location="train.py:12",
                title="making its items in __getitem__ (mnist.py:131) takes 9.5 ms of that",
                advice="read it once into tensors",
            ),
        ),
        facts=loaded(
            10,
            30,
            items_ms=9.5,
            collate_ms=0.5,
            collate_fn="default_collate",
            items_location={**_ITEMS, "file": "/x/site-packages/torchvision/datasets/mnist.py", "line": 131},
        ),
    ),
    RuleCase(  # what to do with that data set, not that its transform takes long
        "PD111",
        "transform-of-a-library",
        lambda: transforms_of_a_library(10, 30),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, None, 10 * MS),
                location="train.py:12",
                advice="read it once into tensors",
                evidence={"what loading does": "__call__ (transforms.py)"},
            ),
        ),
        facts=loaded(
            10,
            30,
            items_ms=9.5,
            collate_ms=0.5,
            items_location={**_ITEMS, "file": "/x/site-packages/torchvision/datasets/mnist.py", "line": 131},
        ),
    ),
    RuleCase(
        "PD111",
        "transform-of-a-library-that-is-quick",
        lambda: training(1, 30),
        facts=loaded(
            1,
            30,
            items_ms=0.9,
            collate_ms=0.1,
            items_location={**_ITEMS, "file": "/x/site-packages/torchvision/datasets/mnist.py", "line": 131},
        ),
    ),
    RuleCase(  # what is ready once still takes 0.2 ms a batch
        "PD111",
        "lists-that-are-collated",
        lambda: training(10, 30),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, 9_800_000, 10 * MS),
                location="train.py:12",
                title="samples are lists",
                advice="return tensors or arrays from the data set instead of lists",
            ),
        ),
        facts=loaded(10, 30, items_ms=1, collate_ms=9, collate_fn="default_collate", batch_tensors=64),
    ),
    RuleCase(
        "PD111",
        "parts-not-captured",
        lambda: training(10, 30),
        (ExpectedFinding("medium", 10 * MS, (0, None, 10 * MS), location="train.py:12", title="has to get cheaper"),),
        facts=measured(10, 30, load_ms=10, load_cpu_ms=10, used=1.67, threads=2),
    ),
    RuleCase(  # ready columns still take 0.2 ms a batch
        "PD111",
        "rows-of-a-data-frame",
        lambda: rows_of_a_data_frame(10, 30),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                (0, 9_800_000, 10 * MS),
                location="data.py:12",
                title="making its items in __getitem__ (data.py:12) takes 9.5 ms of that",
                advice="take tensors of the columns once",
            ),
        ),
        facts=loaded(10, 30, items_ms=9.5, collate_ms=0.5, collate_fn="default_collate"),
    ),
    RuleCase(
        "PD111",
        "loading-that-sleeps",
        lambda: training(40, 60),
        facts=measured(40, 60, load_ms=40, load_cpu_ms=2, used=0.37),
    ),
    RuleCase(
        "PD111",
        "a-twentieth-in-a-library",
        lambda: training(2, 40),
        facts=loaded(2, 40, items_ms=1.9, collate_ms=0.1, items_location={**_ITEMS, "file": "/x/torchvision/a.py"}),
    ),
    RuleCase(
        "PD111",
        "half-a-percent-more",
        lambda: training(2.2, 40),
        facts=loaded(2.2, 40, items_ms=2, collate_ms=0.2, items_location=_ITEMS),
    ),
    RuleCase(
        "PD111", "a-twentieth-of-the-step", lambda: training(2, 40), facts=loaded(2, 40, items_ms=1, collate_ms=1)
    ),
    RuleCase(
        "PD111",
        "workers-that-keep-up",
        lambda: training(3, 30, WORKERS),
        facts=loaded(3, 30, items_ms=10, collate_ms=10, workers=1, load_ms=20, load_cpu_ms=20, used=1.0),
    ),
    RuleCase("PD111", "no-facts", lambda: training(10, 30)),
    RuleCase("PD111", "healthy", build_healthy_trace, facts=loaded(10, 30, items_ms=1, collate_ms=9)),
]

_HALF = measured(0, 30, load_ms=0, load_cpu_ms=0, used=0.5, cores=0.5, queued_ms=(15, 0))


def stopped_by_quota(throttled: float | None, queued: float = 0.5) -> dict[str, Any]:
    """Facts of a program of one thread that waits for a core for half of its steps, on a quota of half a core."""
    return {**_HALF, "cores": {**_HALF["cores"], "throttled": throttled, "queued": queued}}


_SIXTEEN = measured(0, 30, load_ms=0, load_cpu_ms=0, used=2.0, threads=16)
PD512 = [
    RuleCase(
        "PD512",
        "sixteen-threads-on-two-cores",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "medium",
                26_100_000,
                (0, 17_400_000, 26_100_000),
                title="16 threads compute on 2 cores",
                fix="torch.set_num_threads(2)",
                advice="try --only threads",
            ),
        ),
        facts=_SIXTEEN,
    ),
    RuleCase(
        "PD512",
        "a-variable-that-sets-them",
        lambda: training(0, 30),
        (ExpectedFinding("medium", 26_100_000, title="(OMP_NUM_THREADS)", fix="OMP_NUM_THREADS=2"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, threads=16, omp="16"),
    ),
    RuleCase(
        "PD512",
        "a-line-that-sets-them",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "medium",
                26_100_000,
                location="train.py:12",
                title="16 threads at train.py:12 compute on 2 cores",
                fix="torch.set_num_threads(2)",
            ),
        ),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, threads=16, omp="16", threads_set=MADE),
    ),
    RuleCase(
        "PD512",
        "a-quota-that-one-thread-uses-up",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "medium",
                15_000_000,
                (0, None, 15_000_000),
                title="stands still for 50% of the time: a quota of 0.5 cores is used up",
                evidence={"cores that may be used": 0.5},
            ),
        ),
        facts=stopped_by_quota(0.5),
    ),
    RuleCase(  # others make it wait as long as the quota does
        "PD512",
        "a-quota-beside-other-programs",
        lambda: training(0, 30),
        (ExpectedFinding("medium", 7_500_000, (0, None, 7_500_000), title="stands still for 25% of the time"),),
        facts=stopped_by_quota(0.25),
    ),
    RuleCase(
        "PD512",
        "a-quota-that-is-not-known",
        lambda: training(0, 30),
        (ExpectedFinding("medium", 15_000_000, (0, None, 15_000_000), title="a quota of CPU time is used up"),),
        facts={**stopped_by_quota(0.5), "cores": {**stopped_by_quota(0.5)["cores"], "available": 2.0}},
    ),
    RuleCase("PD512", "a-quota-that-is-not-used-up", lambda: training(0, 30), facts=stopped_by_quota(0.0)),
    RuleCase("PD512", "a-quota-that-nobody-measured", lambda: training(0, 30), facts=stopped_by_quota(None)),
    RuleCase("PD512", "other-programs-on-its-cores", lambda: training(0, 30), facts=stopped_by_quota(0.02)),
    RuleCase(  # 12 cores of 16 stand still: three quarters of the time
        "PD512",
        "a-quota-that-stops-them",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "medium",
                22_500_000,
                (0, None, 22_500_000),
                title="a quota stops them for 75% of the time",
                evidence={"stopped by a quota": 75.0},
            ),
        ),
        facts={
            **_SIXTEEN,
            "cpu": {"affinity": 16, "torch_threads": 16},
            "cores": {**_SIXTEEN["cores"], "throttled": 12.0},
        },
    ),
    RuleCase(  # each thread has a core of its own until the quota is used up, and nobody measured whether it was
        "PD512",
        "a-quota-that-may-stop-them",
        lambda: training(0, 30),
        (ExpectedFinding("info", 0, (None, None, None), advice="What it costs is not known"),),
        facts={**_SIXTEEN, "cpu": {"affinity": 16, "torch_threads": 16}},
    ),
    RuleCase(
        "PD512",
        "a-quota-that-stops-nothing",
        lambda: training(0, 30),
        facts={
            **_SIXTEEN,
            "cpu": {"affinity": 16, "torch_threads": 16},
            "cores": {**_SIXTEEN["cores"], "throttled": 0.0},
        },
    ),
    RuleCase(
        "PD512",
        "one-thread-too-many",
        lambda: training(0, 30),
        (ExpectedFinding("medium", 26_100_000, title="3 threads compute on 2 cores"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, used=2.0, threads=3),
    ),
    RuleCase(  # another trainer has most of both cores
        "PD512",
        "two-threads-beside-other-programs",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "info",
                0,
                (None, None, None),
                title="2 threads compute on 2 cores, of which other programs use 1.4",
                advice="Use 1 thread for as long as others have the cores",
                fix="torch.set_num_threads(1)",
            ),
        ),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, used=0.6, threads=2, queued_ms=(20, 0), others=1.4),
    ),
    RuleCase(
        "PD512",
        "one-thread-beside-other-programs",
        lambda: training(0, 30),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, used=0.6, threads=1, queued_ms=(20, 0), others=1.4),
    ),
    RuleCase(  # its ops are too small to be divided
        "PD512",
        "threads-that-sleep",
        lambda: training(0, 30),
        facts={**_SIXTEEN, "base_cpu_ns": [29 * MS] * 3, "base_process_cpu_ns": [30 * MS] * 3},
    ),
    RuleCase(
        "PD512",
        "two-ranks-share-the-cores",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "medium",
                27_900_000,
                (0, 12_600_000, 27_900_000),
                title="which 2 ranks share",
                fix="torch.set_num_threads(2)",
                advice="Use 2 threads",
            ),
        ),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, threads=4, cores=4.0, local_ranks=2),
    ),
    RuleCase(
        "PD512",
        "two-nodes",
        lambda: training(0, 30),
        (ExpectedFinding("info", 0, title="all 2 NUMA nodes", fix="numactl --cpunodebind=0"),),
        facts={
            **measured(0, 30, load_ms=0, load_cpu_ms=0, cores=64.0),
            "cpu": {"affinity": 64, "count": 64, "torch_threads": 64, "numa_nodes": 2},
        },
    ),
    RuleCase(
        "PD512", "as-many-as-cores", lambda: training(0, 30), facts=measured(0, 30, load_ms=0, load_cpu_ms=0, threads=2)
    ),
    RuleCase(
        "PD512",
        "one-more",
        lambda: training(0, 30),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, threads=4, cores=3.0),
    ),
    RuleCase("PD512", "ops-that-are-not-divided", lambda: training(0, 30, op="sort"), facts=_SIXTEEN),
    RuleCase(
        "PD512",
        "kept-on-one-node",
        lambda: training(0, 30),
        facts={
            **measured(0, 30, load_ms=0, load_cpu_ms=0, cores=32.0),
            "cpu": {"affinity": 32, "count": 64, "torch_threads": 32, "numa_nodes": 2},
        },
    ),
    RuleCase("PD512", "no-facts", lambda: training(0, 30)),
    RuleCase("PD512", "healthy", build_healthy_trace, facts=_SIXTEEN),
]


def faulting(
    pages: int, system_ms: float, step_ms: float = 30, *, cpu_ms: float = 30, others: float = 0.0, **facts: Any
) -> Mapping[str, Any]:
    """Facts of a program whose steps fault in so many pages, in so much CPU time of the system."""
    measured_facts = measured(0, step_ms, load_ms=0, load_cpu_ms=0, threads=2)
    return {
        **measured_facts,
        "cores": {**measured_facts["cores"], "others": others},
        "base_minor_faults": [pages] * 3,
        "base_system_cpu_ns": [round(system_ms * MS)] * 3,
        "base_process_cpu_ns": [round(cpu_ms * MS)] * 3,
        "libraries": {"allocators": [], "openmp": ["libgomp.so.1"]},
        **facts,
    }


def convolving(
    op: str = "aten::_slow_conv2d_forward",
    *,
    us: float = 5000,
    dtype: str = "float",
    device: str | None = None,
    size: Sequence[int] = (5, 64, 56, 56),
    kernel: int = 3,
) -> TraceBuilder:
    """Four passes of 10 ms on the CPU: an op of convolution and other work."""
    trace = TraceBuilder(device=device)
    for number in range(4):
        trace.op(op, 10_000 * number, us, shapes=[list(size), [64, 64, kernel, kernel]], types=[dtype, dtype])
        trace.op("aten::native_batch_norm", 10_000 * number + us, 10_000 - us - 5)
    return trace


def multiplying(
    us: float = 8000,
    *,
    rows: int = 128,
    dtype: str | None = "c10::BFloat16",
    device: str | None = None,
    op: str = "aten::mm",
    before: Sequence[Sequence[int]] = (),
) -> TraceBuilder:
    """Four passes of 10 ms on the CPU: a product of (rows, 512) x (512, 512), which is 67 MFLOP for 128 rows."""
    trace = TraceBuilder(device=device)
    for number in range(4):
        shapes = [*before, [rows, 512], [512, 512]]
        if op == "aten::bmm":
            shapes = [[4, *shape] for shape in shapes]
        trace.op(op, 10_000 * number, us, **({"shapes": shapes, "types": [dtype] * len(shapes)} if dtype else {}))
        trace.op("aten::native_layer_norm", 10_000 * number + us, 9_900 - us)
    return trace


def at_two_lines() -> TraceBuilder:
    """Steps of 30 ms on the CPU: 10 ops at one line take 2.5 ms each, and 25 at another one 0.1 ms."""
    trace = training(0, 30, op_us=2500)
    for at in (0, 30_000):
        trace.frame("train.py(7): main", at, 30_000)
        trace.range("@train.py:8 main", at, 25_000).range("@train.py:9 main", at + 25_000, 5000)
    return trace


PD513 = [
    # In float32: 67.1 MFLOP at 50 GFLOP/s and 1.57 MB at 10 GB/s are 1.499 ms of the 8; of 16 rows 0.277 ms.
    RuleCase(
        "PD513",
        "products-in-bfloat16-without-instructions",
        multiplying,
        (
            ExpectedFinding(
                "medium",
                32 * MS,
                (0, 26_002_145, 28_401_287),
                title="Products in bfloat16 reach 8.4 GFLOP/s on this CPU, where float32 reaches some 45",
                fix="model.float()",
                advice="in plain loops",
                evidence={"products and convolutions": "4 in all"},
            ),
        ),
    ),
    RuleCase(
        "PD513",
        "products-in-float16-without-instructions",
        lambda: multiplying(dtype="c10::Half"),
        (ExpectedFinding("medium", 32 * MS, title="Products in float16"),),
    ),
    RuleCase(
        "PD513",
        "layers-in-bfloat16-without-instructions",
        lambda: multiplying(op="aten::addmm", before=[[512]]),
        (ExpectedFinding("medium", 32 * MS, title="Products in bfloat16 reach 8.4 GFLOP/s"),),
    ),
    RuleCase(
        "PD513",
        "batched-products-in-bfloat16-without-instructions",
        lambda: multiplying(rows=32, op="aten::bmm"),
        (ExpectedFinding("medium", 32 * MS, title="Products in bfloat16 reach 8.4 GFLOP/s"),),
    ),
    # Four threads: 0.375 ms in float32.
    RuleCase(
        "PD513",
        "products-in-bfloat16-by-threads",
        lambda: multiplying(1000),
        (ExpectedFinding("medium", 4 * MS, (0, 2_500_536, 3_100_322), title="where float32 reaches some 179"),),
        facts={"cpu": {"torch_threads": 4}},
    ),
    RuleCase(
        "PD513",
        "products-in-float32-where-bfloat16-is-fast",
        lambda: multiplying(dtype="float"),
        (ExpectedFinding("info", 0, title="Large products in float32 take 80% of the trace", fix="torch.autocast"),),
        facts={"cpu": {"bfloat16": True}},
    ),
    RuleCase(
        "PD513",
        "small-products-in-float32",
        lambda: multiplying(dtype="float", rows=32),
        facts={"cpu": {"bfloat16": True}},
    ),
    RuleCase("PD513", "products-in-bfloat16-with-instructions", lambda: multiplying(2500)),
    RuleCase("PD513", "products-of-few-rows-read-weights", lambda: multiplying(540, rows=16)),
    RuleCase("PD513", "slow-products-in-float32", lambda: multiplying(dtype="float")),
    RuleCase("PD513", "slow-products-of-unknown-type", lambda: multiplying(dtype=None)),
    # Ops of a GPU program take as long as its queue is full.
    RuleCase(
        "PD513",
        "products-in-bfloat16-on-a-gpu",
        lambda: multiplying(device="NVIDIA A100-SXM4-80GB").kernel("gemm_bf16", 100, 35_000, launch_us=50),
    ),
    RuleCase(
        "PD513",
        "convolutions-without-onednn",
        convolving,
        (
            ExpectedFinding(
                "medium",
                20 * MS,
                (0, None, 17_619_048),
                title="Convolutions run without oneDNN, as _slow_conv2d_forward: 4 in all",
                fix="torch.backends.mkldnn.is_available()",
                advice="Builds for a Mac have none",
                evidence={"longest of them": "_slow_conv2d_forward"},
            ),
        ),
    ),
    RuleCase(
        "PD513",
        "backward-of-convolutions-without-onednn",
        lambda: convolving("aten::_slow_conv2d_backward"),
        (ExpectedFinding("medium", 20 * MS, title="as _slow_conv2d_backward"),),
    ),
    RuleCase(
        "PD513",
        "transposed-convolutions-without-onednn",
        lambda: convolving("aten::slow_conv_transpose2d"),
        (ExpectedFinding("medium", 20 * MS),),
    ),
    # PyTorch leaves a batch of one with few elements to its own op.
    RuleCase("PD513", "convolutions-beside-those-of-onednn", lambda: convolving().op("aten::mkldnn_convolution", 0, 9)),
    RuleCase(
        "PD513",
        "convolutions-of-each-step",
        lambda: convolving().step(0, 20_000).step(20_000, 20_000),
        (ExpectedFinding("medium", 10 * MS, title="as _slow_conv2d_forward: 2 a step"),),
    ),
    RuleCase(
        "PD513",
        "a-large-image-without-onednn",
        lambda: convolving(size=(1, 64, 56, 56)),
        (ExpectedFinding("medium", 20 * MS),),
    ),
    RuleCase(
        "PD513",
        "1-x-1-on-two-threads",
        lambda: convolving(kernel=1),
        (ExpectedFinding("medium", 20 * MS),),
        facts={"cpu": {"torch_threads": 2}},
    ),
    RuleCase("PD513", "1-x-1-on-one-thread", lambda: convolving(kernel=1), facts={"cpu": {"torch_threads": 1}}),
    RuleCase("PD513", "a-small-image-beside-others", lambda: convolving(size=(1, 64, 16, 16))),
    RuleCase("PD513", "small-convolutions", lambda: convolving(us=400)),
    RuleCase(
        "PD513",
        "small-convolutions-of-which-one-lost-its-core",
        lambda: convolving(us=400).step(0, 9000).step(9000, 9000).op("aten::_slow_conv2d_forward", 15_000, 2000),
    ),
    RuleCase("PD513", "convolutions-in-float64", lambda: convolving(dtype="double")),
    RuleCase(
        "PD513",
        "pages-that-come-and-go",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "medium",
                7_500_000,
                (0, 6 * MS, 7_500_000),
                title="10,000 pages a step are asked for and cleared anew",
                fix="MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184",
                evidence={"minor page faults per step": 10_000, "largest op": "aten::addmm", "time of a fault": 600},
            ),
        ),
        facts=faulting(10_000, 6),
    ),
    RuleCase(
        "PD513",
        "pages-of-a-line",
        at_two_lines,
        (ExpectedFinding("medium", 7_500_000, location="train.py:8"),),
        facts=faulting(10_000, 6),
    ),
    RuleCase("PD513", "few-pages-of-a-line", at_two_lines, facts=faulting(500, 6)),
    RuleCase(  # threads on both cores fault beside each other
        "PD513",
        "on-two-cores",
        lambda: training(0, 30),
        (ExpectedFinding("medium", 3_750_000, (0, 3 * MS, 3_750_000)),),
        facts=faulting(10_000, 6, cpu_ms=60),
    ),
    RuleCase(  # a fifth of its CPU time, of which others leave half a core
        "PD513",
        "beside-other-programs",
        lambda: training(0, 30),
        (ExpectedFinding("medium", 7_500_000),),
        facts=faulting(10_000, 3, cpu_ms=15, others=1.5),
    ),
    RuleCase(  # a worker hands over 1,000 pages of shared memory
        "PD513",
        "beside-batches-of-workers",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "medium",
                7_500_000,
                title="9,000 pages a step",
                evidence={"minor page faults per step": 9000, "time of a fault": 667},
            ),
        ),
        facts=faulting(10_000, 6, loaders=[{"num_workers": 1, "batch_bytes": 4_096_000}]),
    ),
    RuleCase(  # a quarter more than 27 ms would be more than the step
        "PD513",
        "nothing-but-faults",
        lambda: training(0, 30),
        (ExpectedFinding("medium", 30 * MS, (0, 24 * MS, 30 * MS), evidence={"time of a fault": 2700}),),
        facts=faulting(10_000, 27),
    ),
    RuleCase(  # of 1,000 pages of 2 MB each takes 150 us on two cores, of which other programs leave 1.5
        "PD513",
        "pages-of-two-megabytes",
        lambda: training(0, 300),
        (
            ExpectedFinding(
                "medium",
                125 * MS,
                (0, 100 * MS, 125 * MS),
                title="1,000 pages a step",
                evidence={"time of a fault": 150_000, "cores that the program uses": 1.5},
            ),
        ),
        facts=faulting(1000, 150, 300, cpu_ms=450),
    ),
    RuleCase(
        "PD513", "jemalloc", lambda: training(0, 30), facts=faulting(10_000, 6, libraries={"allocators": ["jemalloc"]})
    ),
    RuleCase("PD513", "few-pages", lambda: training(0, 30), facts=faulting(500, 6)),
    RuleCase("PD513", "little-time", lambda: training(0, 30), facts=faulting(10_000, 0.8)),
    RuleCase(
        "PD513", "the-system-does-something-else", lambda: training(0, 30), facts=faulting(1100, 280, 300, cpu_ms=300)
    ),
    RuleCase("PD513", "no-facts", lambda: training(0, 30)),
    RuleCase("PD513", "healthy", build_healthy_trace, facts=faulting(10_000, 6)),
]
