"""The ops of a step at the lines that call them: their times, their calls, and the sizes of their inputs."""

from __future__ import annotations

import pytest

from perfdoctor.places.ops_at_lines import OpAtLine
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

NODE = "autograd::engine::evaluate_function: Addmm"


def ops_of(trace: TraceBuilder) -> dict[tuple[str, str], OpAtLine]:
    return {(each.name, str(each.location)): each for each in Rank(trace.trace()).ops_at_lines}


def test_a_name_shares_its_time_among_its_lines() -> None:
    trace = TraceBuilder(device=None)
    for at in (0, 1000):
        trace.step(at, 1000)
        trace.range("@train.py:4 main", at, 300).op("aten::mul", at, 300, shapes=[[8, 8], []])
        trace.range("@train.py:5 main", at + 300, 400).op("aten::mul", at + 300, 50, shapes=[[8, 9], []])
        trace.op("aten::mul", at + 400, 50, shapes=[[8, 6 + at // 1000], []])
    found = ops_of(trace)
    first, second = found["mul", "train.py:4"], found["mul", "train.py:5"]
    assert (first.share, first.calls, second.share, second.calls) == pytest.approx((0.75, 1, 0.25, 2))
    assert (first.smallest, first.largest) == (((8, 8),), ((8, 8),))
    assert (second.smallest, second.largest) == (((8, 9),), ((8, 9),)), "the largest of each step"
    assert second.shapes == {"[[8,9],[]]", "[[8,6],[]]", "[[8,7],[]]"}


def test_the_backward_pass_counts_for_the_lines_of_its_forward_ops() -> None:
    trace = TraceBuilder(device=None).step(0, 1000)
    trace.range("@model.py:4 forward", 0, 100).op("aten::addmm", 0, 100, sequence=7)
    trace.range("@train.py:9 main", 200, 800)
    trace.op(f"{NODE}Backward0", 250, 150, thread=2, sequence=7)
    trace.op("aten::mm", 260, 50, thread=2).op("aten::mm", 320, 50, thread=2)
    found = ops_of(trace)
    assert set(found) == {("addmm", "model.py:4"), ("addmm backward", "model.py:4")}
    assert found["addmm backward", "model.py:4"].calls == 1


def test_on_a_gpu_it_is_the_time_of_what_an_op_launched() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.range("@train.py:4 main", 0, 100).op("aten::std", 0, 20, shapes=[[[8, 8], [4]]])
    trace.kernel("reduce", 100, 300, launch_us=5)
    trace.range("@train.py:5 main", 100, 100).op("aten::std", 100, 20).kernel("reduce", 400, 100, launch_us=105)
    found = ops_of(trace)
    assert found["std", "train.py:4"].share == pytest.approx(0.75)
    assert found["std", "train.py:4"].largest == ((8, 8), (4,))
    assert found["std", "train.py:5"].largest == (), "no shapes were recorded"


def test_sizes_that_one_step_lacks_are_unknown() -> None:
    trace = TraceBuilder(device=None).step(0, 100).op("aten::std", 0, 50, shapes=[[8, 8]])
    trace.step(100, 100).op("aten::std", 100, 50)
    assert ops_of(trace)["std", "None"].largest == ()
