"""What is known of the ops of one window, for the ops of another window of the same program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from all_cases import CASES
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analyzers._cpu_evidence import computing_ops, own_time_of, project, rank_with_shapes
from perfdoctor.analyzers.pd513_host_libraries import HostLibraries
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.rules import Run
from perfdoctor.rules.registry import load_analyzers
from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import findings_of_rule
from perfdoctor.testing.rule_cases import RuleCase

Step = Sequence[tuple[str, bool]]
"""Its ops: the name, and whether it is marked."""


def rank_of(steps: Sequence[Step], *, first_us: float = 0, shapes: bool = False) -> Rank:
    """A rank whose ops take 10 us each, in steps of 1 ms."""
    trace = TraceBuilder(device=None)
    for number, step in enumerate(steps):
        start = first_us + 1000 * number
        trace.step(start, 1000)
        for row, (name, _) in enumerate(step):
            trace.op(name, start + 20 * row, 10, shapes=[[4]] if shapes else None, types=["float"] if shapes else None)
    return Rank(trace.trace())


def marks_of(steps: Sequence[Step]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([marked for step in steps for _, marked in step], bool)


STEP = [("mul", True), ("add", False), ("mul", False)]


def test_an_op_is_found_at_its_place_in_the_step() -> None:
    there, here = rank_of([STEP], shapes=True), rank_of([STEP, STEP])
    assert project(here, there, marks_of([STEP])).tolist() == [True, False, False] * 2


def test_the_window_itself_needs_no_other() -> None:
    here = rank_of([STEP])
    marks = marks_of([STEP])
    assert project(here, here, marks) is marks


def test_where_a_name_is_called_more_often_the_most_of_its_time_decides() -> None:
    mostly, rarely = [("mul", True), ("mul", True), ("add", False)], [("mul", True), ("mul", False), ("mul", False)]
    here = rank_of([[("mul", False)] * 5])
    assert project(here, rank_of([mostly], shapes=True), marks_of([mostly])).all()
    assert not project(here, rank_of([rarely], shapes=True), marks_of([rarely])).any()


def test_names_that_the_other_window_lacks_are_not_marked() -> None:
    here, there = rank_of([[("new", False), ("mul", False)]]), rank_of([[("mul", True)]], shapes=True)
    assert project(here, there, marks_of([[("mul", True)]])).tolist() == [False, True]


names = st.sampled_from(["mul", "add", "mm"])
one_step = st.lists(st.tuples(names, st.booleans()), min_size=1, max_size=8)


@given(one_step, st.integers(1, 4), st.integers(1, 3))
def test_equal_steps_have_equal_marks(step: Step, here_count: int, there_count: int) -> None:
    there, here = rank_of([step] * there_count, shapes=True), rank_of([step] * here_count, first_us=50_000)
    marks = marks_of([step] * there_count)
    assert project(here, there, marks).tolist() == [marked for _, marked in step] * here_count


@given(st.lists(one_step, min_size=1, max_size=3), st.lists(one_step, min_size=1, max_size=3))
def test_a_name_without_a_mark_is_marked_nowhere(steps: Sequence[Step], others: Sequence[Step]) -> None:
    there, here = rank_of(others, shapes=True), rank_of(steps)
    projected = project(here, there, marks_of(others))
    marked = {name for step in others for name, is_marked in step if is_marked}
    named = [name for step in steps for name, _ in step]
    assert len(projected) == len(named)
    assert all(name in marked for name, is_marked in zip(named, projected.tolist(), strict=True) if is_marked)


def test_own_time_leaves_out_what_an_op_calls() -> None:
    trace = TraceBuilder(device=None).step(0, 1000)
    rank = Rank(trace.op("outer", 0, 100).op("inner", 10, 97 - 10).op("short", 200, 3).trace())
    assert own_time_of(rank.trace).tolist() == [13_000, 87_000, 3_000]
    assert computing_ops(rank).tolist() == [True, True, False]


def test_the_evidence_window_has_the_shapes_where_the_other_has_none() -> None:
    bare, shaped = rank_of([STEP]), rank_of([STEP], shapes=True)
    assert rank_with_shapes(bare) is None
    assert rank_with_shapes(shaped) is shaped
    both = Rank(bare.raw_trace, evidence_trace=shaped.raw_trace)
    assert rank_with_shapes(both) is both.evidence


def bare(trace: TraceBuilder, skipped: int = 1) -> TraceBuilder:
    """The same steps as the profiler records them without shapes, after `skipped` others."""
    content = trace.to_dict()
    events = [dict(event) for event in content["traceEvents"]]
    built = TraceBuilder(device=None)
    for number in range(1 + skipped):
        for event in events:
            kept = ("External id", "Sequence number") if event["cat"] == "cpu_op" else tuple(event["args"])
            arguments = {key: event["args"][key] for key in kept if key in event["args"]}
            if event["cat"] != "python_function":
                built.event(**{**event, "ts": event["ts"] + 10_000 * number, "args": arguments})
    return built


FIRING = [case for case in CASES if case.rule in ("PD204", "PD205", "PD301", "PD306", "PD309") and "CPU" in case.name]


@pytest.mark.parametrize("case", [case for case in FIRING if case.expected], ids=str)
def test_a_rule_finds_the_same_with_the_shapes_in_the_other_window(case: RuleCase) -> None:
    """As `perfdoctor run` records: the analysed window has neither shapes nor lines, and more steps."""
    (rule,) = (rule for rule in load_analyzers() if rule.rule == case.rule)
    (whole,) = case.traces()
    both = Rank(bare(whole).trace(), facts=CapturedFacts.parse(case.facts), evidence_trace=whole.trace())
    alone = Rank(whole.trace(), facts=CapturedFacts.parse(case.facts))
    found, expected = (findings_of_rule(rule, Run((rank,))) for rank in (both, alone))
    assert [(each.title, each.cost_ns, each.saving, each.location) for each in found] == [
        (each.title, each.cost_ns, each.saving, each.location) for each in expected
    ]


@pytest.mark.parametrize(("dtype", "fires"), [("float", True), ("double", False)])
def test_types_of_another_window_say_whether_a_convolution_lacks_its_library(dtype: str, *, fires: bool) -> None:
    """A capture times a window without types: convolutions in float64 run as slow_conv whatever library there is."""

    def steps(types: list[str] | None) -> Rank:
        trace = TraceBuilder(device=None)
        for number in range(3):
            trace.step(10_000 * number, 10_000)
            shapes = [[5, 64, 56, 56], [64, 64, 3, 3]] if types else None
            trace.op("aten::_slow_conv2d_forward", 10_000 * number + 10, 5000, shapes=shapes, types=types)
        return Rank(trace.trace())

    timed = Rank(steps(None).raw_trace, evidence_trace=steps([dtype, dtype]).raw_trace)
    assert [finding.rule for finding in HostLibraries().analyze_rank(timed)] == ["PD513"] * fires
