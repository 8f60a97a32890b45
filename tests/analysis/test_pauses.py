"""Pauses by what the CPU did in them."""

from __future__ import annotations

import pytest

from perfdoctor.analysis.timeline.pauses import PauseGroup
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder


def trace_of(*pauses_us: tuple[float, str], steps: int = 1, launch_us: float = 500) -> TraceBuilder:
    """Kernels with a pause before each but the first, in an op of that name; all steps are alike."""
    trace, at = TraceBuilder(), 0.0
    for _ in range(steps):
        begin = at
        trace.kernel("gemm", at, launch_us, launch_us=at)
        at += launch_us
        for pause, name in pauses_us:
            trace.op(name, at, pause - 5)
            trace.kernel("gemm", at + pause, launch_us, launch_us=at + pause - 2)
            at += pause + launch_us
        trace.step(begin, at - begin)
    return trace


def groups_of(trace: TraceBuilder) -> tuple[PauseGroup, ...]:
    return Rank(trace.trace()).pauses


def names_of(groups: tuple[PauseGroup, ...]) -> list[str]:
    return [group.path.deepest.name if group.path.deepest else "" for group in groups]


def test_pauses_with_one_cause_are_one_group() -> None:
    (group,) = groups_of(trace_of((2000, "load"), (3000, "load"), steps=3))
    assert (group.gaps, group.once) == (6, False)
    assert group.recurrence is not None
    assert (group.recurrence.steps, group.recurrence.of, group.recurrence.median_ns) == (3, 3, 5_000_000)


def test_pauses_with_different_causes_are_told_apart_the_longest_first() -> None:
    groups = groups_of(trace_of((2000, "load"), (4000, "sort"), steps=3))
    assert names_of(groups) == ["sort", "load"]
    assert [group.gaps for group in groups] == [3, 3]


def test_what_happens_in_one_step_comes_last_and_once() -> None:
    trace = trace_of((2000, "load"), steps=4)
    at = 4 * 3000.0
    trace.op("save", at, 8990).kernel("gemm", at + 9000, 1000, launch_us=at + 8995).step(at, 10_000)
    groups = groups_of(trace)
    assert names_of(groups) == ["load", "save"]
    assert [group.once for group in groups] == [False, True]


def test_the_rest_of_a_pause_is_named_beside_its_hot_path() -> None:
    trace = trace_of((3000, "load"))
    trace = TraceBuilder().kernel("gemm", 0, 500, launch_us=0).op("decode", 500, 2000).op("resize", 2500, 990)
    trace.kernel("gemm", 3500, 500, launch_us=3495).step(0, 4000)
    (group,) = groups_of(trace)
    assert group.path.deepest is not None
    assert group.others.deepest is not None
    assert (group.path.deepest.name, group.others.deepest.name) == ("decode", "resize")


@pytest.mark.parametrize(("usual_us", "count", "once"), [(50, 3, True), (50, 2, False), (400, 3, False)])
def test_an_op_that_is_far_longer_than_the_others_of_its_name_happens_once(
    usual_us: float, count: int, once: bool
) -> None:
    trace = trace_of((2000, "aten::mm"), launch_us=2000)
    for row in range(count):
        trace.op("aten::mm", 10 + 500 * row, usual_us)
    (group,) = groups_of(trace)
    assert group.once is once
    assert (group.usual_ns is not None) is once


def test_a_launch_that_is_long_in_every_step_loads_nothing() -> None:
    trace = trace_of((2000, "aten::mm"), steps=4)
    for step in range(4):
        trace.call("cudaLaunchKernel", 3000 * step + 510, 1900)
    (group,) = groups_of(trace)
    assert (group.path.kind, group.once) == (None, False)


def test_a_gap_is_a_pause_by_the_step_and_the_launches_around_it() -> None:
    long_step = trace_of((300, "load"), launch_us=50_000)
    assert groups_of(long_step) == ()
    assert len(groups_of(trace_of((1000, "load"), launch_us=50_000))) == 1
    assert groups_of(trace_of((300, "load"), (300, "load"), launch_us=40)) == ()
