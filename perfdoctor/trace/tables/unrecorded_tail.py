"""Launches at the end of a recording that stopped before the GPU came to them."""

from __future__ import annotations

import numpy as np

from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import Trace

# A launch without an item also comes from a graph capture, or a kernel that the profiler dropped: a few prove nothing.
_MIN_LAUNCHES = 10


def find_unrecorded_tail(trace: Trace) -> Int64Array:
    """The launches, rows of `trace.calls`, whose GPU items the recording lacks as it ended while the GPU was behind.

    They come after all launches of recorded items, and before the last of these items ends. Empty where there are few:
    the CPU ran ahead of the GPU until the recording stopped. Nothing is known of what they launched, and the time that
    the CPU took for them is not time of the recorded work::

        CPU  launch A  launch B  launch C  launch D
        GPU            A         B                    end of the file: C and D are the tail
    """
    gpu, calls = trace.gpu, trace.calls
    linked = gpu.call >= 0
    if not linked.any():
        return np.empty(0, np.int64)
    rows = np.flatnonzero(calls.start_ns > calls.start_ns[gpu.call[linked]].max())
    rows = rows[trace.match_rows(calls, vocabulary.KERNEL_LAUNCH_CALL)[rows]]
    is_tail = len(rows) >= _MIN_LAUNCHES and calls.start_ns[rows[-1]] < gpu.end_ns[linked].max()
    return rows if is_tail else rows[:0]
