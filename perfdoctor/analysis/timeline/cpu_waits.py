"""When the CPU waits for the GPU, which limits what faster kernels can save."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import match_blocking_calls
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# A launch takes 3 to 10 us. A longer one waited for room if this many items were queued (CUDA queues 1,024);
# else it loaded a module or a graph, which is work of the CPU.
FULL_QUEUE_NS = 100_000
FULL_QUEUE_LENGTH = 256
# A copy from pageable memory that starts so long after its call may have waited for its stream.
_LATE_COPY_NS = 20_000
# A time between two events is known once both have happened, so that programs wait for them first. Where the recording
# lacks that wait, it is a break of the thread which ends so soon after GPU work does.
_BREAK_NS, _SOON_NS = 100_000, 200_000


def cpu_waits_of(trace: Trace) -> Intervals:
    """When the CPU waited for the GPU: in synchronize and copy calls, for events, and before a full launch queue."""
    calls = trace.calls
    waits = match_blocking_calls(trace) | _waits_for_queue(trace)
    _, before_times = find_event_waits(trace)
    return iv.union_of((iv.union(calls.start_ns[waits], calls.end_ns[waits]), before_times, _waits_for_copies(trace)))


def find_event_waits(trace: Trace) -> tuple[Int64Array, Intervals]:
    """Waits for events that were not recorded as calls: the reads of times that they precede, and when they were.

    DistributedDataParallel measures its first ten iterations and one of each hundred so, before the forward pass, and
    the GPU has to do all of the backward pass until the CPU goes on (`should_collect_runtime_stats` in `reducer.cpp`).

    Returns:
        Rows of `trace.calls`, and the intervals from the last event of the thread before each to its start.
    """
    calls, gpu = trace.calls, trace.gpu
    reads = np.flatnonzero(trace.match_rows(calls, vocabulary.EVENT_TIME_CALL))
    if not len(reads) or not len(gpu):
        return reads[:0], iv.EMPTY
    before_ns = np.empty(len(reads), np.int64)
    for thread in distinct(calls.thread[reads]):
        tables = [(table, table.thread == thread) for table in (calls, trace.ops)]
        marks_ns = np.sort(np.concatenate([ns[at] for table, at in tables for ns in (table.start_ns, table.end_ns)]))
        mine = calls.thread[reads] == thread
        last = np.searchsorted(marks_ns, calls.start_ns[reads[mine]]) - 1
        before_ns[mine] = np.where(last >= 0, marks_ns[last], calls.start_ns[reads[mine]])
    start_ns, ended_ns = calls.start_ns[reads], np.sort(gpu.end_ns)
    last_end_ns = np.append(ended_ns, 0)[np.searchsorted(ended_ns, start_ns, side="right") - 1]
    waited = (start_ns - before_ns >= _BREAK_NS) & (last_end_ns > before_ns) & (start_ns - last_end_ns <= _SOON_NS)
    return reads[waited], iv.union(before_ns[waited], start_ns[waited])


def cpu_wait_ns(trace: Trace, cpu_waits: Intervals, window: Intervals) -> int:
    """How long the CPU waited for the GPU in a window, in ns: faster kernels together can save no more.

    The waits, plus the time that the GPU worked after the last CPU event of the window. The work of the CPU takes the
    rest, whatever the kernels do (Daydream, USENIX ATC'20, argues the same on a dependency graph). The window is not
    empty.
    """
    return iv.total(iv.intersect(cpu_waits, window)) + _tail_ns(trace, int(window[-1, 1]))


def _waits_for_queue(trace: Trace) -> BoolArray:
    """For each call whether it is a launch that waited for room in the queue."""
    calls, gpu = trace.calls, trace.gpu
    waits = np.zeros(len(calls), bool)
    linked = np.flatnonzero(gpu.call >= 0)
    launches, first = np.unique(gpu.call[linked], return_index=True)
    long = np.flatnonzero(calls.end_ns[launches] - calls.start_ns[launches] > FULL_QUEUE_NS)
    started = np.sort(gpu.start_ns[linked[first]], kind="stable")  # stable: they are nearly sorted already
    queued = long + 1 - np.searchsorted(started, calls.end_ns[launches[long]])
    waits[launches[long]] = queued >= FULL_QUEUE_LENGTH
    return waits


def _waits_for_copies(trace: Trace) -> Intervals:
    """The time in copy calls before their copies started, for copies that started late but before the call returned."""
    calls, gpu = trace.calls, trace.gpu
    copies = np.flatnonzero(copy_kinds_of(trace).with_host & (gpu.call >= 0))
    called = calls.start_ns[gpu.call[copies]]
    late = (gpu.start_ns[copies] - called > _LATE_COPY_NS) & (gpu.start_ns[copies] < calls.end_ns[gpu.call[copies]])
    return iv.union(called[late], gpu.start_ns[copies[late]])


def _tail_ns(trace: Trace, window_end_ns: int) -> int:
    """How much later than the last CPU event the last GPU item of the window ends, in ns."""
    cpu_end = max(_last_end(table.start_ns, table.end_ns, window_end_ns) for table in (trace.ops, trace.calls))
    gpu_end = _last_end(trace.gpu.start_ns, trace.gpu.end_ns, window_end_ns)
    return max(0, gpu_end - cpu_end)


def _last_end(start_ns: Int64Array, end_ns: Int64Array, limit_ns: int) -> int:
    """The latest end, at most the limit, of events that start before the limit; the earliest instant without any."""
    before = end_ns[: np.searchsorted(start_ns, limit_ns)]
    return min(int(before.max()), limit_ns) if len(before) else int(np.iinfo(np.int64).min)
