"""Waits for events that no call records: the break before a time between two events is read."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoctor.analysis.timeline.cpu_waits import find_event_waits
from perfdoctor.rank import Rank
from perfdoctor.savings.edits import scale_durations
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import GpuRows

GEMM = "ampere_sgemm_128x64_nn"


def measured_steps(
    *, read: str = "cudaEventElapsedTime", read_us: float = 910, kernels_us: float = 800
) -> TraceBuilder:
    """Steps of 1 ms: a kernel is launched, and later a time is read; then comes 80 us of work on the CPU."""
    trace = TraceBuilder()
    for step in range(4):
        at = 1000 * step
        trace.step(at, 1000).kernel(GEMM, at + 100, kernels_us, launch_us=at + 20)
        trace.call(read, at + read_us, 2)
        trace.op("aten::empty", at + read_us + 5, 80)
    return trace


def test_the_break_before_a_time_is_read_is_a_wait_for_the_gpu() -> None:
    trace = measured_steps().trace()
    rows, waits = find_event_waits(trace)
    assert len(rows) == 4
    assert iv.total(waits) > 4 * 800_000
    assert iv.total(iv.intersect(waits, Rank(trace).cpu_waits)) == iv.total(waits)


def test_faster_kernels_end_that_wait() -> None:
    rank = Rank(measured_steps().trace())
    assert rank.replay is not None
    assert rank.replay.gates.reason is None
    halved = scale_durations(GpuRows(rank.trace.gpu, np.arange(4)), 0.5, is_upper_bound=False)
    assert rank.replay.baseline_step_ns - rank.replay.step_ns([(halved, 1.0)]) == pytest.approx(400_000, rel=0.05)


@pytest.mark.parametrize(
    "trace",
    [
        measured_steps(read="cudaGetDevice"),  # any other call: the thread does something without PyTorch
        measured_steps(read_us=90, kernels_us=1),  # hardly a break
        measured_steps(kernels_us=300),  # the GPU was done long before
    ],
    ids=["another-call", "no-break", "the-gpu-idles"],
)
def test_no_other_break_is_a_wait(trace: TraceBuilder) -> None:
    rows, waits = find_event_waits(trace.trace())
    assert not len(rows)
    assert not len(waits)
