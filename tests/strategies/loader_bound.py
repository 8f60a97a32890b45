"""A loop whose steps wait for their batch, and the fix that takes the wait away."""

from __future__ import annotations

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.savings.edits import Edit, remove_cpu_time
from perfdoctor.testing import TraceBuilder

KERNEL = "ampere_sgemm_128x64_nn"


def loader_bound() -> Rank:
    """Each step of 1000 us: 600 of them wait for a batch, then kernels of 300 us that the CPU waits for."""
    trace = TraceBuilder()
    for i in range(4):
        at = 1000 * i
        trace.step(at, 1000)
        trace.call("cudaGetDevice", at, 5)
        trace.kernel(KERNEL, at + 630, 150, launch_us=at + 620).kernel(KERNEL, at + 780, 150, launch_us=at + 626)
        trace.call("cudaStreamSynchronize", at + 635, 300)
        trace.call("cudaGetDevice", at + 990, 5)
    return Rank(trace.trace())


def remove_loader_waits(rank: Rank) -> Edit:
    starts = np.arange(4) * 1_000_000 + 10_000
    return remove_cpu_time(np.zeros(4, np.int32), (starts, starts + 600_000), rank.window)
