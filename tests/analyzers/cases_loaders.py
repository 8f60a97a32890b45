"""Cases of what loaders and threads cost besides waiting for workers: PD111, PD112, PD512 and PD513."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cases_loading import epochs, epochs_in_frames, loader_facts, while_the_gpu_works
from cases_shared_cores import MADE, MS, USED, measured, training
from rule_cases import LOADER, WORKERS

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

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


_HALF = measured(0, 30, load_ms=0, load_cpu_ms=0, used=0.5, cores=0.5, queued_ms=(15, 0))


def stopped_by_quota(throttled: float | None, queued: float = 0.5) -> dict[str, Any]:
    """Facts of a program of one thread that waits for a core for half of its steps, on a quota of half a core."""
    return {**_HALF, "cores": {**_HALF["cores"], "throttled": throttled, "queued": queued}}


_SIXTEEN = measured(0, 30, load_ms=0, load_cpu_ms=0, used=2.0, threads=16)


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
