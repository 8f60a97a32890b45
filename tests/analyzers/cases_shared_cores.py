"""Cases of programs without a GPU whose cores and loading were measured: PD101, PD114 and PD115."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rule_cases import LOADER, WORKERS

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


PD101: list[RuleCase] = [
    RuleCase(  # 10 of 40 ms move, beside the 50 that are left
        "PD101",
        "a-worker-takes-the-items-and-leaves-the-sampler",
        lambda: training(40, 60),
        (
            ExpectedFinding(
                "medium",
                40 * MS,
                location="train.py:12",
                fix="num_workers=1",
                title="about 54.7 ms",
                evidence={"of it choosing items, in the training process": 30 * MS, "time to load a batch": 10 * MS},
            ),
        ),
        facts=sampled(30, used=1.0),
    ),
    RuleCase("PD101", "a-worker-would-leave-the-sampler", lambda: training(40, 60), facts=sampled(38, used=1.0)),
    RuleCase(  # loading sleeps: two workers a core, 40 ms of sleep by four of them in the 20 ms of the training
        "PD101",
        "sleeping-loader-on-two-cores",
        lambda: training(40, 60),
        (
            ExpectedFinding(
                "medium",
                40 * MS,
                location="train.py:12",
                title="train.py:12, whose DataLoader has no workers; with 3 workers about 22.3 ms",
                fix="num_workers=3",
                evidence={"used at": "train.py:20", "num_workers": 0, "threads of PyTorch": 1},
            ),
        ),
        facts=measured(40, 60, load_ms=40, load_cpu_ms=2, used=0.37, threads=1),
    ),
    RuleCase(  # one core idles: 10 ms of computing fit beside the 20 of the training
        "PD101",
        "computing-loader-beside-one-thread",
        lambda: training(10, 30),
        (ExpectedFinding("medium", 10 * MS, location="train.py:12", fix="num_workers=1"),),
        facts=measured(10, 30, load_ms=10, load_cpu_ms=10, used=1.0, threads=1),
    ),
    RuleCase(  # the same program while others have the cores: a worker would get none, and PD111 says what helps
        "PD101",
        "computing-loader-on-a-busy-machine",
        lambda: training(40, 120),
        facts=measured(40, 120, load_ms=40, load_cpu_ms=10, used=0.25, threads=1, queued_ms=(90, 30), others=1.7),
    ),
    RuleCase(
        "PD101",
        "short-sleep-on-a-busy-machine",
        lambda: training(0.2, 120),
        facts=measured(0.2, 120, load_ms=0.2, load_cpu_ms=0.1, used=0.1, threads=1, queued_ms=(40, 0.1), others=1.7),
    ),
    RuleCase(  # loading sleeps for most of its time whoever has the cores: workers hide that
        "PD101",
        "sleeping-loader-on-a-busy-machine",
        lambda: training(60, 120),
        (ExpectedFinding("medium", 40 * MS, location="train.py:12", fix="num_workers="),),
        facts=measured(60, 120, load_ms=60, load_cpu_ms=2, used=0.1, threads=1, queued_ms=(40, 8), others=1.7),
    ),
    RuleCase(  # both cores are taken by the training, whose large ops gain from two threads: a cheaper batch, PD111
        "PD101",
        "computing-loader-beside-two-threads",
        lambda: training(10, 30),
        facts=measured(10, 30, load_ms=10, load_cpu_ms=10, used=1.67, threads=2),
    ),
    RuleCase(  # ops of 10 us are not divided: one thread does as much, and the worker has the other core
        "PD101",
        "computing-loader-beside-threads-of-small-ops",
        lambda: training(10, 30, op_us=10),
        (
            ExpectedFinding(
                "medium",
                10 * MS,
                location="train.py:12",
                title="with one worker beside one thread about",
                fix="torch.set_num_threads(1)",
            ),
        ),
        facts=measured(10, 30, load_ms=10, load_cpu_ms=10, used=1.67, threads=2),
    ),
    RuleCase(  # one worker that sleeps for 40 ms does not keep up with 10 ms of training
        "PD101",
        "a-sleeping-worker-too-few",
        lambda: training(30, 40, WORKERS),
        (
            ExpectedFinding(
                "medium",
                30 * MS,
                location="train.py:12",
                title="has one worker that does not keep up",
                fix="num_workers=4",
            ),
        ),
        facts=measured(30, 40, load_ms=40, load_cpu_ms=1, workers=1, used=0.3),
    ),
    RuleCase(
        "PD101",
        "workers-that-only-hand-over",
        lambda: training(3, 40, WORKERS),
        facts=measured(3, 40, load_ms=40, load_cpu_ms=1, workers=2, used=1.0),
    ),
    RuleCase(
        "PD101",
        "handing-over-costs-as-much",
        lambda: training(1, 30),
        facts=measured(1, 30, load_ms=1, load_cpu_ms=1, used=1.0),
    ),
    RuleCase(
        "PD101",
        "no-core-is-left-and-little-to-gain",
        lambda: training(2, 30),
        facts=measured(2, 30, load_ms=2, load_cpu_ms=2, used=2.0, threads=2),
    ),
    RuleCase(
        "PD101",
        "many-workers-that-keep-up",
        lambda: training(2, 40, WORKERS),
        facts=measured(2, 40, load_ms=100, load_cpu_ms=50, workers=4, used=1.0, cores=8.0),
    ),
    RuleCase(
        "PD101",
        "a-computing-worker-that-keeps-up",
        lambda: training(3, 30, WORKERS),
        facts=measured(3, 30, load_ms=25, load_cpu_ms=25, workers=1, used=1.0),
    ),
]

_SHARING = measured(3, 30, load_ms=20, load_cpu_ms=12, workers=1, used=1.6, threads=2)
PD114 = [
    RuleCase(
        "PD114",
        "one-worker-and-two-threads-on-two-cores",
        lambda: training(3, 30, WORKERS),
        (
            ExpectedFinding(
                "medium",
                3 * MS,
                (0, 3 * MS, 3 * MS),
                location="train.py:12",
                title="one worker and 2 threads of the program share 2 cores",
                fix="num_workers=0",
                evidence={"threads together": 3, "used at": "train.py:20"},
            ),
        ),
        facts=_SHARING,
    ),
    RuleCase(
        "PD114",
        "two-workers",
        lambda: training(3, 30, WORKERS),
        (ExpectedFinding("medium", 3 * MS, title="2 workers", fix="num_workers=0", location="train.py:12"),),
        facts=measured(3, 30, load_ms=20, load_cpu_ms=12, workers=2, used=1.6, threads=2),
    ),
    RuleCase(
        "PD114",
        "small-ops",
        lambda: training(3, 30, WORKERS, op_us=10),
        (ExpectedFinding("medium", 30 * MS, fix="torch.set_num_threads(1)", location="train.py:12"),),
        facts=_SHARING,
    ),
    RuleCase(
        "PD114",
        "a-quota-of-two-cores",
        lambda: training(3, 30, WORKERS),
        (ExpectedFinding("medium", 3 * MS, location="train.py:12", evidence={"CPU cores": 2.0}),),
        facts={**_SHARING, "cpu": {"affinity": 64, "torch_threads": 2}},
    ),
    RuleCase(
        "PD114",
        "three-threads",
        lambda: training(3, 30, WORKERS),
        (ExpectedFinding("medium", 3 * MS, location="train.py:12"),),
        facts=measured(3, 30, load_ms=20, load_cpu_ms=12, workers=1, used=1.9, threads=3),
    ),
    RuleCase(
        "PD114",
        "four-workers",
        lambda: training(2, 30, WORKERS),
        (ExpectedFinding("medium", 2 * MS, title="4 workers", location="train.py:12"),),
        facts=measured(2, 30, load_ms=40, load_cpu_ms=25, workers=4, used=1.2, threads=2),
    ),
    RuleCase(
        "PD114",
        "cores-enough",
        lambda: training(3, 30, WORKERS),
        facts={
            **_SHARING,
            "cores": {"available": 8.0, "training": 1.6, "workers": 0.4, "others": 0.0, "local_ranks": None},
        },
    ),
    RuleCase(
        "PD114",
        "workers-that-sleep",
        lambda: training(3, 30, WORKERS),
        facts=measured(3, 30, load_ms=20, load_cpu_ms=2, workers=1, used=1.9, threads=2),
    ),
    RuleCase(
        "PD114",
        "one-thread-beside-a-worker",
        lambda: training(3, 30, WORKERS),
        facts=measured(3, 30, load_ms=20, load_cpu_ms=18, workers=2, used=1.0, threads=1),
    ),
    RuleCase(
        "PD114",
        "handing-over-costs-little",
        lambda: training(0.5, 30, WORKERS),
        facts=measured(0.5, 30, load_ms=20, load_cpu_ms=12, workers=1, used=1.6, threads=2),
    ),
    RuleCase("PD114", "no-facts", lambda: training(3, 30, WORKERS)),
    RuleCase("PD114", "healthy", build_healthy_trace, facts=_SHARING),
]

_ONE = measured(0, 30, load_ms=0, load_cpu_ms=0, used=1.0, threads=1)
PD115 = [
    RuleCase(  # two threads make 30 ms of products 17.2
        "PD115",
        "one-of-two-cores",
        lambda: training(0, 30),
        (
            ExpectedFinding(
                "low",
                30 * MS,
                (0, 12_769_525, 15 * MS),
                title="One thread computes, and one core of 2 idles",
                fix="torch.set_num_threads(2)",
                evidence={"largest of them": "aten::addmm", "threads of PyTorch": 1},
            ),
        ),
        facts=_ONE,
    ),
    RuleCase(
        "PD115",
        "half-of-an-op-is-divided",
        lambda: training(0, 30, op="_embedding_bag_dense_backward"),
        (ExpectedFinding("low", 15 * MS, (0, 6_384_762, 7_500_000)),),
        facts=_ONE,
    ),
    RuleCase("PD115", "norms-are-not-divided", lambda: training(0, 30, op="linalg_vector_norm"), facts=_ONE),
    RuleCase(
        "PD115",
        "a-line-that-sets-one-thread",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, location="train.py:12", advice="remove it", title="train.py:12"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, threads_set=MADE),
    ),
    RuleCase(
        "PD115",
        "a-variable-that-sets-one-thread",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, fix="OMP_NUM_THREADS=2", advice="environment variable"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, omp="1"),
    ),
    RuleCase(
        "PD115",
        "one-of-eight-cores",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, fix="torch.set_num_threads(8)", title="7 cores of 8 idle"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, cores=8.0),
    ),
    RuleCase(
        "PD115",
        "beside-a-loader",
        lambda: training(6, 30),
        (ExpectedFinding("low", 24 * MS),),
        facts=measured(6, 30, load_ms=6, load_cpu_ms=6),
    ),
    RuleCase(
        "PD115",
        "one-of-three-cores",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, fix="torch.set_num_threads(3)", title="2 cores of 3 idle"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, cores=3.0),
    ),
    RuleCase(
        "PD115",
        "a-worker-that-sleeps",
        lambda: training(3, 30, WORKERS),
        (ExpectedFinding("low", 27 * MS, title="One thread computes"),),
        facts=measured(3, 30, load_ms=25, load_cpu_ms=1, workers=1),
    ),
    RuleCase(
        "PD115",
        "others-use-a-core-of-four",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, fix="torch.set_num_threads(3)"),),
        facts={**_ONE, "cores": {"available": 4.0, "training": 1.0, "workers": 0.0, "others": 1.0}},
    ),
    RuleCase(
        "PD115",
        "two-ranks-on-four-cores",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, fix="torch.set_num_threads(2)"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, cores=4.0, world_size=2),
    ),
    RuleCase(  # a quota of 1.7 cores: a second thread has most of a core
        "PD115",
        "a-quota-above-one-core",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, fix="torch.set_num_threads(2)", title="0.7 cores of 1.7 idle"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, cores=1.7),
    ),
    RuleCase(
        "PD115",
        "others-that-take-little",
        lambda: training(0, 30),
        (ExpectedFinding("low", 30 * MS, fix="OMP_NUM_THREADS=2"),),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, used=1.0, threads=1, omp="1", queued_ms=(0.3, 0), others=0.05),
    ),
    RuleCase(  # who asks for a core seldom gets one: a second thread would wait for the first
        "PD115",
        "busy-machine",
        lambda: training(0, 30),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, used=0.5, threads=1, omp="1", queued_ms=(15, 0), others=0.6),
    ),
    RuleCase(  # PD512 says that it stands still for 15 % of the time
        "PD115",
        "a-quota-that-stops-it",
        lambda: training(0, 30),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, queued_ms=(4.5, 0), throttled=0.3, queued=0.3),
    ),
    RuleCase("PD115", "two-threads", lambda: training(0, 30), facts={**_ONE, "cpu": {"torch_threads": 2}}),
    RuleCase("PD115", "tiny-ops", lambda: training(0, 30, op_us=10), facts=_ONE),
    RuleCase("PD115", "ops-that-are-not-divided", lambda: training(0, 30, op="sort"), facts=_ONE),
    RuleCase(
        "PD115",
        "two-ranks-on-two-cores",
        lambda: training(0, 30),
        facts=measured(0, 30, load_ms=0, load_cpu_ms=0, world_size=2),
    ),
    RuleCase(
        "PD115",
        "a-worker-uses-the-other-core",
        lambda: training(3, 30, WORKERS),
        facts=measured(3, 30, load_ms=25, load_cpu_ms=25, workers=1),
    ),
    RuleCase(
        "PD115",
        "others-use-the-core",
        lambda: training(0, 30),
        facts={
            **_ONE,
            "cores": {"available": 2.0, "training": 1.0, "workers": 0.0, "others": 0.9, "local_ranks": None},
        },
    ),
    RuleCase(  # a window too short to see them: the thread ran for half of its steps
        "PD115",
        "others-that-nobody-counted",
        lambda: training(0, 30),
        facts={**_ONE, "cores": {**_ONE["cores"], "others": None}, "base_cpu_ns": [15 * MS] * 3},
    ),
    RuleCase("PD115", "one-core", lambda: training(0, 30), facts=measured(0, 30, load_ms=0, load_cpu_ms=0, cores=1.0)),
    RuleCase("PD115", "no-facts", lambda: training(0, 30)),
    RuleCase("PD115", "healthy", build_healthy_trace, facts=_ONE),
]
