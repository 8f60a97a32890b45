"""Why the GPU had nothing to do: every gap between GPU items, and its cause by what the CPU did meanwhile.

The causes, in the order in which they take an instant (knowledge: the idle time of a step is worth nothing without
its cause):

- dataloader: the loop was inside a DataLoader's `__next__`;
- sync: a call had waited until the queue was empty. A sync that waited for t ns took away a lead of t ns, so at most
t ns of the gap after
  it are its doing: what is longer would have been there without it;
- allocator: a cudaMalloc or cudaFree ran;
- communication: the CPU waited for a collective;
- launch: the next item's launch call came after the gap had begun, or an item launched before took a few microseconds
to start;
- unexplained: none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Int64Array, Intervals
from perfdoctor.trace.model import MEMCPY, NONE, BoolArray, Int32Array, Trace

LOADER_RANGE = r"^enumerate\(DataLoader\)#"
_SYNC_CALL = r"^(cuda|hip)(Device|Stream|Event)Synchronize|^(cu|hip)(Ctx|Stream|Event)Synchronize"
ALLOCATOR_CALL = r"^(cuda|hip)(Malloc|Free)|^cu(MemAlloc|MemFree|MemCreate|MemMap|MemUnmap)"
# A copy within the device or between devices returns at once, however long its submission took.
_ON_DEVICE = r"DtoD|PtoP|DeviceToDevice"
_COMMUNICATION_WAIT = r"^(gloo:|c10d::(barrier|monitored_barrier)|ncclGroupEnd|mpi:)"

# A blocking call returns this long after the item that it waited for ended, at most (seen on V100 and A100: up to 20
# us).
RETURN_LAG_NS = 20_000
# A copy call shorter than this only put the copy into the queue (an asynchronous copy takes 5 to 10 us to submit).
_BLOCKING_COPY_NS = 20_000
# Between items that were queued in time the device itself takes 1 to 5 us (launch latency of A100 and H100).
DEVICE_LATENCY_NS = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class IdleGaps:
    """Gaps between GPU items over the whole trace, sorted by time.

    The last one is open-ended (until the last event of the trace).

    `next_item` is the row of the GPU item that ends the gap, `launch` the row of its launch call, `sync` the row of
    the blocking call after
    which the queue was empty, `blocked_ns` how long that call had waited; -1 and 0 where there is none. `late` says
    that the launch call
    began after the gap had begun: the GPU was starved.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    next_item: Int32Array
    launch: Int32Array
    sync: Int32Array
    blocked_ns: Int64Array
    late: BoolArray

    @property
    def sync_end_ns(self) -> Int64Array:
        """Where the part of each gap that its sync answers for ends."""
        return np.minimum(self.end_ns, self.start_ns + np.where(self.sync >= 0, self.blocked_ns, 0))

    def late_gaps(self, at_least_ns: float = 0, below_ns: float = np.inf) -> Intervals:
        """The gaps of some length that ended with a late launch."""
        length = self.end_ns - self.start_ns
        rows = self.late & (length >= at_least_ns) & (length < below_ns)
        return iv.union(self.start_ns[rows], self.end_ns[rows])


def find_gaps(trace: Trace) -> IdleGaps:
    """The gaps between the GPU items of a trace."""
    gpu = trace.gpu
    busy = iv.union(gpu.start_ns, gpu.end_ns)
    first, last = trace.extent_ns
    holes = iv.gaps(busy, first, max(last, first))
    start, end = holes[:, 0], holes[:, 1]
    next_item = _first_at(trace, end)
    launch = np.where(next_item >= 0, gpu.call[next_item] if len(gpu) else NONE, NONE).astype(np.int32)
    launch_start = np.where(
        launch >= 0, trace.calls.start_ns[launch] if len(trace.calls) else 0, np.iinfo(np.int64).max
    )
    sync = _drained_by(trace, start, launch_start)
    blocked = np.where(sync >= 0, trace.calls.dur_ns[sync] if len(trace.calls) else 0, 0)
    return IdleGaps(start, end, next_item, launch, sync, blocked, (launch >= 0) & (launch_start > start))


def _first_at(trace: Trace, at_ns: Int64Array) -> Int32Array:
    """For each instant the row of the GPU item that starts then, or first after it; -1 where none does.

    Of several that start together (streams do, and files with microseconds round) it is the one launched last, a kernel
    rather than a copy: so the answer does not depend on the order of the file.
    """
    gpu = trace.gpu
    never = -np.iinfo(np.int64).max
    launched = np.where(gpu.call >= 0, trace.calls.start_ns[gpu.call] if len(trace.calls) else never, never)
    order = np.lexsort((gpu.kind, -launched, gpu.start_ns))
    following = np.searchsorted(gpu.start_ns[order], at_ns, side="left")
    found = np.full(len(at_ns), NONE, np.int32)
    inside = following < len(gpu)
    found[inside] = order[following[inside]]
    return found


def blocking_calls(trace: Trace) -> BoolArray:
    """For each runtime call whether the CPU waited in it for the GPU.

    Synchronize calls, and copies from or to the host that returned only with their copy.
    """
    calls, gpu = trace.calls, trace.gpu
    blocking = trace.named(calls, _SYNC_CALL)
    copies = np.flatnonzero((gpu.kind == MEMCPY) & (gpu.call >= 0) & ~trace.named(gpu, _ON_DEVICE))
    call = gpu.call[copies]
    waited = (gpu.end_ns[copies] <= calls.end_ns[call] + RETURN_LAG_NS) & (calls.dur_ns[call] > _BLOCKING_COPY_NS)
    blocking[call[waited]] = True
    return blocking


def _drained_by(trace: Trace, gap_start: Int64Array, launch_start: Int64Array) -> Int32Array:
    """For each gap the row of the blocking call that the queue ran empty in, or -1."""
    calls = trace.calls
    rows = np.flatnonzero(blocking_calls(trace)).astype(np.int32)
    sync = np.full(len(gap_start), NONE, np.int32)
    if not len(rows):
        return sync
    # Of the calls that had begun when the gap began, the one that ends last: several threads may wait.
    order = np.argsort(calls.start_ns[rows], kind="stable")
    rows = rows[order]
    begun = np.searchsorted(calls.start_ns[rows], gap_start, side="right") - 1
    latest = _argmax_so_far(calls.end_ns[rows])
    candidate = rows[latest[np.maximum(begun, 0)]]
    fits = (begun >= 0) & (gap_start <= calls.end_ns[candidate] + RETURN_LAG_NS)
    fits &= launch_start >= calls.start_ns[candidate]  # an item launched before the sync did not wait for it
    sync[fits] = candidate[fits]
    return sync


def _argmax_so_far(values: Int64Array) -> Int64Array:
    reach = np.maximum.accumulate(values)
    return np.maximum.accumulate(np.where(values == reach, np.arange(len(values)), 0))


def cause_layers(trace: Trace, gaps: IdleGaps) -> Mapping[str, Intervals]:
    """For each cause but "unexplained" the instants that it may take, in order of precedence.

    Made for `intervals.partition`.
    """
    calls = trace.calls
    allocator = trace.named(calls, ALLOCATOR_CALL)
    waits = trace.named(trace.ranges, _COMMUNICATION_WAIT)
    loader = trace.named(trace.ranges, LOADER_RANGE)
    return {
        "dataloader": iv.union(trace.ranges.start_ns[loader], trace.ranges.end_ns[loader]),
        "sync": iv.union(gaps.start_ns, gaps.sync_end_ns),
        "allocator": iv.union(calls.start_ns[allocator], calls.end_ns[allocator]),
        "communication": iv.union(trace.ranges.start_ns[waits], trace.ranges.end_ns[waits]),
        "launch": _launch_time(trace, gaps),
    }


def _launch_time(trace: Trace, gaps: IdleGaps) -> Intervals:
    """Gaps that ended with a late launch, device latency between queued items, and, where the link is missing.

    The time in CPU events.
    """
    short = (gaps.end_ns - gaps.start_ns <= DEVICE_LATENCY_NS) & (gaps.next_item >= 0)
    known = gaps.late | short
    certain = iv.union(gaps.start_ns[known], gaps.end_ns[known])
    unlinked = gaps.launch < 0
    holes = iv.union(gaps.start_ns[unlinked], gaps.end_ns[unlinked])
    events = iv.union_of(iv.union(t.start_ns, t.end_ns) for t in (trace.ops, trace.calls))
    return iv.union_of((certain, iv.intersect(holes, events)))
