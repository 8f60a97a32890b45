"""The replay against a simulation that knows nothing of it: programs on two threads, whose kernels get faster."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfdoctor.rank import Rank
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.expected_step import replay_with_ratios
from perfdoctor.savings.what_if import replay_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import KERNEL
from perfdoctor.trace.tables.rows import GpuRows
from perfdoctor.trace.tables.steps import find_steps

GEMM = "ampere_sgemm_128x64_nn"
STEPS = 3


class Part(NamedTuple):
    """What a program does next: work of the CPU, launches, a wait for the GPU, or going on on another thread."""

    kind: Literal["work", "launch", "sync", "item", "thread"]
    amount: int = 0  # us of work or of each kernel; the thread


def simulate(program: list[Part], share: float = 1.0, trace: TraceBuilder | None = None) -> float:
    """How long a step takes in us where kernels take a share of their time; written to the trace if there is one."""
    cpu = gpu = begin = 0.0
    to = trace or TraceBuilder()
    for _ in range(STEPS):
        thread, begin = 1, cpu
        for kind, amount in program:
            if kind == "thread":
                thread, cpu = amount, cpu + 15
            elif kind == "work":
                to.op("aten::normal_", cpu, 0.98 * amount, thread=thread)
                cpu += amount
            elif kind == "launch":
                start = max(cpu + 3, gpu)
                to.op("aten::mm", cpu, 6, thread=thread)
                to.kernel(
                    GEMM, start, amount * share, correlation=to.call("cudaLaunchKernel", cpu + 1, 4, thread=thread)
                )
                gpu, cpu = start + amount * share, cpu + 7
            elif kind == "sync":
                end = max(cpu + 2, gpu + 1)
                to.call("cudaStreamSynchronize", cpu, end - cpu, thread=thread)
                cpu = end
            else:
                start = max(cpu + 4, gpu)
                end = max(start + 3, cpu + 7.5)
                to.op("aten::item", cpu, end + 2 - cpu, thread=thread)
                copy = to.call("cudaMemcpyAsync", cpu + 1, 5, thread=thread)
                to.memcpy("DtoH", start, 2, correlation=copy)
                to.call("cudaStreamSynchronize", cpu + 6.5, end - cpu - 6.5, thread=thread)
                gpu, cpu = start + 2, end + 3
        to.step(begin, cpu - begin)
    return cpu / STEPS


launches = st.builds(
    lambda us, count: [Part("launch", us)] * count, st.sampled_from([3, 20, 80, 400]), st.integers(1, 9)
)
others = st.builds(lambda kind, us: [Part(kind, us)], st.sampled_from(["work", "sync", "item"]), st.integers(5, 2000))
threads = st.sampled_from([[Part("thread", 1)], [Part("thread", 2)]])
programs = st.builds(
    lambda parts, end, tail_us: [*sum(parts, [Part("work", 5)]), Part("thread", 1), Part(end), Part("work", tail_us)],
    st.lists(launches | launches | others | threads, min_size=2, max_size=8),
    st.sampled_from(["sync", "item"]),
    st.integers(5, 2000),
)


def check_replay(program: list[Part], share: float) -> None:
    """The replay takes as long as the simulation, within 3 % of the step, or the 2 us of a call that need not wait."""
    trace = TraceBuilder()
    now_us = simulate(program, 1.0, trace)
    rank = Rank(trace.trace())
    replay = replay_of(rank.trace, rank.steps, rank.window, iv.EMPTY)
    if replay is None or replay.gates.reason is not None:
        return
    kernels = GpuRows(rank.trace.gpu, np.flatnonzero(rank.trace.gpu.kind == KERNEL))
    after_us = replay.step_ns([(scale_durations(kernels, 1 - share), 1.0)]) / 1000
    assert after_us == pytest.approx(simulate(program, share), abs=max(0.03 * now_us, 2.01))


# A synchronize call that finds its work done takes less than a launch.
FOUND_DONE = [
    *(Part("work", 5), Part("launch", 20), Part("sync", 5)),
    *(Part("thread", 1), Part("item"), Part("work", 5)),
]
NO_CALL_FOUND_DONE = [Part("work", 5), Part("launch", 80), Part("thread", 1), Part("item"), Part("work", 5)]


@given(program=programs, share=st.floats(0.05, 0.9))
@example(program=FOUND_DONE, share=0.25)
@example(program=NO_CALL_FOUND_DONE, share=0.25)
def test_a_step_gets_as_much_faster_as_the_cpu_lets_it(program: list[Part], share: float) -> None:
    check_replay(program, share)


@given(program=programs, times=st.floats(0.05, 6))
def test_a_step_takes_as_long_as_kernels_of_another_device_make_it(program: list[Part], times: float) -> None:
    trace = TraceBuilder()
    now_us = simulate(program, 1.0, trace)
    rank = Rank(trace.trace())
    replay = replay_of(rank.trace, find_steps(rank.trace), rank.recorded_window, iv.EMPTY)
    if replay is None or replay.gates.reason is not None:
        return
    ratios = np.where(rank.trace.gpu.kind == KERNEL, times, 1.0)
    after_us = simulate(program, times)
    assert replay_with_ratios(replay, ratios, 1.0) / 1000 == pytest.approx(
        after_us, abs=max(0.03 * max(now_us, after_us), 2.01)
    )


@pytest.mark.parametrize("tail_us", [0, 60, 2000])
def test_a_thread_that_only_waits_goes_on_when_the_gpu_is_done(tail_us: int) -> None:
    program = [Part("thread", 2), *[Part("launch", 400)] * 6, Part("thread", 1), Part("sync"), Part("work", tail_us)]
    check_replay(program, 0.1)
