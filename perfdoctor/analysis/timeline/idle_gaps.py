"""Why the GPU had nothing to do: every gap between GPU items, and its cause by what the CPU did meanwhile.

The causes, in the order in which they take an instant:

- dataloader: the loop was inside a DataLoader's `__next__`;
- sync: a call had waited until the queue was empty. A sync that waited for t ns took away a lead of t ns, so at most
  t ns of the gap after it are its doing: what is longer would have been there without it;
- allocator: a cudaMalloc or cudaFree ran;
- communication: the CPU waited for a collective and did nothing else, or the next item had been queued in time but
  waited for an event of another stream, as every collective does;
- launch: the next item's launch call came after the gap had begun or still ran, or the device took its few
  microseconds between two items that were queued in time;
- unexplained: none of these. Where the next item had been queued, `IdleGaps.stall` says what is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.timeline.queue_stalls import DEVICE_LATENCY_NS, EVENT, NOT_HELD, find_queue_stalls
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# A blocking call returns this long after the item that it waited for ended, at most (seen on V100 and A100: up to 20
# us).
RETURN_LAG_NS = 20_000
# A copy call shorter than this only put the copy into the queue (an asynchronous copy takes 5 to 10 us to submit).
_BLOCKING_COPY_NS = 20_000


class IdleGaps(NamedTuple):
    """Gaps between GPU items over the whole trace, sorted by time; the last one ends with the trace.

    Attributes:
        start_ns: When the GPU ran dry.
        end_ns: When it had work again.
        next_item: Row of the GPU item that ends the gap, -1 where none does.
        launch: Row of its launch call, -1 where the file has none.
        sync: Row of the blocking call after which the queue was empty, or -1.
        blocked_ns: How long that call had waited, 0 without one.
        late: The launch call began after the gap had begun: the GPU was starved.
        stall: Why an item that had been queued did not start; see `held.HELD`.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    next_item: Int32Array
    launch: Int32Array
    sync: Int32Array
    blocked_ns: Int64Array
    late: BoolArray
    stall: Int8Array

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
    late = (launch >= 0) & (launch_start > start)
    held = find_queue_stalls(trace, start, end, next_item, ~late)
    return IdleGaps(start, end, next_item, launch, sync, blocked, late, held)


def _first_at(trace: Trace, at_ns: Int64Array) -> Int32Array:
    """For each instant the row of the GPU item that starts then, or first after it; -1 where none does.

    Of several that start together (streams do, and files with microseconds round) it is the one launched last, a kernel
    rather than a copy: so the answer does not depend on the order of the file.
    """
    gpu = trace.gpu
    never = -np.iinfo(np.int64).max
    launched = np.where(gpu.call >= 0, trace.calls.start_ns[gpu.call] if len(trace.calls) else never, never)
    order = np.lexsort((gpu.kind, -launched, gpu.start_ns))
    following = np.searchsorted(gpu.start_ns[order], at_ns)
    found = np.full(len(at_ns), NONE, np.int32)
    inside = following < len(gpu)
    found[inside] = order[following[inside]]
    return found


def blocking_calls(trace: Trace) -> BoolArray:
    """For each runtime call whether the CPU waited in it for the GPU.

    Synchronize calls, and copies from or to the host that returned only with their copy.
    """
    calls, gpu = trace.calls, trace.gpu
    blocking = trace.match_rows(calls, vocabulary.SYNC_CALL)
    copies = np.flatnonzero(copy_kinds_of(trace).with_host & (gpu.call >= 0))
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


def cause_layers(
    trace: Trace, gaps: IdleGaps, loading: Intervals, launching_thread: int = NONE
) -> Mapping[str, Intervals]:
    """For each cause but "unexplained" the instants that it may take, in order of precedence.

    Made for `intervals.partition`.
    """
    calls = trace.calls
    allocator = trace.match_rows(calls, vocabulary.ALLOCATOR_CALL)
    waiting = gaps.stall == EVENT
    return {
        "dataloader": loading,
        "sync": iv.union(gaps.start_ns, gaps.sync_end_ns),
        "allocator": iv.union(calls.start_ns[allocator], calls.end_ns[allocator]),
        "communication": iv.union_of(
            (iv.union(gaps.start_ns[waiting], gaps.end_ns[waiting]), _waits_for_ranks(trace, launching_thread))
        ),
        "launch": _launch_time(trace, gaps),
    }


def _waits_for_ranks(trace: Trace, launching_thread: int) -> Intervals:
    """Collectives on the CPU, and barriers: on the launching thread all of them, on others as far as it has no op."""
    own, others = [], []
    for table in (trace.ranges, trace.ops):
        waits = trace.match_rows(table, vocabulary.COLLECTIVE_WAIT)
        mine = waits & (table.thread == launching_thread)
        own.append(iv.union(table.start_ns[mine], table.end_ns[mine]))
        others.append(iv.union(table.start_ns[waits & ~mine], table.end_ns[waits & ~mine]))
    elsewhere = iv.union_of(others)
    if len(elsewhere):
        busy = trace.ops.thread == launching_thread
        elsewhere = iv.subtract(elsewhere, iv.union(trace.ops.start_ns[busy], trace.ops.end_ns[busy]))
    return iv.union_of((*own, elsewhere))


def _launch_time(trace: Trace, gaps: IdleGaps) -> Intervals:
    """What launching takes of the gaps: by the CPU until the call is through, by the device a few microseconds.

    Where the link to the launch is missing, the time in CPU events.
    """
    unlinked = gaps.launch < 0
    known = ~unlinked & (gaps.late | (gaps.stall == NOT_HELD))
    known |= unlinked & (gaps.next_item >= 0) & (gaps.end_ns - gaps.start_ns <= DEVICE_LATENCY_NS)
    certain = iv.union(gaps.start_ns[known], gaps.end_ns[known])
    holes = iv.union(gaps.start_ns[unlinked], gaps.end_ns[unlinked])
    tables = (trace.ops, trace.calls) if len(holes) else ()
    return iv.union_of((certain, *(iv.intersect(holes, iv.union(t.start_ns, t.end_ns)) for t in tables)))
