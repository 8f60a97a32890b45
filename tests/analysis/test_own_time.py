"""Own time by op: rows that add up to the step, whatever runs where."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoctor.analysis.timeline.own_time import PYTHON
from perfdoctor.rank import Rank
from perfdoctor.tables.ops import ops_table
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.vocabulary import SINGLE_PROCESS_LOADER, dataloader_next_name

LOADER = dataloader_next_name(SINGLE_PROCESS_LOADER)
NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def training() -> TraceBuilder:
    """One step of 1000 us: 200 loading, 300 forward, 200 backward, 100 zeroing, 150 optimizer, 50 in no op."""
    trace = TraceBuilder(device=None).step(0, 1000)
    trace.range(LOADER, 0, 200).op("aten::stack", 50, 100)
    trace.op("aten::linear", 200, 300).op("aten::addmm", 210, 280)
    trace.op(NODE, 500, 200).op("aten::mm", 510, 100).op("aten::mm", 620, 60)
    trace.range("Optimizer.zero_grad#SGD.zero_grad", 700, 100).op("aten::zero_", 710, 20)
    return trace.range("Optimizer.step#SGD.step", 800, 150).op("aten::add_", 820, 100)


def rows_of(trace: TraceBuilder) -> dict[str, tuple[int, int | None]]:
    rank = Rank(trace.trace())
    rows = ops_table(rank, "name").rows
    return {row["name"]: (row["window_ns"] // 1000, row["window_count"]) for row in rows}


def test_ops_and_parts_of_the_loop_share_the_step() -> None:
    assert rows_of(training()) == {
        "addmm": (280, 1),
        "DataLoader": (200, 1),
        "addmm backward": (200, 1),
        "SGD.step": (150, 1),
        "zero_grad": (100, 1),
        PYTHON: (50, None),
        "linear": (20, 1),
    }


def test_a_closure_is_no_work_of_its_optimizer() -> None:
    """`optimizer.step(closure)`: forward and backward run inside of it, and only what follows is its own."""
    trace = TraceBuilder(device=None).step(0, 1000).range("Optimizer.step#SGD.step", 0, 1000)
    trace.op("aten::addmm", 0, 400).op(NODE, 400, 500).op("aten::add_", 950, 50)
    assert rows_of(trace) == {"addmm backward": (500, 1), "addmm": (400, 1), "SGD.step": (100, 1)}


def test_of_several_threads_an_instant_counts_once() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::addmm", 0, 600)
    trace.op("aten::mm", 400, 500, thread=7)
    assert rows_of(trace) == {"addmm": (600, 1), "mm": (300, 1), PYTHON: (100, None)}


def test_a_collective_takes_what_no_op_does() -> None:
    trace = TraceBuilder(device=None).step(0, 1000).op("aten::addmm", 0, 600)
    trace.range("gloo:all_reduce", 500, 400, thread=9)
    assert rows_of(trace) == {"addmm": (600, 1), "all_reduce, communication": (300, 1), PYTHON: (100, None)}


spans = st.tuples(st.sampled_from(["aten::mm", NODE, "aten::add_"]), st.integers(0, 1900), st.integers(1, 300))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(spans, max_size=12), st.lists(st.tuples(st.integers(0, 1900), st.integers(1, 300)), max_size=3))
def test_rows_add_up_to_the_window(ops: list[tuple[str, int, int]], steps: list[tuple[int, int]]) -> None:
    trace = TraceBuilder(device=None).step(0, 1000).step(1000, 1000)
    for number, (name, at, length) in enumerate(ops):
        trace.op(name, at, length, thread=number % 3)
    for at, length in steps:
        trace.range("Optimizer.step#SGD.step", at, length)
    rank = Rank(trace.trace())
    if ops:
        assert sum(row["window_ns"] for row in ops_table(rank, "name").rows) == rank.window_ns


def test_gpu_time_goes_to_the_op_that_launched_it_and_collectives_to_themselves() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.range("@train.py:8 main", 0, 100).op("aten::addmm", 0, 50).kernel("gemm", 60, 400, launch_us=10)
    trace.op(NODE, 200, 100).op("aten::mm", 210, 50).kernel("gemm", 500, 300, launch_us=220)
    trace.op("aten::copy_", 310, 20).kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 800, 100, launch_us=320)
    rank = Rank(trace.trace())
    rows = ops_table(rank, "name").rows
    assert [(row["name"], row["window_ns"] // 1000) for row in rows] == [
        ("addmm", 400),
        ("addmm backward", 300),
        ("all_reduce, communication", 100),
    ]


@pytest.mark.parametrize(
    "trace", [TraceBuilder(device=None).step(0, 10), TraceBuilder(device=None).step(0, 10).range("mine", 0, 5)]
)
def test_what_records_nothing_has_no_rows(trace: TraceBuilder) -> None:
    rank = Rank(trace.trace())
    assert ops_table(rank, "name").rows == []
