"""Idle gaps: every gap between GPU items, and its cause by what the CPU did meanwhile.

The causes, in the order of precedence: an instant goes to the first one that covers it.

- dataloader: the loop was inside a DataLoader's `__next__`;
- sync: a call waited until the queue was empty. A sync that waited t ns costs the CPU a lead of t ns, so it causes at
  most t ns of the gap after it: the rest would be there without the sync;
- allocator: a cudaMalloc or cudaFree ran;
- communication: the CPU waited for a collective and did nothing else, or the next item was in the queue but its stream
  waited for an event of another stream, as every collective does;
- launch: the next item's launch call began in the gap or still ran, or the device took its few microseconds between
  two items that were in the queue;
- unexplained: none of these. Where the next item was in the queue, `IdleGaps.stall` has what is known.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.analysis.timeline.queue_stalls import DEVICE_LATENCY_NS, StallCause, find_queue_stalls
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# A blocking call returns at most this long after the end of the item that it waited for (V100 and A100: up to 20 us).
RETURN_LAG_NS = 20_000
# A copy call shorter than this only put the copy into the queue (an asynchronous copy takes 5 to 10 us to submit).
_BLOCKING_COPY_NS = 20_000


@frozen_dataclass(eq=False)
class IdleGaps:
    """Gaps between GPU items over the whole trace, sorted by time; the last one ends with the trace.

    For example, with one sync of 30 us that ends at 105::

        start_ns  end_ns   next_item  launch  sync  sync_wait_ns  late_launch  stall
        100_000   140_000  1          7       6     30_000        True         NO_STALL
        200_000   202_000  2          8       NONE  0             False        NO_STALL
        300_000   900_000  3          9       NONE  0             False        UNKNOWN

    Attributes:
        start_ns: When the GPU ran dry.
        end_ns: When it had work again.
        next_item: Row of the GPU item that ends the gap; NONE where none does.
        launch: Row of the call that launched this item; NONE where the file has none.
        sync: Row of the blocking call in which the queue ran empty, or NONE.
        sync_wait_ns: How long this call waited; 0 without one.
        late_launch: Whether the launch call began after the start of the gap: the GPU starved.
        stall: Why an item that was in the queue did not start, a StallCause.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    next_item: Int32Array
    launch: Int32Array
    sync: Int32Array
    sync_wait_ns: Int64Array
    late_launch: BoolArray
    stall: Int8Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def sync_idle_end_ns(self) -> Int64Array:
        """For each gap the end of the part that its sync causes; the start of the gap where there is no sync."""
        result: Int64Array = np.minimum(self.end_ns, self.start_ns + self.sync_wait_ns)
        return result

    def late_launch_time(self, min_ns: float = 0, below_ns: float = np.inf) -> Intervals:
        """When the GPU starved before a late launch, in gaps of a length from `min_ns` to below `below_ns`."""
        length = self.end_ns - self.start_ns
        rows = self.late_launch & (length >= min_ns) & (length < below_ns)
        return iv.union(self.start_ns[rows], self.end_ns[rows])


def find_idle_gaps(trace: Trace) -> IdleGaps:
    """The gaps between the GPU items of a trace."""
    gpu, calls = trace.gpu, trace.calls
    first_ns, last_ns = trace.extent_ns
    start, end = iv.gaps(iv.union(gpu.start_ns, gpu.end_ns), first_ns, max(last_ns, first_ns)).T
    next_item = _first_items_from(trace, end)
    launch = np.where(next_item >= 0, gpu.call[next_item] if len(gpu) else NONE, NONE).astype(np.int32)
    launch_ns = np.where(launch >= 0, calls.start_ns[launch] if len(calls) else 0, np.iinfo(np.int64).max)
    sync = _find_draining_syncs(trace, start, launch_ns)
    sync_wait = np.where(sync >= 0, calls.dur_ns[sync] if len(calls) else 0, 0)
    late_launch = (launch >= 0) & (launch_ns > start)
    stall = find_queue_stalls(trace, start, end, next_item, ~late_launch)
    return IdleGaps(start, end, next_item, launch, sync, sync_wait, late_launch, stall)


def _first_items_from(trace: Trace, at_ns: Int64Array) -> Int32Array:
    """For each instant the row of the first GPU item that starts then or later; NONE where none does.

    Of several items with the same start (of several streams, or because a file rounds to microseconds) it is the one
    that was launched last, a kernel rather than a copy, and of those launched in the same microsecond the one with the
    lowest correlation: so the answer does not depend on the order of the file.
    """
    gpu, calls = trace.gpu, trace.calls
    unknown = -np.iinfo(np.int64).max
    launch_ns = np.where(gpu.call >= 0, calls.start_ns[gpu.call] if len(calls) else unknown, unknown)
    order = np.lexsort((gpu.stream, gpu.device, gpu.correlation, gpu.kind, -launch_ns, gpu.start_ns))
    position = np.searchsorted(gpu.start_ns[order], at_ns)
    item = np.full(len(at_ns), NONE, np.int32)
    exists = position < len(gpu)
    item[exists] = order[position[exists]]
    return item


def match_blocking_calls(trace: Trace) -> BoolArray:
    """For each runtime call whether the CPU waited in it for the GPU.

    These are synchronize calls, and copies from or to the host whose call returned only when the copy was done.
    """
    calls, gpu = trace.calls, trace.gpu
    blocking = trace.match_rows(calls, vocabulary.SYNC_CALL)
    copies = np.flatnonzero(copy_kinds_of(trace).with_host & (gpu.call >= 0))
    call = gpu.call[copies]
    waited = (gpu.end_ns[copies] <= calls.end_ns[call] + RETURN_LAG_NS) & (calls.dur_ns[call] > _BLOCKING_COPY_NS)
    blocking[call[waited]] = True
    return blocking


def _find_draining_syncs(trace: Trace, gap_start_ns: Int64Array, launch_ns: Int64Array) -> Int32Array:
    """For each gap the row of the blocking call in which the queue ran empty, or NONE."""
    calls = trace.calls
    rows = np.flatnonzero(match_blocking_calls(trace)).astype(np.int32)
    sync = np.full(len(gap_start_ns), NONE, np.int32)
    if not len(rows):
        return sync
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    # Several threads may wait: of the calls that began before the gap the one that ends last counts.
    begun = np.searchsorted(calls.start_ns[rows], gap_start_ns, side="right") - 1
    candidate = rows[_running_argmax(calls.end_ns[rows])[np.maximum(begun, 0)]]
    drains = (begun >= 0) & (gap_start_ns <= calls.end_ns[candidate] + RETURN_LAG_NS)
    drains &= launch_ns >= calls.start_ns[candidate]  # an item launched before the sync did not wait for it
    sync[drains] = candidate[drains]
    return sync


def _running_argmax(values: Int64Array) -> Int64Array:
    """For each position that of the largest value up to there, of equal values the last: 3 5 4 5 6 gives 0 1 1 3 4."""
    largest = np.maximum.accumulate(values)
    return np.maximum.accumulate(np.where(values == largest, np.arange(len(values)), 0))


def idle_cause_layers(
    trace: Trace, gaps: IdleGaps, loading: Intervals, launching_thread: int = NONE
) -> Mapping[str, Intervals]:
    """For each cause but "unexplained" the instants that it covers, in order of precedence, for `iv.partition`."""
    calls = trace.calls
    allocator = trace.match_rows(calls, vocabulary.ALLOCATOR_CALL)
    event_wait = gaps.stall == StallCause.EVENT_WAIT
    return {
        "dataloader": loading,
        "sync": iv.union(gaps.start_ns, gaps.sync_idle_end_ns),
        "allocator": iv.union(calls.start_ns[allocator], calls.end_ns[allocator]),
        "communication": iv.union_of(
            (iv.union(gaps.start_ns[event_wait], gaps.end_ns[event_wait]), _collective_waits(trace, launching_thread))
        ),
        "launch": _launch_time(trace, gaps),
    }


def _collective_waits(trace: Trace, launching_thread: int) -> Intervals:
    """When the CPU waited in collectives and barriers, and the launching thread did nothing else.

    On the launching thread that is all of their time, on other threads only the time in which this thread runs no op.
    """
    on_thread, on_others = [], []
    for table in (trace.ranges, trace.ops):
        waits = trace.match_rows(table, vocabulary.COLLECTIVE_WAIT)
        launching = waits & (table.thread == launching_thread)
        others = waits & ~launching
        on_thread.append(iv.union(table.start_ns[launching], table.end_ns[launching]))
        on_others.append(iv.union(table.start_ns[others], table.end_ns[others]))
    idle_waits = iv.union_of(on_others)
    if len(idle_waits):
        busy = trace.ops.thread == launching_thread
        idle_waits = iv.subtract(idle_waits, iv.union(trace.ops.start_ns[busy], trace.ops.end_ns[busy]))
    return iv.union_of((*on_thread, idle_waits))


def _launch_time(trace: Trace, gaps: IdleGaps) -> Intervals:
    """When the GPU was idle because of launching: until a late launch call, or for the device's few microseconds.

    Where a gap is not linked to a launch and is longer than that, its time in CPU events counts.
    """
    unlinked = gaps.launch < 0
    certain = ~unlinked & (gaps.late_launch | (gaps.stall == StallCause.NO_STALL))
    certain |= unlinked & (gaps.next_item >= 0) & (gaps.end_ns - gaps.start_ns <= DEVICE_LATENCY_NS)
    layers = [iv.union(gaps.start_ns[certain], gaps.end_ns[certain])]
    if unlinked.any():
        unlinked_gaps = iv.union(gaps.start_ns[unlinked], gaps.end_ns[unlinked])
        layers += [iv.intersect(unlinked_gaps, iv.union(t.start_ns, t.end_ns)) for t in (trace.ops, trace.calls)]
    return iv.union_of(layers)
