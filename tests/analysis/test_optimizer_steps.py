"""The own time of optimizers, without the closures in their steps."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.testing import TraceBuilder

US = 1000
STEP, CLOSURE = "Optimizer.step#SGD.step", "perfdoctor::closure"
NODE = "autograd::engine::evaluate_function: MulBackward0"


def own_us(trace: TraceBuilder) -> list[list[int]]:
    return (optimizer_steps_of(trace.trace()).own_time() // US).tolist()


def inside(trace: TraceBuilder, *at_us: int) -> list[bool]:
    """For each instant whether the optimizer's own code runs then, on the first thread."""
    built = trace.trace()
    thread = np.full(len(at_us), built.ranges.thread[0], np.int32)
    return (optimizer_steps_of(built).around(np.array(at_us, np.int64) * US, thread) >= 0).tolist()


def test_without_a_closure_the_whole_step_is_the_optimizers() -> None:
    trace = TraceBuilder().range(STEP, 10, 20)
    assert own_us(trace) == [[10, 30]]
    assert inside(trace, 5, 10, 29, 30) == [False, True, True, False]


def test_a_marked_closure_is_not() -> None:
    trace = TraceBuilder().range(STEP, 10, 50).range(CLOSURE, 12, 20).range(CLOSURE, 40, 10)
    assert own_us(trace) == [[10, 12], [32, 40], [50, 60]]
    assert inside(trace, 11, 12, 31, 35, 45, 59) == [True, False, False, True, False, True]


def test_without_a_mark_it_ends_with_the_last_node_of_the_backward_pass() -> None:
    trace = TraceBuilder().range(STEP, 10, 50).op(NODE, 20, 5).op(NODE, 30, 6)
    assert own_us(trace) == [[36, 60]]
    assert inside(trace, 11, 35, 36) == [False, False, True]


def test_a_backward_pass_on_a_thread_of_the_engine_counts() -> None:
    assert own_us(TraceBuilder().range(STEP, 10, 50).op(NODE, 20, 5, 7)) == [[25, 60]]


def test_a_backward_pass_before_the_step_does_not() -> None:
    assert own_us(TraceBuilder().op(NODE, 0, 5).range(STEP, 10, 50)) == [[10, 60]]


def test_a_backward_pass_of_another_training_loop_does_not() -> None:
    trace = TraceBuilder().range(STEP, 10, 50).op(NODE, 20, 5, 7).range("Optimizer.step#Adam.step", 100, 10, 7)
    assert own_us(trace) == [[10, 60], [100, 110]]


def test_an_optimizer_that_calls_another_one() -> None:
    trace = TraceBuilder().range("Optimizer.step#Lookahead.step", 0, 100).range(STEP, 20, 50)
    steps = optimizer_steps_of(trace.trace())
    outer, inner = sorted(steps.rows.tolist(), key=lambda row: steps.trace.ranges.start_ns[row])
    assert (steps.own_time(np.array([outer])) // US).tolist() == [[0, 20], [70, 100]]
    assert (steps.own_time(np.array([inner])) // US).tolist() == [[20, 70]]


def test_a_step_in_the_closure_of_another_step() -> None:
    trace = TraceBuilder().range(STEP, 0, 100).range(CLOSURE, 10, 50).range("Optimizer.step#Adam.step", 20, 10)
    assert inside(trace, 5, 15, 25, 35, 70) == [True, False, True, False, True]


def test_a_trace_without_optimizers() -> None:
    steps = optimizer_steps_of(TraceBuilder().op("aten::mm", 0, 10).trace())
    assert not len(steps.rows)
    assert not len(steps.own_time())


def test_a_clock_may_begin_below_zero() -> None:
    # Were 0 the end where there is no backward pass, it would lie behind the first step.
    trace = TraceBuilder().range(STEP, -90, 50).op(NODE, -200, 5).range("Optimizer.step#Adam.step", -30, 10)
    trace.op(NODE, -29, 2)
    assert own_us(trace) == [[-90, -40], [-27, -20]]
