"""Cases of the rule about waits for the DataLoader: PD101."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rule_cases import LOADER, TENSOR_GEMM, WORKERS, step_of

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

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
