"""The flame graph of a step: roots add up to it, children never exceed their parent, places keep what runs there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from trace_strategies import POINTWISE, File, any_file, lawful_file, rank_of

from perfdoctor.charts.flames import flames_of
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import FlameGraph
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.vocabulary import SINGLE_PROCESS_LOADER, dataloader_next_name

US = 1_000
NODE = "autograd::engine::evaluate_function: "
relaxed = settings(suppress_health_check=[HealthCheck.too_slow])


def stacks(flames: FlameGraph | None) -> dict[tuple[str, ...], tuple[int, str]]:
    """The time and category of each node by the names from its root down."""
    if flames is None:
        return {}
    paths: list[tuple[str, ...]] = []
    for name, parent in zip(flames.name_id.tolist(), flames.parent.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), flames.names[name]))
    categories = [flames.categories[code] for code in flames.category.tolist()]
    return dict(zip(paths, zip(flames.time_ns.tolist(), categories, strict=True), strict=True))


def training() -> TraceBuilder:
    """A step of 1000 us: a batch is copied at a line, a layer runs forward and backward, and 200 us are other code."""
    trace = TraceBuilder(device=None).step(0, 1000).step(1000, 1000)
    for at in (0, 1000):
        trace.range(dataloader_next_name(SINGLE_PROCESS_LOADER), at, 300)
        main = trace.frame("train.py(1): main", at, 1000)
        item = trace.frame("data.py(5): __getitem__", at, 300, parent=main)
        trace.frame("copy.py(128): deepcopy", at + 50, 250, parent=item)
        trace.range("@data.py:6 __getitem__", at, 300).range("@model.py:7 forward", at + 300, 300)
        trace.op("aten::linear", at + 300, 300, sequence=at + 7).op("aten::addmm", at + 400, 200, sequence=at + 7)
        trace.range("@train.py:9 main", at + 600, 400)
        trace.op(f"{NODE}AddmmBackward0", at + 800, 200, sequence=at + 7)
    return trace


def test_below_a_part_of_the_loop_are_places_and_below_these_what_runs_there() -> None:
    flames = flames_of(Rank(training().trace()))
    assert stacks(flames) == {
        ("loading data",): (300 * US, "phase"),
        ("loading data", "data.py:6"): (300 * US, "place"),
        ("loading data", "data.py:6", "copy.deepcopy"): (250 * US, "function"),
        ("other parts of the loop",): (500 * US, "phase"),
        ("other parts of the loop", "model.py:7"): (300 * US, "place"),
        ("other parts of the loop", "model.py:7", "linear"): (300 * US, "op"),
        ("other parts of the loop", "model.py:7", "linear", "addmm"): (200 * US, "op"),
        ("other parts of the loop", "train.py:9"): (200 * US, "place"),
        ("backward",): (200 * US, "phase"),
        ("backward", "model.py:7"): (200 * US, "place"),
        ("backward", "model.py:7", "linear"): (200 * US, "op"),
        ("backward", "model.py:7", "linear", "addmm backward"): (200 * US, "op"),
    }
    assert flames is not None
    assert [(flames.names[flames.name_id[node]], each.short) for node, each in flames.places.items()] == [
        (name, name) for name in ("model.py:7", "train.py:9", "data.py:6", "model.py:7")
    ]


def test_a_place_without_a_line_is_not_named_twice_and_a_loop_without_parts_is_all_of_the_time() -> None:
    trace = TraceBuilder().step(0, 100).op("aten::mm", 0, 10).kernel(POINTWISE, 0, 40, launch_us=5)
    trace.op("aten::conv2d", 40, 60).op("aten::convolution", 45, 50).kernel(POINTWISE, 60, 40, launch_us=50)
    rank = Rank(trace.trace())
    found = stacks(flames_of(rank))
    assert {path for path in found if path[1:2] == ("mm",)} == {("all of the time", "mm")}
    assert ("all of the time", "conv2d", "convolution") in found
    assert found["all of the time",] == (rank.mean_step_ns, "phase")


def test_a_capture_takes_the_times_of_its_timed_window_and_the_stacks_of_the_other() -> None:
    timed = TraceBuilder(device=None).step(0, 1000).op("aten::linear", 0, 500)
    lined = TraceBuilder(device=None).step(0, 4000).range("@model.py:3 forward", 0, 1000).op("aten::linear", 0, 1000)
    main = lined.frame("train.py(1): main", 1000, 3000)
    lined.range("@train.py:9 main", 1000, 3000)
    lined.frame("copy.py(128): deepcopy", 1000, 1500, parent=main)
    found = stacks(flames_of(Rank(timed.trace(), evidence_trace=lined.trace())))
    assert found["all of the time", "model.py:3", "linear"] == (500 * US, "op")
    assert found["all of the time", "train.py:9", "copy.deepcopy"] == (250 * US, "function")


def test_what_is_narrower_than_a_pixel_is_not_drawn_and_keeps_its_time() -> None:
    trace = TraceBuilder(device=None).step(0, 10_000).range("@a.py:1 main", 0, 10_000).op("aten::mul", 50, 5)
    flames = flames_of(Rank(trace.trace()))
    assert stacks(flames) == {
        ("all of the time",): (10_000 * US, "phase"),
        ("all of the time", "a.py:1"): (10_000 * US, "place"),
    }


@pytest.mark.parametrize("trace", [Trace("empty.json"), TraceBuilder(device=None).step(0, 0).trace()])
def test_without_time_there_is_no_graph(trace: Trace) -> None:
    assert flames_of(Rank(trace)) is None


@relaxed
@given(any_file())
def test_roots_add_up_to_the_step_and_no_node_is_narrower_than_its_children(file: File) -> None:
    rank = rank_of(file)
    flames = flames_of(rank)
    if flames is None:
        assert not rank.mean_step_ns
        return
    is_root = flames.parent < 0
    assert int(flames.time_ns[is_root].sum()) == rank.mean_step_ns
    assert (flames.parent < np.arange(len(flames.parent))).all()
    of_children = np.zeros(len(flames.parent), np.int64)
    np.add.at(of_children, flames.parent[~is_root], flames.time_ns[~is_root])
    assert (of_children <= flames.time_ns).all()
    assert len(flames.parent) <= 4 / 0.001


@relaxed
@given(lawful_file(), st.randoms(use_true_random=False))
def test_neither_the_order_of_events_nor_the_time_of_day_changes_the_graph(file: File, random: st.Random) -> None:
    items = [(e["pid"], e["tid"], e["ts"]) for e in file["traceEvents"] if "stream" in e["args"]]
    assume(len(set(items)) == len(items))  # a stream runs one thing at a time
    shuffled = file | {"traceEvents": random.sample(file["traceEvents"], len(file["traceEvents"]))}
    expected = stacks(flames_of(rank_of(file)))
    assert stacks(flames_of(rank_of(shuffled))) == expected
    assert stacks(flames_of(rank_of(file, shift_us=10_000_000))) == expected
