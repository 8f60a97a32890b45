"""Programs on the CPU alone: disjoint times of framework, optimizers and zeroing, unprofiled time, the busiest line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoctor import pipeline
from perfdoctor.analyzers._cpu_ops import cpu_optimizers_of, cpu_zeroing_of, framework_time
from perfdoctor.analyzers._pd104_busiest_line import find_busiest_line
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.savings.unprofiled_time import unprofiled_time_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

relaxed = settings(suppress_health_check=[HealthCheck.too_slow])

OPS = ("aten::mul", "aten::mm", "aten::zero_", "aten::add_", "torch::autograd::AccumulateGrad", "aten::sqrt")
RANGES = ("Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad", "_compile (dynamo_timed)", "mine")
spans = st.tuples(st.integers(0, 1990), st.integers(0, 150), st.integers(1, 2))


@st.composite
def programs(draw: st.DrawFn) -> Rank:
    """Any ops and ranges in two steps, with or without steps that a capture timed before."""
    trace = TraceBuilder(device=None).step(0, 1000).step(1000, 1000)
    for name, (start, dur, thread) in draw(st.lists(st.tuples(st.sampled_from(OPS), spans), max_size=30)):
        trace.op(name, start, dur, thread)
    for name, (start, dur, thread) in draw(st.lists(st.tuples(st.sampled_from(RANGES), spans), max_size=6)):
        trace.range(name, start, dur, thread)
    timed = draw(st.none() | st.lists(st.integers(1, 3_000_000), min_size=1, max_size=3))
    return Rank(trace.trace(), facts=CapturedFacts.parse({} if timed is None else {"base_step_ns": timed}))


@relaxed
@given(programs())
def test_framework_optimizers_and_zeroing_share_no_time(rank: Rank) -> None:
    zeroing = cpu_zeroing_of(rank.trace, rank.window)
    framework = framework_time(rank.trace, rank.account.parts, zeroing)
    for other in (zeroing.add_time, *(steps.time for steps in cpu_optimizers_of(rank.trace, rank.window))):
        assert not len(iv.intersect(framework, other))
    for time in (framework, zeroing.time, *(steps.time for steps in cpu_optimizers_of(rank.trace, rank.window))):
        assert not len(iv.subtract(time, rank.window))


@relaxed
@given(programs())
def test_time_without_the_profiler_is_between_none_and_the_recorded_time(rank: Rank) -> None:
    for time in (
        framework_time(rank.trace, rank.account.parts, cpu_zeroing_of(rank.trace, rank.window)),
        cpu_zeroing_of(rank.trace, rank.window).time,
        rank.window,
    ):
        unprofiled = rank.unprofiled_time(time)
        assert 0 <= unprofiled.program_ns <= unprofiled.max_ns <= rank.per_step(iv.total(time))
        assert 0 <= unprofiled.share <= 1
        saving = unprofiled.saving(0.25)
        assert (saving.expected_ns is None) == (not rank.facts or not unprofiled.program_ns)


def test_an_event_costs_the_excess_of_the_shortest_recorded_step_over_the_shortest_timed_one() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).step(1000, 5000)
    for row in range(99):
        trace.op("aten::mul", 10 * row, 5).op("aten::mul", 1000 + 10 * row, 5)
    rank = Rank(trace.trace())
    base_steps_ns = [900_000, 901_000, 4_000_000]
    unprofiled = unprofiled_time_of(rank.trace, rank.steps, rank.window, iv.window(0, 10_000), base_steps_ns)
    # 100 events take 100 us of the first step; two of them begin in these 10 us, which are spread over two steps.
    assert (unprofiled.program_ns, unprofiled.max_ns, unprofiled.timed) == (4_000, 5_000, True)


def test_waits_for_a_core_are_no_overhead_of_the_profiler() -> None:
    """Steps of 1.1 ms with 100 events, 0.6 ms without the profiler; in both, others have the core for half as long."""
    trace = TraceBuilder(device=None)
    for start in (0, 1100):
        trace.step(start, 1100)
        for row in range(99):
            trace.op("aten::mul", start + 10 * row, 5)
    facts: dict[str, Any] = {"schema": "perfdoctor.facts/1", "cores": {"available": 2, "training": 1.0, "others": 1.0}}
    for window, times in (("base", (900_000, 600_000, 300_000)), ("timing", (1_100_000, 700_000, 400_000))):
        keys = (f"{window}_step_ns", f"{window}_cpu_ns", f"{window}_queued_ns")
        facts |= {key: [ns] * 8 for key, ns in zip(keys, times, strict=True)}
    rank = Rank(trace.trace(), facts=CapturedFacts.parse(facts))
    # 700 us are the program's and the profiler's, 600 us the program's: 1 us an event, and not 5. The ops are short,
    # and no more is promised of them than of the rest of the step.
    unprofiled = rank.unprofiled_time(iv.union(rank.trace.ops.start_ns, rank.trace.ops.end_ns))
    assert (unprofiled.program_ns, unprofiled.timed) == (270_000, True)


def loop(*, times: int, name: str = "aten::mul", backward: bool = False) -> TraceBuilder:
    trace = TraceBuilder(device=None).step(0, 1000).range("@train.py:3 main", 0, 500).range("@net.py:8 go", 600, 300)
    for row in range(times):
        trace.op("autograd::engine::evaluate_function: MulBackward0" if backward else name, 5 * row, 2)
    return trace.op("aten::add", 700, 50)


def test_the_line_whose_calls_take_most_time_and_how_often_it_repeats_them() -> None:
    line = find_busiest_line(Rank(loop(times=39).trace()))
    assert line is not None
    assert (str(line.location), line.calls_per_step, line.has_matrix_ops) == ("train.py:3", 39, False)
    assert (line.share, line.repeated_share) == pytest.approx((1, 38 / 39))  # the other op computes


def loop_of_two_lines(calls: int) -> TraceBuilder:
    """40 rounds of two ops at a line each, in one function that is called so many times."""
    trace = TraceBuilder(device=None).step(0, 1000)
    for call in range(calls):
        trace.frame("train.py(1): sample", call * 800 / calls, 800 / calls)
    for row in range(40):
        for line, name in ((3, "aten::rand"), (4, "aten::add")):
            start = 20 * row + 10 * (line - 3)
            trace.range(f"@train.py:{line} sample", start, 9).op(name, start + 1, 5)
    return trace


def test_lines_of_one_loop_count_together() -> None:
    line = find_busiest_line(Rank(loop_of_two_lines(calls=1).trace()))
    assert line is not None
    assert (str(line.location), line.share, line.calls_per_step) == ("train.py:3", 1.0, 40)
    assert line.repeated_share == pytest.approx(78 / 80)


def test_lines_of_a_function_that_is_called_often_are_no_loop() -> None:
    line = find_busiest_line(Rank(loop_of_two_lines(calls=40).trace()))
    assert line is not None
    assert line.share == pytest.approx(0.5, abs=0.01)  # after its last op no other one is called


def test_matrix_maths_makes_layers_of_a_loop() -> None:
    line = find_busiest_line(Rank(loop(times=39, name="aten::linear").trace()))
    assert line is not None
    assert line.has_matrix_ops


def test_the_line_of_the_backward_pass_calls_nothing_itself() -> None:
    assert find_busiest_line(Rank(loop(times=39, backward=True).trace())) is None


def test_ops_below_the_hooks_of_the_recorder_are_calls_of_the_line() -> None:
    """What `perfdoctor run` records with lines: its own function around each op, whose time is not the program's."""
    timed, lined = loop(times=39), loop(times=39)
    main = lined.frame("train.py(1): main", 0, 500)
    for row in range(39):
        lined.frame(
            "perfdoctor/capture/inject/_perfdoctor_inject/source_lines.py(47): __torch_function__",
            5 * row,
            3,
            parent=main,
        )
    bare = TraceBuilder(device=None).step(0, 1000)
    for row in range(39):
        bare.op("aten::mul", 5 * row, 2)
    line = find_busiest_line(Rank(bare.op("aten::add", 700, 50).trace(), evidence_trace=lined.trace()))
    assert line is not None
    assert (str(line.location), line.calls_per_step) == ("train.py:3", 39)
    assert find_busiest_line(Rank(timed.trace())) is not None


def test_no_line_is_known_without_lines() -> None:
    assert find_busiest_line(Rank(TraceBuilder(device=None).op("aten::mul", 0, 5).trace())) is None


def outcomes(trace: TraceBuilder) -> dict[str, Any]:
    rules = [a for a in registry.load_analyzers() if a.rule in ("PD104", "PD303", "PD304")]
    return {o.rule: (o.status, o.why) for o in pipeline.diagnose_run(Run((Rank(trace.trace()),)), rules).outcomes}


def test_rules_for_either_device_run_on_a_program_on_the_cpu() -> None:
    assert set(outcomes(loop(times=3)).values()) == {("ran", None)}


def test_outcomes_name_the_data_that_a_gpu_program_lacks() -> None:
    launches = TraceBuilder().step(0, 1000).op("aten::mul", 0, 5)
    launches.call("cudaLaunchKernel", 1)
    assert {why for _, why in outcomes(launches).values() if why and "no GPU kernels" in why}
    unlinked = TraceBuilder().step(0, 1000).kernel("ampere_sgemm_128x64_nn", 10, 50)
    assert {status for status, _ in outcomes(unlinked).values()} == {"skipped"}
    assert {why for _, why in outcomes(unlinked).values() if why and "joined to its launch" in why}
