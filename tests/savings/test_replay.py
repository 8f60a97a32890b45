"""The replay: without edits a trace takes as long as recorded, and each mechanism passes changes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import any_file, lawful_file, rank_of

from perfdoctor.rank import Rank
from perfdoctor.savings import longest_path
from perfdoctor.savings.graph_edges import ACTIVITY
from perfdoctor.savings.replay_graph import Graph, graph_of
from perfdoctor.testing import TraceBuilder

KERNEL = "ampere_sgemm_128x64_nn"


def build_graph(trace: TraceBuilder) -> Graph:
    rank = Rank(trace.trace())
    return graph_of(rank.trace, rank.window)


def replay_us(graph: Graph, dur_us: dict[int, float] | None = None) -> float:
    """How long the window takes with other durations for some items, in us."""
    lag_ns = graph.lag_ns.copy()
    for item, us in (dur_us or {}).items():
        lag_ns[graph.nodes.item_end[item], ACTIVITY] = round(us * 1000)
    return graph.span_ns(graph.node_times(lag_ns)) / 1000


def launch(trace: TraceBuilder, launch_us: float, start_us: float, dur_us: float, **columns: Any) -> TraceBuilder:
    return trace.kernel(KERNEL, start_us, dur_us, launch_us=launch_us, **columns)


# --- one mechanism each ----------------------------------------------------------------------------------------------


def test_a_faster_kernel_that_the_cpu_waits_for_shortens_the_step_as_much() -> None:
    trace = launch(TraceBuilder().step(0, 1000), 0, 10, 890)
    trace.call("cudaStreamSynchronize", 100, 810)
    assert replay_us(build_graph(trace), {0: 390}) == 500


def test_a_faster_kernel_that_the_cpu_does_not_wait_for_shortens_nothing() -> None:
    trace = launch(TraceBuilder().step(0, 1000), 0, 10, 400)
    trace.call("cudaGetDevice", 990, 5)
    assert replay_us(build_graph(trace), {0: 1}) == 1000


def test_the_next_kernel_on_the_stream_starts_earlier() -> None:
    trace = launch(launch(TraceBuilder(), 0, 10, 500), 10, 510, 100)
    assert replay_us(build_graph(trace), {0: 100}) == 600 - 400


def test_a_kernel_does_not_start_before_its_launch() -> None:
    trace = launch(launch(TraceBuilder(), 0, 10, 500), 600, 610, 100)
    assert replay_us(build_graph(trace), {0: 1}) == 700


def test_a_kernel_on_another_stream_does_not_wait() -> None:
    trace = launch(TraceBuilder(), 0, 10, 500)
    launch(trace, 10, 20, 590, stream=8)
    assert replay_us(build_graph(trace), {0: 1}) == 600


def test_a_stream_waits_for_an_event_of_another_stream() -> None:
    trace = launch(TraceBuilder(), 0, 10, 500)
    wait = trace.call("cudaStreamWaitEvent", 8, 1)
    trace.sync("Stream Wait Event", 8, 1, stream=8, wait_stream=7, correlation=wait)
    launch(trace, 10, 512, 100, stream=8)
    assert replay_us(build_graph(trace), {0: 100}) == 602 - 400


def test_a_start_right_after_an_end_on_another_stream_is_taken_for_a_wait() -> None:
    trace = launch(TraceBuilder(), 0, 10, 500)
    launch(trace, 10, 512, 100, stream=8)
    assert replay_us(build_graph(trace), {0: 100}) == 602 - 400


def test_the_kernels_of_a_cuda_graph_follow_each_other() -> None:
    trace = TraceBuilder()
    one = trace.call("cudaGraphLaunch", 0, 50)
    trace.kernel(KERNEL, 100, 300, correlation=one).kernel(KERNEL, 402, 100, correlation=one, stream=9)
    assert replay_us(build_graph(trace), {0: 100}) == 402 - 200


@pytest.mark.parametrize(("kind", "saved_us"), [("DtoH", 300), ("HtoD", 300), ("DtoD", 0)])
def test_a_copy_with_the_host_that_returns_after_its_end_waits_for_the_stream(kind: str, saved_us: float) -> None:
    trace = launch(TraceBuilder().step(0, 1000), 0, 10, 390)
    copy = trace.call("cudaMemcpyAsync", 50, 375)
    trace.memcpy(kind, 402, 20, correlation=copy)
    trace.call("cudaGetDevice", 990, 10)
    assert replay_us(build_graph(trace), {0: 90}) == 1000 - saved_us


def test_a_call_that_returns_during_its_copy_waits_until_the_copy_can_start() -> None:
    trace = launch(TraceBuilder().step(0, 1000), 0, 10, 390)
    trace.memcpy("HtoD", 402, 400, correlation=trace.call("cudaMemcpyAsync", 50, 370))
    trace.call("cudaGetDevice", 990, 10)
    assert replay_us(build_graph(trace), {0: 90}) == 1000 - 300


def test_a_full_launch_queue_makes_the_cpu_wait() -> None:
    trace = TraceBuilder().step(0, 60_000)
    for i in range(1100):
        # 1,024 launches run ahead, each further one waits until a kernel has started.
        at = 10 * i if i < 1024 else 10 * 1024 + 50 * (i - 1024)
        trace.kernel(KERNEL, 100 + 50 * i, 50, launch_us=at)
    trace.call("cudaGetDevice", 59_000, 1000)
    slow, fast = build_graph(trace), dict.fromkeys(range(1100), 5.0)
    assert replay_us(slow) == 60_000
    assert replay_us(slow, fast) <= 60_000


def test_an_idle_thread_continues_when_another_hands_work_on() -> None:
    trace = launch(TraceBuilder().step(0, 1000), 0, 10, 500)
    trace.call("cudaStreamSynchronize", 20, 500)  # the forward pass ends with a wait, then backward begins
    launch(trace, 600, 610, 100, thread=2)
    trace.call("cudaStreamSynchronize", 620, 100, thread=2)
    launch(trace, 800, 810, 100)
    trace.call("cudaStreamSynchronize", 820, 180)
    assert replay_us(build_graph(trace), {0: 100}) == 1000 - 400


def test_a_busy_thread_does_not_wait_for_another() -> None:
    trace = TraceBuilder().step(0, 1000)
    launch(trace, 0, 10, 500)
    trace.call("cudaStreamSynchronize", 20, 500)
    trace.op("aten::mm", 5, 900, thread=2)
    launch(trace, 1, 511, 5, thread=2)
    launch(trace, 600, 610, 390, thread=2)
    assert replay_us(build_graph(trace), {0: 100}) == 1000


def test_threads_that_launch_nothing_hand_no_work_on() -> None:
    trace = launch(TraceBuilder().step(0, 1000), 0, 10, 500)
    trace.call("cudaStreamSynchronize", 20, 500)
    trace.call("cudaEventQuery", 590, 5, thread=3)  # a watchdog
    launch(trace, 600, 610, 100)
    trace.call("cudaStreamSynchronize", 620, 380)
    assert replay_us(build_graph(trace), {0: 100}) == 1000 - 400


def test_items_queued_before_the_window_delay_it_still() -> None:
    trace = launch(TraceBuilder(), 0, 10, 990).step(1000, 1000)
    launch(trace, 20, 1000, 500)
    trace.call("cudaStreamSynchronize", 1200, 400)
    assert replay_us(build_graph(trace)) == 500  # the step begins when the GPU has done what was launched before it


# --- laws ------------------------------------------------------------------------------------------------------------


@given(st.one_of(any_file(), lawful_file()))
def test_without_edits_a_trace_takes_as_long_as_recorded(file: dict[str, Any]) -> None:
    rank = rank_of(file)
    if not len(rank.window):
        return
    graph = graph_of(rank.trace, rank.window)
    assert graph.span_ns(graph.node_times()) == rank.window_ns


@given(any_file())
def test_predecessors_come_earlier_and_no_node_is_delayed(file: dict[str, Any]) -> None:
    rank = rank_of(file)
    if not len(rank.window):
        return
    graph = graph_of(rank.trace, rank.window)
    nodes = np.arange(len(graph.predecessor))[:, None]
    assert (graph.predecessor < nodes).all()
    times_ns = graph.node_times()
    assert (times_ns <= graph.nodes.time_ns).all()  # where clocks disagree, nodes may happen earlier, never later


@given(lawful_file(), st.randoms())
def test_a_faster_kernel_never_makes_the_window_longer(file: dict[str, Any], random: Any) -> None:
    rank = rank_of(file)
    graph = graph_of(rank.trace, rank.window)
    begun = graph.nodes.time_ns[graph.nodes.item_start]
    items = np.flatnonzero(begun >= rank.window[0, 0]).tolist()
    dur_us = (graph.nodes.time_ns[graph.nodes.item_end] - begun) / 1000
    faster_us = {item: dur_us[item] * random.choice((0, 0.3, 1)) for item in items if random.random() < 0.5}
    assert replay_us(graph, faster_us) <= rank.window_ns / 1000


@given(lawful_file(), st.integers(-(10**6), 10**6), st.randoms())
def test_a_time_shift_and_the_order_of_the_file_change_nothing(file: dict[str, Any], shift: int, random: Any) -> None:
    events = list(file["traceEvents"])
    random.shuffle(events)
    first, second = rank_of(file), rank_of(file | {"traceEvents": events}, shift_us=shift)

    def without_gpu_ns(rank: Rank) -> int:
        graph = graph_of(rank.trace, rank.window)
        lag_ns = graph.lag_ns.copy()
        lag_ns[graph.nodes.item_end, ACTIVITY] = 0
        return graph.span_ns(graph.node_times(lag_ns))

    assert without_gpu_ns(first) == without_gpu_ns(second)


@pytest.mark.parametrize("shift_us", [-10_000, 10_000])
def test_items_that_start_together_have_one_order_whenever_they_run(shift_us: float) -> None:
    # One of them has no launch, whose time would come before or after that of the other's.
    trace = TraceBuilder().step(0, 100).kernel("without_launch", 10, 5).kernel("launched", 10, 5, launch_us=5)
    graph, shifted = (
        graph_of(rank.trace, rank.window) for rank in (rank_of(trace.to_dict(), 1, s) for s in (0, shift_us))
    )
    assert graph.nodes.launch.tolist() == shifted.nodes.launch.tolist()
    assert np.array_equal(graph.predecessor, shifted.predecessor)


# --- the kernel ------------------------------------------------------------------------------------------------------


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes = draw(st.integers(0, 20))
    predecessor = [[draw(st.integers(-1, max(i - 1, -1))) for _ in range(longest_path.SLOTS)] for i in range(nodes)]
    lag_ns = [[draw(st.integers(-100, 100)) for _ in range(longest_path.SLOTS)] for _ in range(nodes)]
    earliest = [draw(st.integers(-1000, 1000)) for _ in range(nodes)]
    shape = (nodes, longest_path.SLOTS)
    return (
        np.array(predecessor, np.int32).reshape(shape),
        np.array(lag_ns, np.int64).reshape(shape),
        np.array(earliest, np.int64),
    )


@given(_graphs())
def test_the_library_and_python_agree(arrays: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    predecessor, lag_ns, earliest = arrays
    relaxed = earliest.copy()
    assert longest_path.relax_nodes(predecessor, lag_ns, relaxed)
    assert longest_path.longest_path(predecessor, lag_ns, earliest).tolist() == relaxed.tolist()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("predecessor", [0, 1, 5, 2**31 - 1])
def test_a_predecessor_that_does_not_come_earlier_is_refused(predecessor: int) -> None:
    waiting = np.full((1, longest_path.SLOTS), predecessor, np.int32)
    with pytest.raises(ValueError, match="waits for itself or for a later one"):
        longest_path.longest_path(waiting, waiting.astype(np.int64), np.zeros(1, np.int64))


@pytest.mark.usefixtures("each_way")
def test_a_node_happens_when_the_latest_of_its_predecessors_allows() -> None:
    one = np.ones((2, longest_path.SLOTS), np.int64)
    assert longest_path.longest_path(np.array([[-1] * 3, [0] * 3], np.int32), 5 * one, one[:, 0]).tolist() == [1, 6]
