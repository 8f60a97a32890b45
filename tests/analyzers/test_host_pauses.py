"""Garbage, checkpoints and logs: reported once, by the rule that owns them; and which ranks save the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases_pauses import (
    LINE,
    MS,
    calls_of,
    captured,
    collected,
    collecting_on_gpu,
    evaluating,
    saves_of_ranks,
    training,
)
from rule_cases import TENSOR_GEMM

from perfdoctor import pipeline
from perfdoctor.analysis.captured_facts import RunSteps
from perfdoctor.analyzers._host_pauses import claim_of
from perfdoctor.analyzers._own_steps import OwnSteps, leave_out_host_calls
from perfdoctor.analyzers.pd003_unstable_steps import UnstableSteps
from perfdoctor.analyzers.pd103_gpu_idle import GpuIdle
from perfdoctor.analyzers.pd104_launch_bound import LaunchBound
from perfdoctor.analyzers.pd110_python_gc import PythonGc
from perfdoctor.analyzers.pd113_logging_and_checkpoints import LoggingAndCheckpoints
from perfdoctor.analyzers.pd515_every_rank_writes import EveryRankWrites
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv


def findings_of(facts_of_ranks: list[Any], *rules: Any) -> tuple[Finding, ...]:
    """The findings on ranks with these facts, and otherwise alike."""
    ranks = [
        Rank(training(rank=number).trace(), facts=CapturedFacts.parse(facts))
        for number, facts in enumerate(facts_of_ranks)
    ]
    return pipeline.diagnose_run(Run(tuple(ranks)), list(rules)).findings


def test_ranks_that_save_other_data_save_shards() -> None:
    facts = [saves_of_ranks(6, 4, wait_ms=6, checksum=f"4096-{rank}") for rank in range(2)]
    assert findings_of(facts, EveryRankWrites) == ()


def test_ranks_that_save_at_another_line_save_something_else() -> None:
    facts = [saves_of_ranks(6, 4, wait_ms=6, location={**LINE, "line": line}) for line in (30, 40)]
    assert findings_of(facts, EveryRankWrites) == ()


def test_a_rank_without_saves_is_no_other_one() -> None:
    assert findings_of([saves_of_ranks(6, 4, wait_ms=6), captured(world_size=2)], EveryRankWrites) == ()


def test_one_rank_of_each_machine_may_save() -> None:
    facts = [{**saves_of_ranks(6, 4, wait_ms=6), "cores": {"local_ranks": count}} for count in (1, 1)]
    assert findings_of(facts, EveryRankWrites) == ()
    facts = [{**each, "cores": {"local_ranks": 2}} for each in facts]
    assert len(findings_of(facts, EveryRankWrites)) == 1


def test_where_every_rank_saves_the_checkpoint_of_rank_0_is_told_with_that() -> None:
    found = findings_of([saves_of_ranks(6, 4, wait_ms=6)] * 2, EveryRankWrites, LoggingAndCheckpoints)
    assert [each.rule for each in found] == ["PD515", "PD113"]
    assert found[1].covered_by == 0
    assert found[1].rank == 0


def test_the_checkpoint_of_one_rank_is_told_by_itself() -> None:
    facts = [captured(calls_of("torch.save", 6, 4), world_size=2), captured(world_size=2)]
    (found,) = findings_of(facts, EveryRankWrites, LoggingAndCheckpoints)
    assert (found.rule, found.rank, found.covered_by) == ("PD113", 0, None)


def test_sites_of_a_call_add_up_and_the_longest_is_named() -> None:
    short = calls_of("torch.save", 1, 10, location={**LINE, "line": 99})
    (found,) = findings_of([captured(calls_of("torch.save", 3, 10), short)], LoggingAndCheckpoints)
    assert str(found.location) == "train.py:30"
    assert found.cost_ns == round(10 * MS * 40 / 240)
    assert {each.label: each.value for each in found.evidence}["other lines that call it"] == 1


@pytest.mark.parametrize("facts", [{}, {"host_calls": 1}, {"host_calls": [{"call": "torch.save", "ns": "x"}]}])
def test_facts_of_any_kind_are_no_calls(facts: Any) -> None:
    assert findings_of([facts], EveryRankWrites, LoggingAndCheckpoints) == ()


def run_of(dur_ms: list[float], calls_ms: list[float], contains: str = "save") -> RunSteps:
    count = len(dur_ms)
    return RunSteps(
        dur_ns=(np.array(dur_ms) * MS).astype(np.int64),
        gc_ns=np.zeros(count, np.int64),
        host_call_ns=(np.array(calls_ms) * MS).astype(np.int64),
        number=np.arange(count),
        loader_wait_ns=np.zeros(count, np.int64),
        is_after=np.ones(count, bool),
        contains=tuple(frozenset({contains} if ms else ()) for ms in calls_ms),
    )


def test_steps_without_their_calls_are_no_shorter_than_the_others() -> None:
    run = run_of([10, 10, 30, 12, 10], [0, 0, 15, 5, 0])
    assert (leave_out_host_calls(run.dur_ns, run) / MS).tolist() == [10, 10, 15, 10, 10]
    assert (leave_out_host_calls(run.dur_ns, run, is_alone=False) / MS).tolist() == [10, 10, 10, 10, 10]
    assert (OwnSteps(run).own_ns / MS).tolist() == [10, 10, 15, 10, 10]


def test_steps_that_save_are_not_unstable_as_well() -> None:
    """24 steps of which each sixth saves, as a capture before these calls were timed, and as one that times them."""
    dur_ms, calls_ms = [10, 10, 10, 10, 10, 40] * 4, [0, 0, 0, 0, 0, 30] * 4
    run = run_of(dur_ms, calls_ms)
    earlier = RunSteps(
        dur_ns=run.dur_ns,
        number=run.number,
        loader_wait_ns=run.loader_wait_ns,
        is_after=run.is_after,
        contains=run.contains,
    )
    trace = training().trace()
    (found,) = UnstableSteps().analyze(Run((Rank(trace, run_steps=earlier),)))
    assert "they save a checkpoint" in found.title
    assert list(UnstableSteps().analyze(Run((Rank(trace, run_steps=run),)))) == []


@pytest.mark.parametrize(("switched", "found"), [([1, 1, 1, 1], 1), ([1, 0, 1, 0], 0)])
def test_a_model_that_each_step_puts_to_evaluation_evaluates_in_any_function(switched: list[float], found: int) -> None:
    trace = evaluating(function="score").trace()
    rank = Rank(trace, run_steps=run_of([1] * 4, switched, contains="evaluation"))
    assert len(list(LoggingAndCheckpoints().analyze(Run((rank,))))) == found


def python_time(*frames: tuple[str, float, float]) -> list[Finding]:
    """What PD104 says of a step of 1 ms without ops from 100 to 500 us at line 9, and to 700 us at line 8."""
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::mm", 0, 100).op("aten::mm", 700, 290)
    trace.range("@train.py:9 sample", 100, 400).range("@train.py:8 write", 500, 200)
    for name, start, dur in frames:
        trace.frame(name, start, dur)
    rank = Rank(trace.trace(), facts=CapturedFacts.parse({"base_step_ns": [1_000_000] * 4}))
    return [each for each in LaunchBound().analyze(Run((rank,))) if each.rule == "PD104"]


@pytest.mark.parametrize(
    "frame", ["<built-in function collect>", "<built-in function fsync>", "/x/torch/serialization.py(944): save"]
)
def test_time_without_ops_is_told_without_the_calls_of_other_rules(frame: str) -> None:
    (found,) = python_time((frame, 500, 200))
    assert found.cost_ns == 400_000
    assert "Python, most at train.py:9" in found.title
    assert python_time((frame, 100, 590)) == []


@pytest.mark.parametrize(
    "frame", ["<built-in method collect of Spark object at 0x7f>", "my/serialization.py(944): save", "mycopy.py(1): f"]
)
def test_another_call_is_python(frame: str) -> None:
    (found,) = python_time((frame, 500, 200))
    assert found.cost_ns == 600_000


def test_python_in_a_comprehension_below_a_marked_line_is_at_its_own_line() -> None:
    """Line 9 calls a module whose comprehension has no mark; functions are named beside the line that calls them."""
    frames = (("train.py(1): main", 0, 1000), ("train.py(5): sample", 50, 600))
    (called,) = python_time(*frames, ("net.py(31): <listcomp>", 110, 385))
    (plain,) = python_time(*frames)
    assert ("most at net.py:31" in called.title, "most at train.py:9" in plain.title) == (True, True)


def test_a_pause_of_the_gpu_is_told_once() -> None:
    """GPU and CPU pause for 3 of 10 ms, in 2 of which garbage is collected; without a capture that is PD103's."""
    trace = collecting_on_gpu(4000)
    for number in range(4):
        trace.kernel(TENSOR_GEMM, 10_000 * number + 7010, 2900, launch_us=10_000 * number + 7005)
    for facts, rule in ((collected(2, 20), "PD110"), (None, "PD103")):
        found = pipeline.diagnose_run(
            Run((Rank(trace.trace(), facts=CapturedFacts.parse(facts)),)), [PythonGc, GpuIdle]
        ).findings
        assert [each.rule for each in found] == [rule]
    assert "collects garbage" in found[0].title


def test_what_another_window_shows_alone_explains_time_for_which_nothing_else_is_known() -> None:
    trace = TraceBuilder(device=None)
    for at in (0, 1000):
        trace.step(at, 1000).op("aten::addmm", at + 600, 400)
    rank = Rank(trace.trace())
    claim = claim_of(rank, ("print",), 300_000)
    assert claim.total_ns == 600_000
    assert iv.total(iv.intersect(claim.intervals, rank.account.parts["idle_unexplained"])) == 600_000
