"""PD710 on snapshots of requests that the allocator's model has refused, and on traces, which say only that it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from all_cases import cases_of
from hypothesis import given
from hypothesis import strategies as st
from recorded_allocator import Request, SnapshotBuilder, Step

import perfdoctor
from perfdoctor import pipeline
from perfdoctor.analyzers.pd710_out_of_memory import OutOfMemory
from perfdoctor.memory.allocator_replay import AllocatorReplay
from perfdoctor.memory.caching_allocator import MIB
from perfdoctor.rank import Rank
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder, check_rule, findings_of_rule
from perfdoctor.trace.tables.model import AllocatorSettings

EXPANDABLE = AllocatorSettings(expandable_segments=True)
# What a forward pass keeps, of 40 and 60 MiB, and the request for as much that has no room.
FORWARD: list[Step] = [
    Request(40 * MIB, line=3, phase="forward"),
    Request(60 * MIB, line=4, phase="forward"),
    Request(60 * MIB, line=5, phase="forward"),
]
# Every second of ten blocks in a segment of 200 MiB stays; then 60 MiB are asked for.
IN_PIECES: list[Step] = [Request(200 * MIB), 0, *[Request(20 * MIB)] * 10, *range(5), Request(60 * MIB, line=8)]
# Parameters, gradients, states, and a copy that is there when another one has no room.
IN_OPTIMIZER: list[Step] = [
    Request(40 * MIB, line=2),
    Request(20 * MIB, line=5, phase="backward"),
    Request(40 * MIB, line=6, phase="optimizer"),
    Request(40 * MIB, line=7, phase="optimizer"),
    Request(60 * MIB, line=7, phase="optimizer"),
    3,
]


def trace(failed_mb: int = 500, capacity_mb: int = 1100) -> TraceBuilder:
    """A GPU with 700 MB allocated, and what was asked for then."""
    b = TraceBuilder(memory_bytes=capacity_mb * 1_000_000).step(0, 9).op("aten::mm", 0, 9)
    b.memory(1, 700_000_000, 64, device=0)
    if failed_mb:
        event = next(each for each in b.to_dict()["traceEvents"] if each["name"] == "[memory]")
        b.event(**event | {"name": "[OutOfMemory]", "ts": 2, "args": event["args"] | {"Bytes": failed_mb * 1_000_000}})
    return b.memory(5, -700_000_000, 64, device=0)


def ran_out(error: str = "RuntimeError", **known: object) -> dict[str, object]:
    """Facts of a program that ran out of memory at train.py:9."""
    line = {"file": "train.py", "line": 9, "function": "<module>"}
    return {"memory": {"out_of_memory": {"error": error, "times": 1, "location": line, **known}}}


CASES = list(cases_of(sys.modules[__name__]))


def test_the_rule_holds_its_contract_and_its_cases() -> None:
    check_rule(OutOfMemory, CASES)


def test_it_stands_first() -> None:
    rank = Rank(SnapshotBuilder(IN_PIECES, capacity_bytes=210 * MIB).trace())
    report = pipeline.diagnose_run(Run((rank,)), registry.load_analyzers())
    assert report.findings[0].rule == "PD710"
    of_trace = pipeline.diagnose_run(Run((Rank(trace().trace()),)), registry.load_analyzers())
    assert of_trace.findings[0].rule == "PD710"


SIZES = st.sampled_from([500, 200_000, 2 * MIB, 8 * MIB, 12 * MIB, 24 * MIB, 70 * MIB])
STEPS = st.lists(
    st.one_of(st.tuples(SIZES, st.just(0), st.integers(0, 1)), st.integers(0, 20)), min_size=4, max_size=40
)


@given(STEPS, st.booleans(), st.integers(60, 240))
def test_what_was_refused_is_refused_in_the_replay(steps: list[Step], expandable: bool, capacity_mib: int) -> None:
    settings = EXPANDABLE if expandable else AllocatorSettings()
    rank = Rank(SnapshotBuilder([Request(500), *steps], settings=settings, capacity_bytes=capacity_mib * MIB).trace())
    memory = next((each for each in rank.memory if each.failed_request is not None), None)
    if memory is None:
        return
    allocator = AllocatorReplay(memory)
    if allocator.distrust is not None:
        return
    assert allocator.capacity_bytes == capacity_mib * MIB
    assert allocator.plain.served is False
    # With room for the whole request it is served.
    asked = int(memory.trace.memory.requested_bytes.max())
    assert allocator.replay(capacity_bytes=capacity_mib * MIB + asked + 40 * MIB).served is True
    [finding] = findings_of_rule(OutOfMemory, Run((rank,)))
    assert finding.location is None
    assert finding.severity == "high"


@pytest.mark.corpus
def test_the_real_one(shared: Path) -> None:
    [first, *_] = perfdoctor.analyze(shared / "memory/oom-expandable-multigpu-codelocation.pickle").findings
    assert first.rule == "PD710"
    assert str(first.location).endswith("models.py:181")
    found = {each.label: each.value for each in first.evidence}
    # As the raw file has them; expandable_segments is on already, and with 139 MB of slack no setting helps.
    assert (found["asked for"], found["free on the device"]) == (5_308_694_528, 95_682_560)
    assert "split the work evenly over the 3 GPUs" in first.advice
