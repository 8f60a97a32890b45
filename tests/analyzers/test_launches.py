"""How the CPU launches the work of the GPU: queue depth and its time for a launch."""

from __future__ import annotations

import pytest

from perfdoctor.analyzers._pd104_launches import launch_facts_of
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"


def program(steps: int = 2, extra: int = 0) -> TraceBuilder:
    """Steps of 400 us of four ops of 40 us with a launch of 5 us each; the kernels of a step start at its 300th us."""
    trace = TraceBuilder()
    for number in range(steps):
        at = 400 * number
        trace.step(at, 400)
        for row in range(4 + (extra if number else 0)):
            trace.op("aten::add", at + 50 * row, 40)
            trace.kernel(POINTWISE, at + 300 + 10 * row, 10, launch_us=at + 50 * row + 20)
    return trace


def test_cpu_time_for_a_launch_is_runtime_dispatcher_and_python() -> None:
    facts = launch_facts_of(Rank(program().trace()))
    assert facts is not None
    assert (facts.launches, facts.graphs, facts.steady, len(facts.syncs.index)) == (8, 0, True, 0)
    assert (facts.runtime_ns, facts.dispatcher_ns, facts.python_ns) == (5_000, 35_000, 60_000)
    assert facts.cpu_ns == 100_000


def test_waits_and_loading_are_not_the_cpus_time_for_launches() -> None:
    trace = program().range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 200, 80)
    trace.call("cudaDeviceSynchronize", 600, 120)
    facts = launch_facts_of(Rank(trace.trace()))
    assert facts is not None
    assert facts.python_ns == 60_000 - (80_000 + 120_000) // 8


def test_pauses_are_not_the_cpus_time_for_launches() -> None:
    trace = program(steps=3)
    for number in range(3):
        trace.op("aten::split_with_sizes", 5_000 + 4_000 * number, 3_000)
        trace.kernel(POINTWISE, 8_100 + 4_000 * number, 10, launch_us=8_050 + 4_000 * number)
    rank = Rank(trace.step(4_950, 12_000).trace())
    facts = launch_facts_of(rank)
    assert facts is not None
    assert sum(iv.total(group.time) for group in rank.pauses) > 8_000_000
    assert facts.cpu_ns * facts.launches < 5_000_000


@pytest.mark.parametrize(("syncs_at", "share"), [((), 1.0), ((255,), 0.75), ((155, 255), 0.5), ((105, 155, 205), 0.4)])
def test_a_graph_reaches_from_one_sync_to_the_next(syncs_at: tuple[float, ...], share: float) -> None:
    trace = TraceBuilder()
    for number in range(2):
        at = 1000 * number
        trace.step(at, 1000)
        for row in range(4 if share != 0.4 else 5):
            trace.kernel(POINTWISE, at + 800 + 10 * row, 10, launch_us=at + 50 + 70 * row)
        for sync in syncs_at:
            trace.call("cudaStreamSynchronize", at + sync, 5)
    facts = launch_facts_of(Rank(trace.trace()))
    assert facts is not None
    assert facts.graphable_share == share


def test_queue_depth_counts_what_was_launched_and_had_not_started() -> None:
    ahead = launch_facts_of(Rank(program().trace()))
    assert ahead is not None
    assert ahead.depth == 1  # 0, 1, 2, 3 in each step
    assert ahead.ahead_share == 0.75
    starved = TraceBuilder()
    for row in range(4):
        starved.kernel(POINTWISE, 50 * row + 10, 10, launch_us=50 * row)
    facts = launch_facts_of(Rank(starved.trace()))
    assert facts is not None
    assert (facts.depth, facts.ahead_share) == (0, 0)
    assert (facts.dispatcher_ns, facts.python_ns, facts.steady) == (None, None, None)


def test_a_graph_is_one_launch() -> None:
    trace = TraceBuilder()
    correlation = trace.call("cudaGraphLaunch", 0, 30)
    for row in range(40):
        trace.kernel(POINTWISE, 10 + 24 * row, 14, correlation=correlation)
    facts = launch_facts_of(Rank(trace.trace()))
    assert facts is not None
    assert (facts.launches, facts.graphs) == (1, 1)


def test_steps_that_launch_differently_are_not_steady_and_a_trace_without_launches_has_no_facts() -> None:
    facts = launch_facts_of(Rank(program(extra=1).trace()))
    assert facts is not None
    assert facts.steady is False
    assert launch_facts_of(Rank(TraceBuilder().kernel(POINTWISE, 0, 10).trace())) is None
