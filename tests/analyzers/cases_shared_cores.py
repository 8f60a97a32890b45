"""Cases of programs without a GPU whose cores and loading were measured: PD101, PD114 and PD115."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rule_cases import LOADER, WORKERS

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

MS = 1_000_000
MADE = {"file": "train.py", "line": 12, "function": "main"}
USED = {"file": "train.py", "line": 20, "function": "main"}


def training(
    wait_ms: float, step_ms: float, name: str = LOADER, op_us: float = 1000, op: str = "addmm"
) -> TraceBuilder:
    """Two steps on the CPU that begin with a wait in the loader and are full of ops of such a length then."""
    trace = TraceBuilder(device=None)
    for number in range(2):
        at = 1000 * step_ms * number
        trace.step(at, 1000 * step_ms)
        if wait_ms:
            trace.range(name, at, 1000 * wait_ms)
        begin = at + 1000 * wait_ms
        while begin + op_us <= at + 1000 * step_ms:
            trace.op(f"aten::{op}", begin, op_us)
            begin += op_us
    return trace


def measured(
    wait_ms: float,
    step_ms: float,
    *,
    load_ms: float,
    load_cpu_ms: float,
    workers: int = 0,
    used: float = 1.0,
    threads: int = 1,
    cores: float = 2.0,
    queued_ms: tuple[float, float] | None = None,
    **others: Any,
) -> Mapping[str, Any]:
    """Facts of a program that was measured without the profiler, in as long steps.

    Args:
        wait_ms, step_ms: The wait and the step.
        load_ms, load_cpu_ms: What a batch takes in the process that loads it.
        workers: Worker processes.
        used: Cores that the training process uses.
        threads: Threads of PyTorch.
        cores: Cores that may be used.
        queued_ms: How long the training thread waits for a core in a step, and who loads for a batch.
        others: Other parts of "cores", of "cpu" (threads_set) and of the facts (world_size).
    """
    fetch = {
        "where": "worker" if workers else "main",
        "batches": 9,
        "median_ns": round(load_ms * MS),
        "cpu_ns": round(load_cpu_ms * MS),
        "process_cpu_ns": round(load_cpu_ms * MS),
        "queued_ns": None if queued_ms is None else round(queued_ms[1] * MS),
    }
    of_steps = {}
    if queued_ms is not None:
        slept_ms = wait_ms if workers else load_ms - load_cpu_ms - queued_ms[1]
        of_steps = {
            "base_cpu_ns": [round((step_ms - queued_ms[0] - slept_ms) * MS)] * 3,
            "base_queued_ns": [round(queued_ms[0] * MS)] * 3,
        }
    worker_cores = workers and round(load_cpu_ms / step_ms, 3)
    loader = {
        "num_workers": workers,
        "wait_ns": round(wait_ms * MS),
        "fetch": fetch,
        "batch_bytes": 100_000,
        "created": MADE,
        "location": USED,
    }
    cpu = {"affinity": 2, "torch_threads": threads, "omp_num_threads": others.pop("omp", None)}
    return {
        "cpu": {**cpu, "threads_set": others.pop("threads_set", None)},
        "world_size": others.pop("world_size", 1),
        "cores": {"available": cores, "training": used, "workers": worker_cores, "others": 0.0, **others},
        "base_step_ns": [round(step_ms * MS)] * 3,
        "base_loader_wait_ns": [round(wait_ms * MS)] * 3,
        "loaders": [loader] if wait_ms else [],
        **of_steps,
    }


def sampled(sampler_ms: float, **measured_as: float) -> Mapping[str, Any]:
    """Facts of a loader without workers that waits 40 ms of 60, of which the sampler takes so much."""
    facts = measured(40, 60, load_ms=40, **{"load_cpu_ms": 40, **measured_as})
    (loader,) = facts["loaders"]
    parts = {"sampler_ns": round(sampler_ms * MS), "items_ns": round((39 - sampler_ms) * MS), "collate_ns": MS}
    return {**facts, "loaders": [{**loader, "fetch": {**loader["fetch"], **parts}}]}


_SHARING = measured(3, 30, load_ms=20, load_cpu_ms=12, workers=1, used=1.6, threads=2)

_ONE = measured(0, 30, load_ms=0, load_cpu_ms=0, used=1.0, threads=1)
