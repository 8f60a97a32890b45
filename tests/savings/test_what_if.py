"""What fixes save: at most what the CPU waits for the GPU; by a replay, where the gates let it pass."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfdoctor
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


def step(gpu_until: float, cpu_until: float) -> TraceBuilder:
    """One step: a kernel launched at 0, and an op that ends the CPU's work."""
    trace = TraceBuilder().step(0, 1000).kernel(KERNEL, 0, gpu_until, launch_us=0)
    return trace.op("aten::add", 10, cpu_until - 10)


def called(trace: TraceBuilder, name: str, start_us: float, dur_us: float) -> TraceBuilder:
    trace.call(name, start_us, dur_us)
    return trace


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "hipEventSynchronize"])
def test_time_in_synchronize_calls_is_waiting(name: str) -> None:
    assert wait_us(called(step(800, 1000), name, 500, 300)) == 300


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "hipModuleLaunchKernel", "cudaGraphLaunch"])
@pytest.mark.parametrize(("queued", "took", "waited"), [(300, 101, 101), (300, 10, 0), (10, 101, 0)])
def test_a_long_launch_before_a_full_queue_is_waiting_and_others_are_not(
    name: str, queued: int, took: float, waited: float
) -> None:
    trace = step(600, 1000)
    for i in range(queued):
        trace.kernel(KERNEL, 605 + i, 1, correlation=trace.call(name, i, 1))
    trace.kernel(KERNEL, 950, 1, correlation=trace.call(name, 500, took))
    trace.call("cudaGetDevice", 1500, 5)
    assert wait_us(trace) == waited


def test_a_copy_that_returns_while_it_runs_waited_until_it_began() -> None:
    trace = step(500, 1000)
    trace.memcpy("HtoD", 500, 300, correlation=trace.call("cudaMemcpyAsync", 100, 425))
    assert wait_us(trace) == 400


def test_a_copy_that_returns_with_its_data_is_waiting() -> None:
    trace = step(500, 1000)
    trace.memcpy("DtoH", 500, 20, correlation=trace.call("cudaMemcpyAsync", 100, 425))
    assert wait_us(trace) == 425


def test_a_copy_within_the_device_is_no_waiting() -> None:
    trace = step(500, 1000)
    trace.memcpy("DtoD", 500, 20, correlation=trace.call("cudaMemcpyAsync", 100, 425))
    assert wait_us(trace) == 0


def test_what_the_gpu_still_works_on_after_the_cpus_last_event_is_waiting() -> None:
    assert wait_us(step(1000, 700)) == 300


def test_waiting_outside_the_steps_does_not_count() -> None:
    assert wait_us(called(step(800, 1000), "cudaDeviceSynchronize", 900, 500)) == 100


def test_overlapping_waits_of_two_threads_count_once() -> None:
    trace = called(step(800, 1000), "cudaStreamSynchronize", 500, 200)
    trace.call("cudaStreamSynchronize", 600, 200, thread=2)
    assert wait_us(trace) == 300


def test_without_calls_nothing_is_known_about_the_cpu() -> None:
    assert wait_us(TraceBuilder().kernel(KERNEL, 0, 10)) is None


# --- gates -----------------------------------------------------------------------------------------------------------


def gates_of(trace: TraceBuilder) -> Gates:
    replay = Rank(trace.trace()).replay
    assert replay is not None
    return replay.gates


def waiting(*, launched: int = 10, unlaunched: int = 0) -> TraceBuilder:
    """Kernels of 90 us that the CPU waits for; some of which nobody saw the launch."""
    trace = TraceBuilder().step(0, 1000)
    for i in range(launched):
        trace.kernel(KERNEL, 10 + 90 * i, 90, launch_us=7 * i)
    for i in range(unlaunched):
        trace.kernel(KERNEL, 10 + 90 * i, 5, stream=9)
    return called(trace, "cudaStreamSynchronize", 80, 835)


def test_a_trace_whose_waits_are_explained_is_replayed() -> None:
    gates = gates_of(waiting())
    assert (gates.error, gates.coverage, gates.why) == (0, 1, None)
    assert gates.explained_wait_share > 0.95


def test_a_trace_without_some_launches_is_not_replayed() -> None:
    gates = gates_of(waiting(launched=9, unlaunched=1))
    assert gates.coverage == 0.9
    assert gates.why == "the launches of 10% of the GPU's work were not recorded"


def test_a_trace_whose_waits_are_not_explained_is_not_replayed() -> None:
    trace = called(waiting(), "cudaStreamSynchronize", 1100, 800).step(1000, 1000)
    trace.kernel(KERNEL, 1010, 10, launch_us=1000).kernel(KERNEL, 1890, 5, launch_us=1090)  # why so late?
    trace.call("cudaGetDevice", 1990, 5)
    gates = gates_of(trace)
    assert gates.explained_wait_share < 0.8
    assert gates.why is not None
    assert gates.why.endswith("of the CPU's waits are explained by the GPU's work")


def test_waits_that_decide_nothing_need_no_explanation() -> None:
    trace = TraceBuilder().step(0, 10_000).kernel(KERNEL, 10, 5, launch_us=0)
    trace.call("cudaStreamSynchronize", 5000, 50)
    trace.call("cudaGetDevice", 9990, 5)
    gates = gates_of(trace)
    assert (gates.explained_wait_share, gates.why) == (0, None)


@pytest.mark.parametrize("trace", [TraceBuilder().kernel(KERNEL, 0, 10), TraceBuilder().op("aten::mm", 0, 10)])
def test_without_calls_or_kernels_there_is_nothing_to_replay(trace: TraceBuilder) -> None:
    assert Rank(trace.trace()).replay is None


def test_of_a_long_trace_steps_in_the_middle_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TraceBuilder()
    for i in range(10):
        trace.step(1000 * i, 1000).kernel(KERNEL, 1000 * i + 10, 10, launch_us=1000 * i)
        trace.call("cudaGetDevice", 1000 * i + 990, 5)
    monkeypatch.setattr(what_if, "MOST_EVENTS", 10)
    replay = Rank(trace.trace()).replay
    assert replay is not None
    assert replay.window_ns == 3_000_000
    assert replay.step_ns() == replay.now_ns == 1_000_000


def small_ops(count: int = 100) -> TraceBuilder:
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
    trace = small_ops().trace()
    profiled = Rank(trace).replay
    real = Rank(trace, facts={"base_step_ns": [700_000, 702_000, 698_000]}).replay
    assert profiled is not None
    assert real is not None
    assert (profiled.now_ns, profiled.profiled, real.now_ns, real.profiled) == (1_000_000, True, 700_000, False)
    assert real.step_ns() == 700_000
    launches = shorten_launches(CallRows(trace.calls, trace.match_rows(trace.calls, "Launch")), Rank(trace).window)
    assert 0 < 700_000 - real.step_ns([(launches, 1.0)]) < 1_000_000 - profiled.step_ns([(launches, 1.0)])


@pytest.mark.parametrize("base_ns", [[], [1_000_000], [2_000_000]])
def test_a_profiler_that_cost_nothing_is_not_taken_off(base_ns: list[int]) -> None:
    replay = Rank(small_ops().trace(), facts={"base_step_ns": base_ns}).replay
    assert replay is not None
    assert (replay.now_ns, replay.profiled) == (1_000_000, True)


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
    replay = Rank(perfdoctor.read(corpus / f"{name}.json.gz")).replay
    assert replay is not None
    assert replay.gates.error == 0
    assert replay.gates.why == why


def test_convolutions_of_a_step_that_the_cpu_sets_the_pace_of_save_no_tenth_of_their_time(corpus: Path) -> None:
    run = Rank(perfdoctor.read(corpus / "v100-bare-list-workers0.json.gz"))
    replay = run.replay
    assert replay is not None
    slow = run.kernel_classes.match_rows(lambda k: k.category == "convolution" and k.tensor_core == "no")
    slow &= iv.contains(run.window, run.trace.gpu.start_ns)
    naive_ns = run.per_step(int(run.trace.gpu.dur_ns[slow].sum())) * 2 / 3
    saved_ns = replay.now_ns - replay.step_ns([(scale_durations(GpuRows(run.trace.gpu, slow), 2 / 3), 1.0)])
    assert 0.15 * replay.now_ns < naive_ns < 0.3 * replay.now_ns
    assert saved_ns < 0.1 * naive_ns


def test_a_loader_without_workers_was_worth_about_what_workers_gained(corpus: Path) -> None:
    """208 ms a step without workers, 173 ms with four: a promise of all of the wait would be a third too much."""
    without, with_four = (Rank(perfdoctor.read(corpus / f"v100-bare-list-workers{n}.json.gz")) for n in (0, 4))
    replay, waits = without.replay, without.loader_waits
    assert replay is not None
    gained_ns = replay.now_ns - with_four.per_step(with_four.window_ns)
    gone = remove_cpu_time(waits.thread, (waits.start_ns, waits.end_ns), without.window)
    saved_ns = replay.now_ns - replay.step_ns([(gone, 1.0)])
    assert 35e6 < gained_ns < 36e6
    assert gained_ns < saved_ns < 1.25 * gained_ns
