"""How long the CPU waits for the GPU: the ceiling of what faster kernels can save."""

from __future__ import annotations

import pytest

from perfdoctor.diagnosis.gain import cpu_wait_ns
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.testing import TraceBuilder

KERNEL = "ampere_sgemm_128x64_nn"


def wait_us(trace: TraceBuilder) -> float | None:
    ns = cpu_wait_ns(RankRun(trace.trace()))
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
