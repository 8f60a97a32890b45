"""Ranks on the CPU: late by more work, or for want of a core (PD401), and what cannot be hidden (PD402, PD003)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perfdoctor import pipeline
from perfdoctor.analyzers._cpu_cores_of_ranks import has_spare_core
from perfdoctor.analyzers.pd003_unstable_steps import UnstableSteps
from perfdoctor.analyzers.pd401_straggler import Straggler
from perfdoctor.analyzers.pd402_exposed_communication import ExposedCommunication
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.rank_summary import Fleet
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder

STEPS = 12
BUSY = {"available": 2.0, "training": 0.9, "workers": 0.0, "others": 0.9, "local_ranks": 2}
IDLE = {"available": 8.0, "training": 0.9, "workers": 0.0, "others": 0.9, "local_ranks": 2}
DDP = {"ddp": {"bucket_bytes_cap": 25 << 20}}


def trace_of(rank: int, late_us: Sequence[float], longest_us: Sequence[float]) -> TraceBuilder:
    """A rank that computes for 400 us and `late_us` in each step, then reduces until 100 us after the last rank."""
    trace = TraceBuilder(device=None, rank=rank, world_size=2)
    for number, (late, longest) in enumerate(zip(late_us, longest_us, strict=True)):
        at = 1000 * number
        trace.step(at, 1000).op("aten::mm", at, 400 + late)
        trace.range("gloo:all_reduce", at + 400 + late, longest - late + 100, thread=2)
    return trace


def facts_of(cpu_us: Sequence[float], cores: dict[str, Any] | None, **others: Any) -> dict[str, Any]:
    """A capture of unprofiled steps with the CPU time of the training thread in each."""
    cpu_ns = [round(1000 * each) for each in cpu_us]
    return {"base_step_ns": [1_000_000] * len(cpu_ns), "base_cpu_ns": cpu_ns, "cores": cores or {}, **others}


def fleet_of(late_us: Sequence[Sequence[float]], facts: Sequence[dict[str, Any]]) -> Fleet:
    """Both ranks; `late_us` by rank and step."""
    longest = [max(each) for each in zip(*late_us, strict=True)]
    ranks = [
        Rank(trace_of(i, late, longest).trace(), facts=CapturedFacts.parse(facts[i])) for i, late in enumerate(late_us)
    ]
    return Fleet(tuple(pipeline.summarize_rank(rank, [Straggler, ExposedCommunication]) for rank in ranks))


def straggler_of(late_us: Sequence[Sequence[float]], facts: Sequence[dict[str, Any]]) -> Finding:
    (finding,) = Straggler().analyze_fleet(fleet_of(late_us, facts))
    return finding


RANK_1_LATE = ([0.0] * STEPS, [200.0] * STEPS)
IN_TURNS = ([0.0, 200.0] * (STEPS // 2), [200.0, 0.0] * (STEPS // 2))
EQUAL = [[400.0] * STEPS, [410.0] * STEPS]
# Two steps in which other programs made the caches cold.
DISTURBED = [[400.0] * STEPS, [400.0] * (STEPS - 2) + [900.0] * 2]
MORE = [[400.0] * STEPS, [600.0] * STEPS]


@pytest.mark.parametrize("cpu_us", [EQUAL, DISTURBED])
def test_a_late_rank_that_computes_no_more_lacks_a_core(cpu_us: list[list[float]]) -> None:
    finding = straggler_of(RANK_1_LATE, [facts_of(each, BUSY) for each in cpu_us])
    assert finding.severity == "info"
    assert "it waits for a core" in finding.title
    assert finding.title.startswith("Rank 1 is 200 us late")
    assert finding.saving.high_ns is None
    assert finding.cost_ns == 200_000


@pytest.mark.parametrize(
    ("cpu_us", "cores"),
    [
        pytest.param(MORE, BUSY, id="more work"),
        pytest.param(EQUAL, IDLE, id="cores idle"),
        pytest.param(EQUAL, None, id="cores unknown"),
        pytest.param([], BUSY, id="CPU time unknown"),
    ],
)
def test_a_late_rank_is_a_straggler_otherwise(cpu_us: list[list[float]], cores: dict[str, Any] | None) -> None:
    facts = [facts_of(each, cores) for each in cpu_us] or [{"cores": cores}] * 2
    finding = straggler_of(RANK_1_LATE, facts)
    assert finding.severity == "high"
    assert finding.saving.expected_ns == 200_000


def test_ranks_in_turns_are_noise_only_with_equal_work() -> None:
    equal = straggler_of(IN_TURNS, [facts_of(each, BUSY) for each in EQUAL])
    varied = [[400.0, 600.0] * (STEPS // 2), [600.0, 400.0] * (STEPS // 2)]
    unequal = straggler_of(IN_TURNS, [facts_of(each, BUSY) for each in varied])
    assert [equal.severity, unequal.severity] == ["info", "high"]
    assert equal.title == unequal.title


def exposed_of(parameters: int | None, cores: dict[str, Any], **model: Any) -> Finding:
    facts = {"cpu": {"torch_threads": 1}, "cores": cores, "models": [{"parameters": parameters, **model}]}
    fleet = fleet_of(([0.0] * STEPS, [0.0] * STEPS), [facts, facts])
    first, second = ExposedCommunication().analyze_fleet(fleet)
    assert first.title == second.title
    return first


def test_what_cannot_be_hidden_is_no_fault() -> None:
    small, full = exposed_of(20_000, IDLE, **DDP), exposed_of(10_000_000, BUSY, **DDP)
    assert [small.severity, full.severity] == ["info", "info"]
    assert [small.saving.high_ns, full.saving.high_ns] == [None, None]
    assert "is sent at once, when all of it is there" in small.advice
    assert "gloo reduces on the same ones" in full.advice


def test_what_can_be_hidden_is_a_fault() -> None:
    spare, unknown, by_hand = (
        exposed_of(10_000_000, IDLE, **DDP),
        exposed_of(None, {}, **DDP),
        exposed_of(20_000, BUSY),
    )
    assert {each.severity for each in (spare, unknown, by_hand)} == {"high"}
    assert {each.saving.high_ns for each in (spare, unknown, by_hand)} == {100_000}


def test_spare_cores_are_counted_for_all_ranks_of_the_machine() -> None:
    def ask(available: float | None, threads: int, ranks: int | None) -> bool | None:
        cores = {"available": available, "local_ranks": ranks}
        facts = {"cpu": {"torch_threads": threads}, "cores": cores, "world_size": 4}
        return has_spare_core(fleet_of(([0.0], [0.0]), [facts, facts]).summaries[0])

    assert ask(3.0, 1, 2) is True
    assert ask(2.0, 1, 2) is False
    assert ask(4.0, 1, None) is False
    assert ask(5.0, 1, None) is True
    assert ask(None, 1, 2) is None


def spread_of(longer_part: str) -> Finding:
    """Every other step is longer: by its collective, or by an op that it calls once more."""
    trace, at = TraceBuilder(device=None), 0.0
    for number in range(STEPS):
        extra = 300 if number % 2 else 0
        trace.step(at, 1000 + extra).op("aten::mm", at, 500)
        trace.range("gloo:all_reduce", at + 500, 500 + (extra if longer_part == "collective" else 0), thread=2)
        if extra and longer_part == "op":
            trace.op("aten::mm", at + 1000, extra)
        at += 1000 + extra
    run = Run((Rank(trace.trace()),))
    return next(each for each in UnstableSteps().analyze(run) if each.subject == "spread")


def test_steps_that_wait_for_other_ranks_are_low_at_most() -> None:
    assert spread_of("collective").severity == "low"
    assert spread_of("op").severity != "low"
