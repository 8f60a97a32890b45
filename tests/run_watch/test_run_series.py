"""The whole run as a line: levels, where it gets slower, and what is marked on the chart."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from perfdoctor import pipeline
from perfdoctor.analysis.captured_facts import RunSteps, parse_run_steps
from perfdoctor.analysis.timeline.recurrence import Recurrence
from perfdoctor.charts.step_series import step_series_of
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.to_plain import to_plain
from perfdoctor.reporters.run_line import describe_run
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.run_watch.run_drift import find_run_drift
from perfdoctor.run_watch.run_series import MAX_LEVELS, MIN_STEPS, RunSeries, marks_of_run, run_series_of
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.testing import TraceBuilder

MS = 1_000_000


def run_of(step_ms: list[float], contains: dict[int, list[str]] | None = None) -> RunSteps:
    rows = [
        {"step": number, "dur_ns": round(ms * MS), "window": "after", "loader_wait_ns": 0}
        | ({"contains": contains[number]} if contains and number in contains else {})
        for number, ms in enumerate(step_ms)
    ]
    steps = parse_run_steps("\n".join(map(json.dumps, rows)).encode())
    assert steps is not None
    return steps


def facts_of(first: int) -> CapturedFacts:
    window = {"steps": 8, "complete": True, "file": None, "first_step": first}
    return CapturedFacts.parse({"windows": {"timing": window}})


def test_few_steps_are_no_run() -> None:
    assert run_series_of(None, None) is None
    assert run_series_of(run_of([1.0] * (MIN_STEPS - 1)), None) is None


def test_a_run_has_levels_and_says_where_it_gets_slower() -> None:
    steps = run_of([2.0] * 200 + [6.0] * 200)
    series = run_series_of(steps, find_run_drift(steps))
    assert series is not None
    assert (series.steps, series.slower_from) == (400, 200)
    assert series.levels_ns == (2 * MS,) * 10 + (6 * MS,) * 10


@pytest.mark.parametrize(("unicode", "bars"), [(True, "▃▃▃▃▃▃▃▃▃▃██████████"), (False, "----------##########")])
def test_the_line_fits_a_terminal(unicode: bool, bars: str) -> None:
    steps = run_of([2.0] * 200 + [6.0] * 200)
    series = run_series_of(steps, find_run_drift(steps))
    assert series is not None
    line = describe_run(series, 80, unicode=unicode)
    assert line == f"Run {bars} 2.00 ms to 6.00 ms, 400 steps, slower from step 200 on"
    longest = RunSeries(123_456_789, (1234 * MS,) * MAX_LEVELS, 123_456_788)
    assert len(describe_run(longest, 80, unicode=unicode)) <= 80


def test_what_happened_is_marked() -> None:
    contains = {50: ["evaluation"], 99: ["save", "gc"], 150: ["epoch"], 170: ["worker_start"]}
    steps = run_of([2.0] * 200 + [6.0] * 200, contains)
    assert steps.contains[150] == frozenset()  # it is no work that other steps do not have
    marks = marks_of_run(steps, find_run_drift(steps), facts_of(300), facts_of(30))
    assert [(mark.kind, mark.first, mark.last) for mark in marks] == [
        ("window", 300, 307),
        ("window", 30, 37),
        ("evaluation", 50, 50),
        ("checkpoint", 99, 99),
        ("epoch", 150, 150),
        ("drift", 200, 399),
    ]
    assert [mark.text for mark in marks[:2]] == ["late timing window", "first timing window"]
    assert marks[-1].text == "PD010: slower from here on, 3 times as long at the end"


def test_a_steady_run_has_its_window_alone() -> None:
    marks = marks_of_run(run_of([2.0] * 400), None, facts_of(30), None)
    assert [mark.text for mark in marks] == ["timing window"]


def test_many_evaluations_are_thinned_out() -> None:
    steps = run_of([2.0] * 2000, {step: ["evaluation"] for step in range(1000)})
    marks = marks_of_run(steps, None, facts_of(30), None)
    numbers = [mark.first for mark in marks if mark.kind == "evaluation"]
    assert len(numbers) <= 200
    assert (numbers[0], numbers[-1]) == (0, 999)


def test_the_chart_has_the_marks() -> None:
    trace = TraceBuilder(device=None)
    for number in range(6):
        trace.step(1000 * number, 1000).op("aten::addmm", 1000 * number, 990)
    steps = run_of([2.0] * 200 + [6.0] * 200)
    series = step_series_of(Rank(trace.trace(), facts=facts_of(30), run_steps=steps))
    assert series is not None
    assert [mark.kind for mark in series.marks] == ["window", "drift"]
    assert np.median(series.unprofiled_ns) > 0


def finding_of(title: str, **values: Any) -> Finding:
    rest = {"severity": "low", "saving": Saving(), "advice": "Save less often."}
    return Finding(rule="PD003", name="x", title=title, cost_ns=0, share_of_step=0.0, **{**rest, **values})


def test_findings_of_known_steps_are_marked_and_others_are_not() -> None:
    trace = TraceBuilder(device=None)
    for number in range(6):
        trace.step(1000 * number, 1000, number=30 + number).op("aten::addmm", 1000 * number, 990)
    rank = Rank(trace.trace(), facts=facts_of(30), run_steps=run_of([2.0] * 100))
    claim = Claim(rank.steps.intervals[4:5])
    findings = [
        finding_of("some steps of the run", seen_in=(7, 90)),
        finding_of("one recorded step", claim=claim, recurrence=Recurrence(1, 6, 5, 5)),
        finding_of("every recorded step", claim=Claim(rank.steps.intervals), recurrence=Recurrence(6, 6, 5, 5)),
        finding_of("steps that nobody counted", claim=claim),
    ]
    series = step_series_of(rank, findings)
    assert series is not None
    assert [(mark.first, mark.text) for mark in series.marks if mark.kind == "finding"] == [
        (7, "PD003: some steps of the run"),
        (90, "PD003: some steps of the run"),
        (34, "PD003: one recorded step"),
    ]


def test_rules_say_in_which_steps_of_the_run_they_see_it() -> None:
    contains = {step: ["save"] for step in range(20, 100, 20)}
    step_ms = [30.0 if number in contains else 2.0 for number in range(100)]
    trace = TraceBuilder(device=None)
    for number in range(6):
        trace.step(1000 * number, 1000).op("aten::addmm", 1000 * number, 990)
    rule = next(each for each in registry.load_analyzers() if each.rule == "PD003")
    rank = Rank(trace.trace(), facts=facts_of(30), run_steps=run_of(step_ms, contains))
    (finding,) = pipeline.diagnose_run(Run((rank,)), [rule]).findings
    assert finding.seen_in == tuple(contains)
    assert "seen_in" not in to_plain(finding)
