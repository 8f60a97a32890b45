"""The flame graph of idle time: roots add up to the idle time, children never exceed their parent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_strategies import POINTWISE, File, any_file, lawful_file, rank_of

from perfdoctor.charts.idle_flames import idle_flames_of
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import FlameGraph
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.model import Trace

US = 1_000
relaxed = settings(suppress_health_check=[HealthCheck.too_slow])


def stacks(flames: FlameGraph | None) -> dict[tuple[str, ...], tuple[int, str]]:
    """The time and colour of each node by the names from its root down."""
    if flames is None:
        return {}
    paths: list[tuple[str, ...]] = []
    for name, parent in zip(flames.name_id.tolist(), flames.parent.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), flames.names[name]))
    assert len(set(paths)) == len(paths)
    colours = [flames.categories[code] for code in flames.category.tolist()]
    return dict(zip(paths, zip(flames.time_ns.tolist(), colours, strict=True), strict=True))


def late_launches() -> TraceBuilder:
    """Two steps of 100 us in which the GPU idles 60 us, 40 of them in a function that calls an op."""
    trace = TraceBuilder()
    for at in (0, 100):
        trace.step(at, 100).kernel(POINTWISE, at, 40, launch_us=at)
        frame = trace.frame("train.py(3): step", at + 10, 70)
        trace.frame("data.py(8): crop", at + 50, 20, parent=frame)
        trace.op("aten::mul", at + 55, 10)
        trace.kernel(POINTWISE, at + 99, 1, launch_us=at + 90)
    return trace


def test_the_stack_is_charged_with_the_idle_time_in_which_it_was_open() -> None:
    thread = "thread 1000"
    assert stacks(idle_flames_of(Rank(late_launches().trace()))) == {
        (thread,): (59 * US, "thread"),
        (thread, "train.py(3): step"): (40 * US, "python"),
        (thread, "train.py(3): step", "data.py(8): crop"): (20 * US, "python"),
        (thread, "train.py(3): step", "data.py(8): crop", "aten::mul"): (10 * US, "op"),
        (thread, "cudaLaunchKernel"): (5 * US, "call"),
    }


def test_idle_time_belongs_to_the_thread_that_launched_what_ended_it() -> None:
    trace = TraceBuilder().kernel(POINTWISE, 0, 10, launch_us=0).kernel(POINTWISE, 20, 10, launch_us=5)
    trace.op("AddBackward0", 30, 70, thread=2).op("aten::mul", 30, 70, thread=1)
    trace.kernel(POINTWISE, 80, 20, launch_us=70, thread=2)
    found = stacks(idle_flames_of(Rank(trace.trace())))
    assert found[("thread 1000",)][0] == 10 * US
    assert found[("thread 1001",)][0] == 50 * US
    assert found[("thread 1001", "AddBackward0")] == (50 * US, "op")
    assert ("thread 1000", "aten::mul") not in found


def test_of_a_program_on_the_cpu_the_main_thread_is_shown_all_the_time() -> None:
    trace = TraceBuilder(device=None).step(0, 100).step(100, 100)
    for at in (0, 100):
        trace.op("aten::linear", at + 10, 60).op("aten::addmm", at + 20, 40).op("aten::mul", at + 5, 90, thread=2)
    flames = idle_flames_of(Rank(trace.trace()))
    assert stacks(flames) == {
        ("thread 1000",): (100 * US, "thread"),
        ("thread 1000", "aten::linear"): (60 * US, "op"),
        ("thread 1000", "aten::linear", "aten::addmm"): (40 * US, "op"),
    }
    assert flames is not None
    assert not flames.is_idle_time


def test_what_outlives_a_range_is_not_in_it() -> None:
    trace = TraceBuilder(device=None).step(0, 100).op("aten::mm", 30, 1).range("forward", 0, 20)
    trace.frame("train.py(9): backward", 18, 70)
    trace.frame("hooks.py(3): close", 19, 5)
    found = {path[1:]: ns for path, (ns, _) in stacks(idle_flames_of(Rank(trace.trace()))).items()}
    assert found["forward",] == 20 * US
    assert found["train.py(9): backward",] == 68 * US
    assert found["train.py(9): backward", "hooks.py(3): close"] == 4 * US
    assert found["train.py(9): backward", "aten::mm"] == 1 * US


def test_a_call_that_ends_a_microsecond_late_by_rounding_is_still_in_its_caller() -> None:
    trace = TraceBuilder(device=None).step(0, 100).op("aten::linear", 10, 60).op("aten::addmm", 20, 51)
    found = {path[1:]: ns for path, (ns, _) in stacks(idle_flames_of(Rank(trace.trace()))).items()}
    assert found["aten::linear", "aten::addmm"] == 50 * US


def test_marks_of_steps_are_no_part_of_a_stack() -> None:
    paths = stacks(idle_flames_of(Rank(late_launches().trace())))
    assert not any("ProfilerStep" in name for path in paths for name in path)


def test_what_a_capture_puts_around_functions_is_no_part_of_a_stack() -> None:
    trace = TraceBuilder(device=None).step(0, 100).op("aten::mm", 30, 1)
    trace.frame("/x/perfdoctor/capture/inject/_perfdoctor_inject/torch_hooks.py(270): backward", 0, 80)
    trace.frame("torch/_tensor.py(566): backward", 1, 78)
    paths = stacks(idle_flames_of(Rank(trace.trace())))
    assert ("thread 1000", "torch/_tensor.py(566): backward", "aten::mm") in paths


def test_objects_of_one_class_are_one_node() -> None:
    trace = TraceBuilder().kernel(POINTWISE, 0, 10, launch_us=0).kernel(POINTWISE, 99, 1, launch_us=95)
    for at, address in ((20, "0x7f01"), (40, "0x7f02")):
        trace.frame(f"<built-in method to of Tensor object at {address}>", at, 15)
    found = stacks(idle_flames_of(Rank(trace.trace())))
    assert found["thread 1000", "<built-in method to of Tensor>"] == (30 * US, "python")


def test_a_capture_takes_the_stacks_of_its_evidence_window_and_the_idle_time_of_its_timing_window() -> None:
    timing = TraceBuilder().step(0, 100).kernel(POINTWISE, 0, 40, launch_us=0).kernel(POINTWISE, 60, 40, launch_us=50)
    evidence = TraceBuilder().step(0, 200).kernel(POINTWISE, 0, 40, launch_us=0)
    evidence.frame("train.py(3): step", 40, 60)
    evidence.kernel(POINTWISE, 140, 60, launch_us=130)
    found = stacks(idle_flames_of(Rank(timing.trace(), evidence_trace=evidence.trace())))
    assert found["thread 1000",][0] == 20 * US
    assert found["thread 1000", "train.py(3): step"] == (12 * US, "python")  # 60 of 100 us


@pytest.mark.parametrize(
    "trace",
    [
        TraceBuilder().op("aten::mm", 10, 50).trace(),  # a GPU that was not recorded
        TraceBuilder().kernel(POINTWISE, 0, 10).kernel(POINTWISE, 20, 10).trace(),  # no launches
        TraceBuilder().kernel(POINTWISE, 0, 10, launch_us=0).trace(),  # never idle
        Trace("empty.json"),
    ],
)
def test_without_idle_time_of_a_known_thread_there_is_no_graph(trace: Trace) -> None:
    assert idle_flames_of(Rank(trace)) is None


@relaxed
@given(any_file())
def test_roots_add_up_to_the_idle_time_and_no_node_is_narrower_than_its_children(file: File) -> None:
    rank = rank_of(file)
    flames = idle_flames_of(rank)
    on_cpu = rank.device_kind == "cpu"
    idle_ns = sum(ns for name, ns in rank.account.detail.items() if on_cpu or name.startswith("idle_"))
    if flames is None:
        assert not idle_ns or rank.launching_thread < 0
        return
    assert flames.is_idle_time != on_cpu
    is_root = flames.parent < 0
    assert abs(int(flames.time_ns[is_root].sum()) - rank.per_step(idle_ns)) <= is_root.sum()
    assert (flames.parent < np.arange(len(flames.parent))).all()
    of_children = np.zeros(len(flames.parent))
    np.add.at(of_children, flames.parent[~is_root], flames.time_ns[~is_root])
    assert (of_children <= flames.time_ns + len(flames.parent)).all()


@relaxed
@given(lawful_file(), st.randoms(use_true_random=False))
def test_neither_the_order_of_events_nor_the_time_of_day_changes_the_graph(file: File, random: st.Random) -> None:
    shuffled = file | {"traceEvents": random.sample(file["traceEvents"], len(file["traceEvents"]))}
    expected = stacks(idle_flames_of(rank_of(file)))
    assert stacks(idle_flames_of(rank_of(shuffled))) == expected
    assert stacks(idle_flames_of(rank_of(file, shift_us=10_000_000))) == expected
