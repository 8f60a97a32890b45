"""What a fix could save at most.

A kernel that gets faster shortens the step only as far as the CPU waits for the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfdoctor.diagnosis.idle import ON_DEVICE, blocking_calls
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.model import MEMCPY

if TYPE_CHECKING:
    from perfdoctor.diagnosis.run import RankRun
    from perfdoctor.trace.intervals import Intervals
    from perfdoctor.trace.model import BoolArray, Trace

# A launch takes 3 to 10 us. One that takes so long, with so many launched and not begun (CUDA queues 1,024), waited for
# room; else it loaded a module or a graph, which is the CPU's own work.
_FULL_QUEUE_NS = 100_000
_LEAST_QUEUE = 256
# A copy from pageable memory that begins so long after its call may have waited for its stream.
_LATE_COPY_NS = 20_000


def cpu_wait_ns(run: RankRun) -> int | None:
    """How long the CPU waited for the GPU in the window, in ns: the ceiling of all kernel-side savings together.

    Blocked time in synchronize and copy calls and before a full launch queue, plus the tail that the GPU worked on
    after the last CPU event of the window. With the CPU's own work unchanged no faster kernel can save more
    (Daydream, USENIX ATC'20, argues the same on a dependency graph). None when the trace has no calls: then nothing
    is known about the CPU.
    """
    trace, calls = run.trace, run.trace.calls
    if not len(calls) or not len(run.window):
        return None
    waits = blocking_calls(trace) | _before_full_queue(trace)
    blocked = iv.union_of((iv.union(calls.start_ns[waits], calls.end_ns[waits]), _before_copies(trace)))
    return iv.total(iv.intersect(blocked, run.window)) + _tail_ns(run)


def _before_full_queue(trace: Trace) -> BoolArray:
    """For each call whether it is a launch that waited for room in the queue."""
    calls, gpu = trace.calls, trace.gpu
    waits = np.zeros(len(calls), bool)
    linked = np.flatnonzero(gpu.call >= 0)
    launches, first = np.unique(gpu.call[linked], return_index=True)
    begun = np.sort(gpu.start_ns[linked[first]])
    depth = np.arange(1, len(launches) + 1) - np.searchsorted(begun, calls.end_ns[launches])
    waits[launches] = (calls.dur_ns[launches] > _FULL_QUEUE_NS) & (depth >= _LEAST_QUEUE)
    return waits


def _before_copies(trace: Trace) -> Intervals:
    """The time in copy calls before their copies began, for those that return while it runs."""
    calls, gpu = trace.calls, trace.gpu
    copies = np.flatnonzero((gpu.kind == MEMCPY) & (gpu.call >= 0) & ~trace.named(gpu, ON_DEVICE))
    called = calls.start_ns[gpu.call[copies]]
    late = (gpu.start_ns[copies] - called > _LATE_COPY_NS) & (gpu.start_ns[copies] < calls.end_ns[gpu.call[copies]])
    return iv.union(called[late], gpu.start_ns[copies[late]])


def _tail_ns(run: RankRun) -> int:
    """From the end of the last CPU event of the window to the end of the last GPU item in it."""
    end = int(run.window[-1, 1])
    last = max((_last_end(t.start_ns, t.end_ns, end) for t in (run.trace.ops, run.trace.calls)), default=end)
    gpu_end = _last_end(run.trace.gpu.start_ns, run.trace.gpu.end_ns, end)
    return max(0, gpu_end - last)


def _last_end(start: iv.Int64Array, end: iv.Int64Array, limit: int) -> int:
    inside = end[start < limit]
    return min(int(inside.max()), limit) if len(inside) else int(np.iinfo(np.int64).min)
