"""Starvation: idle time before late launches, and its root: what emptied the queue of the GPU.

While the CPU launches ahead of the GPU, kernels wait in the queue. A sync, a wait for the DataLoader, an allocation or
a pause makes the CPU lose that lead. Then the GPU idles not only right behind it: every kernel that is shorter than its
launch leaves another gap, until the CPU has its lead back. All these gaps together are as long as the lead that was
lost, at most, and would not be there without the root. Only what is left has no root: there the CPU launches more
slowly than the GPU works throughout.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import IdleGaps
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# The CPU launches a kernel in 5 to 100 us, Python included. After a break of 1 ms between two launches it did something
# else. PD103 and PD104 have the same limit.
_PAUSE_NS = 1_000_000


class StarvationRoot(IntEnum):
    """What emptied the queue of the GPU."""

    NO_ROOT = 0  # nothing: launches take longer than kernels
    DATALOADER = 1  # the loop waited for its batch
    SYNC = 2  # a call waited until the GPU was through
    ALLOCATOR = 3  # a cudaMalloc or cudaFree ran
    PAUSE = 4  # the CPU did something other than launching
    START = 5  # the analysed time begins with an empty queue


@frozen_dataclass(eq=False)
class Starvation:
    """The idle time before late launches in the analysed window, cut where its root changes; sorted and disjoint.

    For example, a sync that waited for 30 us, and two gaps of 20 us after it::

        start_ns  end_ns   root     call
        100_000   120_000  SYNC     6
        150_000   160_000  SYNC     6
        160_000   170_000  NO_ROOT  NONE

    Attributes:
        start_ns, end_ns: The pieces of idle time.
        root: For each piece a StarvationRoot.
        call: For each piece the row of the sync that is its root; NONE for other roots.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    root: Int8Array
    call: Int32Array

    def time_after(self, root: StarvationRoot) -> Intervals:
        """The idle time with a root."""
        return self._time_of(self.root == root)

    def time_after_syncs(self, calls: Int32Array) -> Intervals:
        """The idle time whose root is one of some calls."""
        return self._time_of((self.root == StarvationRoot.SYNC) & np.isin(self.call, calls, kind="table"))

    def _time_of(self, rows: BoolArray) -> Intervals:
        return iv.union(self.start_ns[rows], self.end_ns[rows])


def find_starvation(trace: Trace, gaps: IdleGaps, loading: Intervals, window: Intervals) -> Starvation:
    """The idle time before late launches, by what emptied the queue.

    The window is not empty.
    """
    late = np.flatnonzero(gaps.late_launch | (gaps.sync >= 0))  # no launch follows the last sync of a program
    start_ns, end_ns = gaps.start_ns[late], gaps.end_ns[late]
    root, lost_ns = _roots_of_gaps(trace, gaps, late, loading, window)
    # Each gap belongs to the last root up to it, as long as some of the lost lead is left.
    origin = np.maximum.accumulate(np.where(root != StarvationRoot.NO_ROOT, np.arange(len(late)), NONE))
    idle_before_ns = np.append(0, np.cumsum(end_ns - start_ns))[:-1]
    since_root_ns = idle_before_ns - np.append(idle_before_ns, 0)[origin]
    left_ns = np.where(origin >= 0, np.append(lost_ns, 0)[origin] - since_root_ns, 0)
    cut_ns = start_ns + np.clip(left_ns, 0, end_ns - start_ns)
    sync = np.where(root == StarvationRoot.SYNC, gaps.sync[late], NONE)
    from_ns, until_ns = np.concatenate((start_ns, cut_ns)), np.concatenate((cut_ns, end_ns))
    no_root = np.zeros(len(late), np.int8)
    root = np.concatenate((np.append(root, np.int8(StarvationRoot.NO_ROOT))[origin], no_root))
    call = np.concatenate((np.append(sync, NONE)[origin], np.full(len(late), NONE)))
    rows = np.flatnonzero(until_ns > from_ns)
    rows = rows[np.lexsort((until_ns[rows], from_ns[rows]))]
    return Starvation(from_ns[rows], until_ns[rows], root[rows].astype(np.int8), call[rows].astype(np.int32))


def _roots_of_gaps(
    trace: Trace, gaps: IdleGaps, late: Int64Array, loading: Intervals, window: Intervals
) -> tuple[Int8Array, Int64Array]:
    """For each late gap what emptied the queue right before it, and the lead that the CPU lost by it, in ns.

    A gap in a row of starved kernels has no root of its own: the queue was empty already.
    """
    calls = trace.calls
    start_ns, end_ns = gaps.start_ns[late], gaps.end_ns[late]
    waited_ns = _time_of_events(loading[:, 0], loading[:, 1], start_ns, end_ns)
    allocating = trace.match_rows(calls, vocabulary.ALLOCATOR_CALL)
    allocated_ns = _time_of_events(calls.start_ns[allocating], calls.end_ns[allocating], start_ns, end_ns)
    break_ns = _breaks_before(trace, gaps.launch[late])
    begins = (start_ns <= window[0, 0]) if len(window) else np.zeros(len(late), bool)
    lost_by_root = {
        StarvationRoot.DATALOADER: waited_ns,
        StarvationRoot.SYNC: np.where(gaps.sync[late] >= 0, gaps.sync_wait_ns[late], 0),
        StarvationRoot.ALLOCATOR: allocated_ns,
        StarvationRoot.START: np.where(begins, end_ns - start_ns, 0),
        StarvationRoot.PAUSE: np.where(break_ns >= _PAUSE_NS, break_ns, 0),
    }
    # Several may lie before one gap, such as a sync and the loader at the end of a step: what took longest counts. A
    # pause is what remains, because it contains the others.
    roots = np.array(list(lost_by_root), np.int8)
    lost = np.stack(list(lost_by_root.values())).astype(np.int64)
    largest = lost[:-1].argmax(axis=0)
    row = np.where(lost[:-1].max(axis=0) > 0, largest, len(roots) - 1)
    lost_ns: Int64Array = lost[row, np.arange(len(late))]
    root = np.where(lost_ns > 0, roots[row], StarvationRoot.NO_ROOT).astype(np.int8)
    return root, lost_ns


def _time_of_events(
    start_ns: Int64Array, end_ns: Int64Array, gap_start_ns: Int64Array, gap_end_ns: Int64Array
) -> Int64Array:
    """For each gap how long the events took that overlap it, in ns, the part before the gap included."""
    events = iv.union(start_ns, end_ns)
    first = np.searchsorted(events[:, 1], gap_start_ns, side="right")
    last = np.searchsorted(events[:, 0], gap_end_ns, side="left")
    total_ns = np.append(0, np.cumsum(events[:, 1] - events[:, 0]))
    result: Int64Array = total_ns[np.maximum(last, first)] - total_ns[first]
    return result


def _breaks_before(trace: Trace, launch: Int32Array) -> Int64Array:
    """For each launch the time from the end of the launch before it to its own end, in ns; 0 for the first."""
    calls = trace.calls
    launches = occurring(trace.gpu.call)
    latest_end_ns = np.maximum.accumulate(calls.end_ns[launches])
    position = np.searchsorted(launches, launch)
    before_ns = np.append(latest_end_ns, 0)[position - 1]
    result: Int64Array = np.where(position > 0, calls.end_ns[launch] - before_ns, 0)
    return np.maximum(result, 0)
