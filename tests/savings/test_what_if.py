"""What fixes save: the CPU's waits for the GPU, the gates of a replay, and replays of real traces."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.savings import what_if
from perfdoctor.savings.edits import remove_cpu_time, scale_durations, shorten_launches
from perfdoctor.savings.what_if import Gates
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import CallRows, GpuRows

KERNEL = "ampere_sgemm_128x64_nn"


def wait_us(trace: TraceBuilder) -> float | None:
    ns = Rank(trace.trace()).cpu_wait_ns
    return None if ns is None else ns / 1000


def one_step(gpu_until: float, cpu_until: float) -> TraceBuilder:
    """One step: a kernel launched at 0, and an op that ends the CPU's work."""
    trace = TraceBuilder().step(0, 1000).kernel(KERNEL, 0, gpu_until, launch_us=0)
    return trace.op("aten::add", 10, cpu_until - 10)


def add_call(trace: TraceBuilder, name: str, start_us: float, dur_us: float) -> TraceBuilder:
    trace.call(name, start_us, dur_us)
    return trace


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "hipEventSynchronize"])
def test_time_in_synchronize_calls_is_waiting(name: str) -> None:
    assert wait_us(add_call(one_step(800, 1000), name, 500, 300)) == 300


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "hipModuleLaunchKernel", "cudaGraphLaunch"])
@pytest.mark.parametrize(("queued", "duration_us", "expected_us"), [(300, 101, 101), (300, 10, 0), (10, 101, 0)])
def test_a_long_launch_before_a_full_queue_is_waiting_and_others_are_not(
    name: str, queued: int, duration_us: float, expected_us: float
) -> None:
    trace = one_step(600, 1000)
    for i in range(queued):
        trace.kernel(KERNEL, 605 + i, 1, correlation=trace.call(name, i, 1))
    trace.kernel(KERNEL, 950, 1, correlation=trace.call(name, 500, duration_us))
    trace.call("cudaGetDevice", 1500, 5)
    assert wait_us(trace) == expected_us


def test_a_copy_that_returns_while_it_runs_waited_until_it_began() -> None:
    trace = one_step(500, 1000)
    trace.memcpy("HtoD", 500, 300, correlation=trace.call("cudaMemcpyAsync", 100, 425))
    assert wait_us(trace) == 400


def test_a_copy_that_returns_with_its_data_is_waiting() -> None:
    trace = one_step(500, 1000)
    trace.memcpy("DtoH", 500, 20, correlation=trace.call("cudaMemcpyAsync", 100, 425))
    assert wait_us(trace) == 425


def test_the_cpu_does_not_wait_for_a_copy_within_the_device() -> None:
    trace = one_step(500, 1000)
    trace.memcpy("DtoD", 500, 20, correlation=trace.call("cudaMemcpyAsync", 100, 425))
    assert wait_us(trace) == 0


def test_gpu_work_after_the_last_event_of_the_cpu_is_waiting() -> None:
    assert wait_us(one_step(1000, 700)) == 300


def test_waiting_outside_the_steps_does_not_count() -> None:
    assert wait_us(add_call(one_step(800, 1000), "cudaDeviceSynchronize", 900, 500)) == 100


def test_overlapping_waits_of_two_threads_count_once() -> None:
    trace = add_call(one_step(800, 1000), "cudaStreamSynchronize", 500, 200)
    trace.call("cudaStreamSynchronize", 600, 200, thread=2)
    assert wait_us(trace) == 300


def test_without_calls_nothing_is_known_about_the_cpu() -> None:
    assert wait_us(TraceBuilder().kernel(KERNEL, 0, 10)) is None


# --- gates -----------------------------------------------------------------------------------------------------------


def gates_of(trace: TraceBuilder) -> Gates:
    replay = Rank(trace.trace()).replay
    assert replay is not None
    return replay.gates


def waits_for_kernels(*, launched: int = 10, unlaunched: int = 0) -> TraceBuilder:
    """Kernels of 90 us that the CPU waits for, and some whose launch was not recorded."""
    trace = TraceBuilder().step(0, 1000)
    for i in range(launched):
        trace.kernel(KERNEL, 10 + 90 * i, 90, launch_us=7 * i)
    for i in range(unlaunched):
        trace.kernel(KERNEL, 10 + 90 * i, 5, stream=9)
    return add_call(trace, "cudaStreamSynchronize", 80, 835)


def test_a_trace_whose_waits_are_explained_is_replayed() -> None:
    gates = gates_of(waits_for_kernels())
    assert (gates.relative_error, gates.known_launch_share, gates.reason) == (0, 1, None)
    assert gates.explained_wait_share > 0.95


def test_a_trace_without_some_launches_is_not_replayed() -> None:
    gates = gates_of(waits_for_kernels(launched=9, unlaunched=1))
    assert gates.known_launch_share == 0.9
    assert gates.reason == "the launches of 10% of the GPU's work were not recorded"


def test_a_trace_whose_waits_are_not_explained_is_not_replayed() -> None:
    trace = add_call(waits_for_kernels(), "cudaStreamSynchronize", 1100, 800).step(1000, 1000)
    trace.kernel(KERNEL, 1010, 10, launch_us=1000).kernel(KERNEL, 1890, 5, launch_us=1090)  # why so late?
    trace.call("cudaGetDevice", 1990, 5)
    gates = gates_of(trace)
    assert gates.explained_wait_share < 0.8
    assert gates.reason is not None
    assert gates.reason.endswith("of the CPU's waits are explained by the GPU's work")


def test_negligible_waits_need_no_explanation() -> None:
    trace = TraceBuilder().step(0, 10_000).kernel(KERNEL, 10, 5, launch_us=0)
    trace.call("cudaStreamSynchronize", 5000, 50)
    trace.call("cudaGetDevice", 9990, 5)
    gates = gates_of(trace)
    assert (gates.explained_wait_share, gates.reason) == (0, None)


@pytest.mark.parametrize("trace", [TraceBuilder().kernel(KERNEL, 0, 10), TraceBuilder().op("aten::mm", 0, 10)])
def test_without_calls_or_kernels_there_is_nothing_to_replay(trace: TraceBuilder) -> None:
    assert Rank(trace.trace()).replay is None


def test_of_a_long_trace_steps_in_the_middle_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TraceBuilder()
    for i in range(10):
        trace.step(1000 * i, 1000).kernel(KERNEL, 1000 * i + 10, 10, launch_us=1000 * i)
        trace.call("cudaGetDevice", 1000 * i + 990, 5)
    monkeypatch.setattr(what_if, "MAX_EVENTS", 10)
    replay = Rank(trace.trace()).replay
    assert replay is not None
    assert replay.baseline_window_ns == 3_000_000
    assert replay.step_ns() == replay.baseline_step_ns == 1_000_000


def many_small_ops(count: int = 100) -> TraceBuilder:
    """Steps of 1000 us: ops of 9 us that launch one kernel of 1 us each, and a wait at the end that finds it done."""
    trace = TraceBuilder()
    for step in range(3):
        at = 1000 * step
        trace.step(at, 1000)
        for i in range(count):
            trace.op("aten::add", at + 9 * i, 9).kernel(KERNEL, at + 9 * i + 6, 1, launch_us=at + 9 * i + 3)
        trace.call("cudaStreamSynchronize", at + 950, 5)
    return trace


def test_savings_are_of_the_step_without_the_profiler_where_that_was_timed() -> None:
    trace = many_small_ops().trace()
    profiled = Rank(trace).replay
    unprofiled = Rank(trace, facts=CapturedFacts.parse({"base_step_ns": [700_000, 702_000, 698_000]})).replay
    assert profiled is not None
    assert unprofiled is not None
    assert (profiled.baseline_step_ns, profiled.includes_profiler) == (1_000_000, True)
    assert (unprofiled.baseline_step_ns, unprofiled.includes_profiler) == (700_000, False)
    assert unprofiled.step_ns() == 700_000
    launches = shorten_launches(CallRows(trace.calls, trace.match_rows(trace.calls, "Launch")), Rank(trace).window)
    assert 0 < 700_000 - unprofiled.step_ns([(launches, 1.0)]) < 1_000_000 - profiled.step_ns([(launches, 1.0)])


@pytest.mark.parametrize(("base_ns", "step_ns"), [([], 1_000_000), ([1_000_000], 1_000_000), ([2_000_000], 2_000_000)])
def test_no_overhead_is_removed_where_steps_without_the_profiler_are_not_shorter(
    base_ns: list[int], step_ns: int
) -> None:
    replay = Rank(many_small_ops().trace(), facts=CapturedFacts.parse({"base_step_ns": base_ns})).replay
    assert replay is not None
    assert (replay.baseline_step_ns, replay.includes_profiler) == (step_ns, True)


# --- real traces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("v100-bare-list-workers0", None),
        ("v100-ns-resolution/rank0", None),
        ("a100-sam-fp32", None),
        ("h100-nsfw-vit-bf16", None),
        ("h100-timesformer-bf16", None),
        ("b300-decode-graph", None),
        ("v100-df-index/rank1", None),
        ("mi300x-resnet-ddp", "the launches of 26% of the GPU's work were not recorded"),
        ("v100-bare-list-workers4", "the launches of 8% of the GPU's work were not recorded"),
        ("a100-negative-queue/rank0", "the launches of 11% of the GPU's work were not recorded"),
    ],
)
def test_which_real_traces_can_be_replayed(corpus: Path, name: str, why: str | None) -> None:
    replay = Rank(read_once(corpus / f"{name}.json.gz")).replay
    assert replay is not None
    assert replay.gates.relative_error == 0
    assert replay.gates.reason == why


def test_faster_convolutions_save_little_of_a_step_that_is_bound_by_the_cpu(corpus: Path) -> None:
    rank = Rank(read_once(corpus / "v100-bare-list-workers0.json.gz"))
    replay = rank.replay
    assert replay is not None
    slow = rank.kernel_classes.match_rows(lambda k: k.category == "convolution" and k.tensor_core == "no")
    slow &= iv.contains(rank.window, rank.trace.gpu.start_ns)
    kernel_time_ns = rank.per_step(int(rank.trace.gpu.dur_ns[slow].sum())) * 2 / 3
    saved_ns = replay.baseline_step_ns - replay.step_ns([(scale_durations(GpuRows(rank.trace.gpu, slow), 2 / 3), 1.0)])
    assert 0.15 * replay.baseline_step_ns < kernel_time_ns < 0.3 * replay.baseline_step_ns
    assert saved_ns < 0.1 * kernel_time_ns


def test_the_saving_of_a_loader_without_workers_is_about_what_workers_saved(corpus: Path) -> None:
    """208 ms a step without workers, 173 ms with four: the whole wait is a third more than that."""
    without, with_four = (Rank(read_once(corpus / f"v100-bare-list-workers{n}.json.gz")) for n in (0, 4))
    replay, waits = without.replay, without.loader_waits
    assert replay is not None
    measured_ns = replay.baseline_step_ns - with_four.per_step(with_four.window_ns)
    without_waits = remove_cpu_time(waits.thread, (waits.start_ns, waits.end_ns), without.window)
    saved_ns = replay.baseline_step_ns - replay.step_ns([(without_waits, 1.0)])
    assert 35e6 < measured_ns < 36e6
    assert measured_ns < saved_ns < 1.25 * measured_ns
