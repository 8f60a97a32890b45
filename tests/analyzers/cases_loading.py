"""More cases of PD101: what the waits for batches are spent on, and workers that start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rule_cases import LOADER, TENSOR_GEMM, WORKERS

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

STEP_US = 100_000
DATALOADER = "/x/site-packages/torch/utils/data/dataloader.py"
COLLATE = "/x/site-packages/torch/utils/data/_utils/collate.py"


def program(name: str, *waits_ms: float) -> TraceBuilder:
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
    trace = program(name, 1, 1, 1, first_ms, 1, 1)
    return trace.op("aten::random_", 3 * STEP_US - 2, 1) if seeded else trace


def epochs_in_frames() -> TraceBuilder:
    trace = epochs(seeded=False)
    trace.frame(f"{DATALOADER}(484): __iter__", 3 * STEP_US - 2, 1)
    return trace


def collating(op: str = "aten::stack") -> TraceBuilder:
    """20 ms of each wait of 40 ms."""
    trace = program(LOADER, 40, 40)
    for at in (0, STEP_US):
        trace.op(op, at + 15_000, 20_000)
    return trace


def collating_in_frames() -> TraceBuilder:
    trace = program(LOADER, 40, 40)
    for at in (0, STEP_US):
        trace.frame(f"{COLLATE}(120): default_collate", at + 15_000, 20_000)
    return trace


def copying() -> TraceBuilder:
    """A data set that gives tensors on the GPU: 10 ms of copies in each wait of 40 ms."""
    trace = program(LOADER, 40, 40)
    for at in (0, STEP_US):
        trace.call("cudaMemcpyAsync", at + 20_000, 10_000)
    return trace


def in_frames_only(wait_ms: float) -> TraceBuilder:
    trace = program("some_range", wait_ms, wait_ms)
    for at in (0, STEP_US):
        trace.frame(f"{DATALOADER}(701): __next__", at, 1000 * wait_ms)
    return trace


def of_loader(**facts: Any) -> Mapping[str, Any]:
    return {"loaders": [{"num_workers": 4, "wait_ns": 1, **facts}]}


START = (
    ExpectedFinding(
        "high", 10_000_000, (0, None, 10_000_000), title="starts its workers", fix="persistent_workers=True"
    ),
)

PD101: list[RuleCase] = [
    RuleCase("PD101", "workers-start", epochs, START),
    RuleCase("PD101", "workers-start-in-frames", epochs_in_frames, START),
    RuleCase(
        "PD101", "workers-start-each-epoch", epochs, START, facts=of_loader(persistent_workers=False, iterations=2)
    ),
    RuleCase(
        "PD101",
        "collating",
        collating,
        (
            ExpectedFinding(
                "high",
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
        collating_in_frames,
        (ExpectedFinding("high", 40_000_000, advice="is collating"),),
    ),
    RuleCase(
        "PD101",
        "copying",
        copying,
        (ExpectedFinding("high", 40_000_000, advice="10 ms of the wait is copying or pinning"),),
    ),
    RuleCase(
        "PD101",
        "frames-only",
        lambda: in_frames_only(30),
        (ExpectedFinding("high", 30_000_000, (0, None, 30_000_000)),),
    ),
    RuleCase("PD101", "workers-are-kept", epochs, facts=of_loader(persistent_workers=True, iterations=2)),
    RuleCase("PD101", "one-epoch", epochs, facts=of_loader(persistent_workers=False, iterations=1)),
    RuleCase("PD101", "a-first-batch-that-is-little-late", lambda: epochs(first_ms=4)),
    RuleCase("PD101", "workers-that-start-quickly", lambda: epochs(first_ms=4.9)),
    RuleCase("PD101", "collating-quickly", lambda: program(LOADER, 2, 2).op("aten::stack", 100, 1800)),
    RuleCase("PD101", "frames-only-that-are-short", lambda: in_frames_only(1)),
    RuleCase("PD101", "copies-outside-the-loader", lambda: program(LOADER, 1, 1).op("aten::_to_copy", 2000, 9000)),
]
