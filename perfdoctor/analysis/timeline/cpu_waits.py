"""When the CPU waits for the GPU: the ceiling of what faster kernels can save."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import match_blocking_calls
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# A launch takes 3 to 10 us. One that takes this long, with this many launched and not begun (CUDA queues 1,024), waited
# for room in the queue; else it loaded a module or a graph, which is the CPU's own work.
FULL_QUEUE_NS = 100_000
FULL_QUEUE_LENGTH = 256
# A copy from pageable memory that begins so long after its call may have waited for its stream.
_LATE_COPY_NS = 20_000


def cpu_waits_of(trace: Trace) -> Intervals:
    """When the CPU waited for the GPU: in synchronize and copy calls, and before a full launch queue."""
    calls = trace.calls
    waits = match_blocking_calls(trace) | _waits_for_queue(trace)
    return iv.union_of((iv.union(calls.start_ns[waits], calls.end_ns[waits]), _waits_for_copies(trace)))


def cpu_wait_ns(trace: Trace, cpu_waits: Intervals, window: Intervals) -> int:
    """How long the CPU waited for the GPU in some time, in ns: the ceiling of all kernel-side savings together.

    The waits, plus the tail that the GPU worked on after the last CPU event of the window. With the CPU's own work
    unchanged no faster kernel can save more (Daydream, USENIX ATC'20, argues the same on a dependency graph).

    Args:
        trace: The trace.
        cpu_waits: See `cpu_waits_of`.
        window: The time; not empty.
    """
    return iv.total(iv.intersect(cpu_waits, window)) + _tail_ns(trace, int(window[-1, 1]))


def _waits_for_queue(trace: Trace) -> BoolArray:
    """For each call whether it is a launch that waited for room in the queue."""
    calls, gpu = trace.calls, trace.gpu
    waits = np.zeros(len(calls), bool)
    linked = np.flatnonzero(gpu.call >= 0)
    launches, first = np.unique(gpu.call[linked], return_index=True)
    long = np.flatnonzero(calls.end_ns[launches] - calls.start_ns[launches] > FULL_QUEUE_NS)
    begun = np.sort(gpu.start_ns[linked[first]], kind="stable")  # they are nearly in order
    depth = long + 1 - np.searchsorted(begun, calls.end_ns[launches[long]])
    waits[launches[long]] = depth >= FULL_QUEUE_LENGTH
    return waits


def _waits_for_copies(trace: Trace) -> Intervals:
    """The time in copy calls before their copies began, for calls that return while the copy runs."""
    calls, gpu = trace.calls, trace.gpu
    copies = np.flatnonzero(copy_kinds_of(trace).with_host & (gpu.call >= 0))
    called = calls.start_ns[gpu.call[copies]]
    late = (gpu.start_ns[copies] - called > _LATE_COPY_NS) & (gpu.start_ns[copies] < calls.end_ns[gpu.call[copies]])
    return iv.union(called[late], gpu.start_ns[copies[late]])


def _tail_ns(trace: Trace, end: int) -> int:
    """From the end of the last CPU event before `end`, where the window ends, to that of the last GPU item in it."""
    last = max((_last_end(table.start_ns, table.end_ns, end) for table in (trace.ops, trace.calls)), default=end)
    gpu_end = _last_end(trace.gpu.start_ns, trace.gpu.end_ns, end)
    return max(0, gpu_end - last)


def _last_end(start: Int64Array, end: Int64Array, limit: int) -> int:
    inside = end[: np.searchsorted(start, limit)]
    return min(int(inside.max()), limit) if len(inside) else int(np.iinfo(np.int64).min)
