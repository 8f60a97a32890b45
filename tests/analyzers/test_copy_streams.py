"""Copies that a fix moves to a stream of their own keep their time: no step gets shorter than they take."""

from __future__ import annotations

import numpy as np
from rule_cases import TENSOR_GEMM

from perfdoctor.analyzers.pd109_transfer_bound import TransferBound
from perfdoctor.rank import Rank
from perfdoctor.rules import Run
from perfdoctor.savings.edits import remove_cause, set_durations
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.rows import GpuRows


def steps_with_copies() -> TraceBuilder:
    """Steps of 10 ms: a copy of 3 ms, then kernels of 6 ms on its stream, for which the CPU waits."""
    trace = TraceBuilder()
    for number in range(3):
        at = 10_000 * number
        trace.step(at, 10_000).op("aten::to", at + 5, 20)
        trace.memcpy("HtoD", at + 20, 3000, 75_000_000, launch_us=at + 10, pinned=True)
        trace.kernel(TENSOR_GEMM, at + 3020, 6000, launch_us=at + 30)
        trace.call("cudaStreamSynchronize", at + 50, 8980)
    return trace


def test_no_step_is_shorter_than_the_copies_beside_the_kernels() -> None:
    rank = Rank(steps_with_copies().trace())
    [found] = TransferBound().analyze(Run((rank,)))
    replay, edit = rank.replay, found.edit
    assert replay is not None
    assert replay.gates.reason is None
    assert edit is not None
    assert [(each.resource, each.busy_ns) for each in edit.moved] == [("copies from the host", 3_000_000)]
    quick = set_durations(GpuRows(rank.trace.gpu, np.arange(len(rank.trace.gpu))), 0.0)
    assert replay.step_ns([(edit, 1.0), (quick, 1.0)]) == 3_000_000
    assert replay.step_ns([(remove_cause(edit), 1.0), (quick, 1.0)]) < 3_000_000
