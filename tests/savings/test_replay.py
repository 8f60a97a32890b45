"""The replay: a trace played again comes out as it was, and what is changed has the effect that it would have had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import any_file, lawful_file, run_of

from perfdoctor.rank import Rank
from perfdoctor.savings import longest_path
from perfdoctor.savings.graph_edges import OWN, median_ns
from perfdoctor.savings.relax_nodes import relax_nodes
from perfdoctor.savings.replay_graph import Graph, graph_of
from perfdoctor.testing import TraceBuilder

KERNEL = "ampere_sgemm_128x64_nn"


@given(st.lists(st.integers(0, 1 << 17), min_size=1))
def test_the_median_of_times_is_that_of_numpy(took_ns: list[int]) -> None:
    assert median_ns(np.array(took_ns, np.int64)) == int(np.median(took_ns))


def graph(built: TraceBuilder | Rank) -> Graph:
    run = built if isinstance(built, Rank) else Rank(built.trace())
    return graph_of(run.trace, run.window)


def replayed_us(of: Graph, dur_us: dict[int, float] | None = None) -> float:
    """The window, with other durations for some items, in us."""
    lag = of.lag_ns.copy()
    for item, us in (dur_us or {}).items():
        lag[of.events.item_end[item], OWN] = round(us * 1000)
    return of.span_ns(of.node_times(lag)) / 1000


def launched(trace: TraceBuilder, launch_us: float, start_us: float, dur_us: float, **where: Any) -> TraceBuilder:
    return trace.kernel(KERNEL, start_us, dur_us, launch_us=launch_us, **where)


# --- one mechanism each ----------------------------------------------------------------------------------------------


def test_a_kernel_that_the_cpu_waits_for_shortens_the_step_by_all_that_it_gains() -> None:
    trace = launched(TraceBuilder().step(0, 1000), 0, 10, 890)
    trace.call("cudaStreamSynchronize", 100, 810)
    assert replayed_us(graph(trace), {0: 390}) == 500


def test_a_kernel_that_nobody_waits_for_shortens_nothing() -> None:
    trace = launched(TraceBuilder().step(0, 1000), 0, 10, 400)
    trace.call("cudaGetDevice", 990, 5)
    assert replayed_us(graph(trace), {0: 1}) == 1000


def test_a_kernel_behind_it_on_the_stream_comes_earlier() -> None:
    trace = launched(launched(TraceBuilder(), 0, 10, 500), 10, 510, 100)
    assert replayed_us(graph(trace), {0: 100}) == 600 - 400


def test_a_kernel_launched_late_does_not_come_before_its_launch() -> None:
    trace = launched(launched(TraceBuilder(), 0, 10, 500), 600, 610, 100)
    assert replayed_us(graph(trace), {0: 1}) == 700


def test_another_stream_goes_on_by_itself() -> None:
    trace = launched(TraceBuilder(), 0, 10, 500)
    launched(trace, 10, 20, 590, stream=8)
    assert replayed_us(graph(trace), {0: 1}) == 600


def test_a_stream_waits_for_the_event_that_it_was_told_to_wait_for() -> None:
    trace = launched(TraceBuilder(), 0, 10, 500)
    wait = trace.call("cudaStreamWaitEvent", 8, 1)
    trace.sync("Stream Wait Event", 8, 1, stream=8, wait_stream=7, correlation=wait)
    launched(trace, 10, 512, 100, stream=8)
    assert replayed_us(graph(trace), {0: 100}) == 602 - 400


def test_a_start_right_after_another_streams_end_is_taken_for_a_wait() -> None:
    trace = launched(TraceBuilder(), 0, 10, 500)
    launched(trace, 10, 512, 100, stream=8)
    assert replayed_us(graph(trace), {0: 100}) == 602 - 400


def test_the_kernels_of_a_graph_follow_each_other() -> None:
    trace = TraceBuilder()
    one = trace.call("cudaGraphLaunch", 0, 50)
    trace.kernel(KERNEL, 100, 300, correlation=one).kernel(KERNEL, 402, 100, correlation=one, stream=9)
    assert replayed_us(graph(trace), {0: 100}) == 402 - 200


@pytest.mark.parametrize(("kind", "waited"), [("DtoH", 300), ("HtoD", 300), ("DtoD", 0)])
def test_a_copy_with_the_host_that_returns_with_its_data_waits_for_the_stream(kind: str, waited: float) -> None:
    trace = launched(TraceBuilder().step(0, 1000), 0, 10, 390)
    copy = trace.call("cudaMemcpyAsync", 50, 375)
    trace.memcpy(kind, 402, 20, correlation=copy)
    trace.call("cudaGetDevice", 990, 10)
    assert replayed_us(graph(trace), {0: 90}) == 1000 - waited


def test_a_copy_that_returns_while_it_runs_waited_until_it_could_begin() -> None:
    trace = launched(TraceBuilder().step(0, 1000), 0, 10, 390)
    trace.memcpy("HtoD", 402, 400, correlation=trace.call("cudaMemcpyAsync", 50, 370))
    trace.call("cudaGetDevice", 990, 10)
    assert replayed_us(graph(trace), {0: 90}) == 1000 - 300


def test_a_whole_queue_holds_the_cpu_back() -> None:
    trace = TraceBuilder().step(0, 60_000)
    for i in range(1100):
        # 1,024 launches run ahead, each further one waits until a kernel has begun.
        at = 10 * i if i < 1024 else 10 * 1024 + 50 * (i - 1024)
        trace.kernel(KERNEL, 100 + 50 * i, 50, launch_us=at)
    trace.call("cudaGetDevice", 59_000, 1000)
    slow, fast = graph(trace), dict.fromkeys(range(1100), 5.0)
    assert replayed_us(slow) == 60_000
    assert replayed_us(slow, fast) <= 60_000


def test_a_thread_that_stood_idle_goes_on_when_the_other_hands_on() -> None:
    trace = launched(TraceBuilder().step(0, 1000), 0, 10, 500)
    trace.call("cudaStreamSynchronize", 20, 500)  # the forward pass ends with a wait, then backward begins
    launched(trace, 600, 610, 100, thread=2)
    trace.call("cudaStreamSynchronize", 620, 100, thread=2)
    launched(trace, 800, 810, 100)
    trace.call("cudaStreamSynchronize", 820, 180)
    assert replayed_us(graph(trace), {0: 100}) == 1000 - 400


def test_a_thread_that_was_at_work_does_not_wait_for_another() -> None:
    trace = TraceBuilder().step(0, 1000)
    launched(trace, 0, 10, 500)
    trace.call("cudaStreamSynchronize", 20, 500)
    trace.op("aten::mm", 5, 900, thread=2)
    launched(trace, 1, 511, 5, thread=2)
    launched(trace, 600, 610, 390, thread=2)
    assert replayed_us(graph(trace), {0: 100}) == 1000


def test_threads_that_launch_nothing_hand_nothing_on() -> None:
    trace = launched(TraceBuilder().step(0, 1000), 0, 10, 500)
    trace.call("cudaStreamSynchronize", 20, 500)
    trace.call("cudaEventQuery", 590, 5, thread=3)  # a watchdog
    launched(trace, 600, 610, 100)
    trace.call("cudaStreamSynchronize", 620, 380)
    assert replayed_us(graph(trace), {0: 100}) == 1000 - 400


def test_a_backlog_from_before_the_window_stays() -> None:
    trace = launched(TraceBuilder(), 0, 10, 990).step(1000, 1000)
    launched(trace, 20, 1000, 500)
    trace.call("cudaStreamSynchronize", 1200, 400)
    assert replayed_us(graph(trace)) == 500  # the step begins when the GPU has done what was launched before it


# --- laws ------------------------------------------------------------------------------------------------------------


@given(st.one_of(any_file(), lawful_file()))
def test_played_again_unchanged_a_trace_takes_as_long_as_it_took(file: dict[str, Any]) -> None:
    run = run_of(file)
    if not len(run.window):
        return
    again = graph_of(run.trace, run.window)
    assert again.span_ns(again.node_times()) == run.window_ns


@given(any_file())
def test_every_node_waits_for_earlier_ones_and_not_in_vain(file: dict[str, Any]) -> None:
    run = run_of(file)
    if not len(run.window):
        return
    of = graph_of(run.trace, run.window)
    nodes = np.arange(len(of.before))[:, None]
    assert (of.before < nodes).all()
    when = of.node_times()
    assert (when <= of.events.time_ns).all()  # clocks that are odd may let things come earlier, never later


@given(lawful_file(), st.randoms())
def test_a_faster_kernel_never_makes_the_window_longer(file: dict[str, Any], random: Any) -> None:
    run = run_of(file)
    of = graph_of(run.trace, run.window)
    begun = of.events.time_ns[of.events.item_start]
    items = np.flatnonzero(begun >= run.window[0, 0]).tolist()
    chosen = {i: of.events.durations[i] / 1000 * random.choice((0, 0.3, 1)) for i in items if random.random() < 0.5}
    assert replayed_us(of, chosen) <= run.window_ns / 1000


@given(lawful_file(), st.integers(-(10**6), 10**6), st.randoms())
def test_time_shift_and_order_of_the_file_change_nothing(file: dict[str, Any], shift: int, random: Any) -> None:
    events = list(file["traceEvents"])
    random.shuffle(events)
    first, second = run_of(file), run_of(file | {"traceEvents": events}, shift_us=shift)

    def free_ns(run: Rank) -> int:
        of = graph_of(run.trace, run.window)
        lag = of.lag_ns.copy()
        lag[of.events.item_end, OWN] = 0
        return of.span_ns(of.node_times(lag))

    assert free_ns(first) == free_ns(second)


# --- the kernel ------------------------------------------------------------------------------------------------------


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    nodes = draw(st.integers(0, 20))
    before = [[draw(st.integers(-1, max(i - 1, -1))) for _ in range(longest_path.SLOTS)] for i in range(nodes)]
    lag = [[draw(st.integers(-100, 100)) for _ in range(longest_path.SLOTS)] for _ in range(nodes)]
    earliest = [draw(st.integers(-1000, 1000)) for _ in range(nodes)]
    shape = (nodes, longest_path.SLOTS)
    return (
        np.array(before, np.int32).reshape(shape),
        np.array(lag, np.int64).reshape(shape),
        np.array(earliest, np.int64),
    )


@given(_graphs())
def test_machine_code_and_python_agree(given_graph: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    before, lag, earliest = given_graph
    longest_path.compiled.load()
    when = earliest.tolist()
    relax_nodes(len(when), before.ravel().tolist(), lag.ravel().tolist(), when)
    assert longest_path.longest_path(before, lag, earliest).tolist() == when


def test_a_node_that_waits_for_a_later_one_is_refused() -> None:
    longest_path.compiled.load()
    itself = np.zeros((1, longest_path.SLOTS), np.int32)
    with pytest.raises(ValueError, match="waits for itself or for a later one"):
        longest_path.longest_path(itself, itself.astype(np.int64), np.zeros(1, np.int64))


def test_a_trace_is_replayed_without_numba_once_that_is_compiled(tmp_path: Path) -> None:
    longest_path.compiled.load()
    trace = TraceBuilder().step(0, 100_000)
    for i in range(1500):
        trace.kernel(KERNEL, 40 * i + 20, 20, launch_us=40 * i)
    path = trace.write(tmp_path / "t.json")
    program = """
import sys, perfdoctor
from perfdoctor.savings import longest_path
replayed = [f.saving.basis for f in perfdoctor.analyze(sys.argv[1]).findings]
loaded = [name for name in ("numba", "torch") if name in sys.modules]
print("replayed" in replayed, longest_path.compiled.is_loaded(), loaded)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True True []\n", done.stdout + done.stderr


def test_without_numba_python_plays_the_trace_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> None:
        raise ImportError

    monkeypatch.setattr(longest_path, "_WORTH_LOADING", 0)
    monkeypatch.setattr(longest_path, "_WORTH_COMPILING", 0)
    monkeypatch.setattr(longest_path.compiled, "is_loaded", lambda: False)
    monkeypatch.setattr(longest_path.compiled, "load", cannot)
    one = np.ones((2, longest_path.SLOTS), np.int64)
    assert longest_path.longest_path(np.array([[-1] * 3, [0] * 3], np.int32), 5 * one, one[:, 0]).tolist() == [1, 6]
