"""What a fix would change in a trace: pure data over its rows, made by the rules that propose the fix.

Edits only take away: kernels get shorter, calls are not made, waits end, the CPU's work between calls vanishes. What
that does to the step is for the replay to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.rows import CallRows, GpuRows

# What the CPU does for longer between two launches is something else; PD104 draws the same line.
_LAUNCH_WORK_NS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class RemovedCpuTime:
    """Time of a thread (an index into `Trace.threads`) that vanishes, but for a share (0 to 1) of it that remains."""

    thread: int
    intervals: Intervals
    remaining_share: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """What a fix changes.

    Attributes:
        items: GPU items that get faster, and `dur_ns`, how long each takes then.
        dropped_calls: Calls that are not made, with all that they launch.
        unblocked_calls: Calls in which the CPU no longer waits.
        removed_cpu_time: Time of the CPU that vanishes.
        is_upper_bound: Whether this is the best that the fix can do, as a roofline says, rather than what it does.
    """

    items: GpuRows = field(default_factory=GpuRows)
    dur_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    dropped_calls: CallRows = field(default_factory=CallRows)
    unblocked_calls: CallRows = field(default_factory=CallRows)
    removed_cpu_time: tuple[RemovedCpuTime, ...] = ()
    is_upper_bound: bool = False

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """See that the edit can be applied.

        Raises:
            TypeError: it holds rows of another table, or something else than it says.
            ValueError: there is not one duration for each item, one is negative, or a share lies outside of 0 to 1.
        """
        _require_rows(self.items, GpuRows)
        _require_rows(self.dropped_calls, CallRows)
        _require_rows(self.unblocked_calls, CallRows)
        if len(self.items) != len(self.dur_ns):
            raise ValueError(f"{len(self.items)} items cannot have {len(self.dur_ns)} durations")
        if type(self.dur_ns) is not np.ndarray or self.dur_ns.dtype != np.int64:
            raise TypeError("the durations of an edit are an int64 array")
        for removed in self.removed_cpu_time:
            if type(removed) is not RemovedCpuTime or type(removed.intervals) is not np.ndarray:
                raise TypeError("an edit removes CPU time in the form of RemovedCpuTime, with an array of intervals")
        shares = [removed.remaining_share for removed in self.removed_cpu_time]
        if (self.dur_ns < 0).any() or any(not 0 <= share <= 1 for share in shares):
            raise ValueError("an edit leaves durations of 0 or more, and a remaining share between 0 and 1")

    def __or__(self, other: Edit) -> Edit:
        """Both changes; where both are upper bounds so are they together."""
        return Edit(
            self.items + other.items,
            np.concatenate((self.dur_ns, other.dur_ns)),
            self.dropped_calls + other.dropped_calls,
            self.unblocked_calls + other.unblocked_calls,
            (*self.removed_cpu_time, *other.removed_cpu_time),
            self.is_upper_bound and other.is_upper_bound,
        )


def _require_rows(rows: object, kind: type[GpuRows | CallRows]) -> None:
    if type(rows) is not kind:
        raise TypeError(
            f"an edit takes {kind.__name__} here, not {type(rows).__name__}: a mask does not say which table it is of"
        )


def set_durations(rows: GpuRows, best_ns: float | npt.NDArray[np.floating], *, is_upper_bound: bool = True) -> Edit:
    """Some GPU items take `best_ns` each, or as long as they do where that is shorter or `best_ns` is unknown (NaN)."""
    _require_rows(rows, GpuRows)
    dur_ns = rows.table.dur_ns[rows.index].astype(np.float64)
    return Edit(rows, np.fmin(np.maximum(best_ns, 0), dur_ns).astype(np.int64), is_upper_bound=is_upper_bound)


def scale_durations(rows: GpuRows, saved_share: float, *, is_upper_bound: bool = True) -> Edit:
    """Some GPU items save the same share (0 to 1) of their time each."""
    _require_rows(rows, GpuRows)
    return set_durations(rows, rows.table.dur_ns[rows.index] * (1 - saved_share), is_upper_bound=is_upper_bound)


def remove_items(trace: Trace, rows: GpuRows, *, is_upper_bound: bool = True) -> Edit:
    """Some GPU items are gone (fused into others, or copies that are not needed), and their launches with them.

    What the CPU did in the op around each launch goes, too, if all that the op launched goes. Launches of several items
    stay where some of those stay.
    """
    _require_rows(rows, GpuRows)
    gpu, calls = trace.gpu, trace.calls
    removed = np.zeros(len(calls) + 1, np.int64)  # items of each call; the last entry is for items without a call
    np.add.at(removed, gpu.call[rows.index], 1)
    launched = np.bincount(gpu.call[gpu.call >= 0], minlength=len(calls) + 1)
    dropped = np.flatnonzero((removed[:-1] > 0) & (removed[:-1] == launched[:-1]))
    return Edit(
        rows,
        np.zeros(len(rows), np.int64),
        CallRows(calls, dropped),
        removed_cpu_time=_cpu_time_of_launches(trace, dropped, removed[:-1] > 0),
        is_upper_bound=is_upper_bound,
    )


def fuse(
    trace: Trace, rows: GpuRows, saved_share: float, launches_left: GpuRows, *, is_upper_bound: bool = True
) -> Edit:
    """Some GPU items become fewer: together they save a share of their time, and only `launches_left` are launched.

    The fused kernels run where their parts ran, each part a share shorter: the sum is the time of the fused kernels.
    """
    _require_rows(rows, GpuRows)
    _require_rows(launches_left, GpuRows)
    removed = np.zeros(len(trace.calls) + 1, bool)
    removed[trace.gpu.call[rows.index]] = True
    removed[trace.gpu.call[launches_left.index]] = False
    launches = np.flatnonzero(removed[:-1])
    return scale_durations(rows, saved_share, is_upper_bound=is_upper_bound) | Edit(
        removed_cpu_time=_cpu_time_of_launches(trace, launches, removed[:-1]), is_upper_bound=True
    )


def _cpu_time_of_launches(trace: Trace, dropped: Int64Array, removed: BoolArray) -> tuple[RemovedCpuTime, ...]:
    """The time in dropped calls, and in the ops around them that launch nothing else.

    Args:
        trace: The trace.
        dropped: Rows of the calls.
        removed: For each call of the trace whether all or some of what it launches is gone.
    """
    calls, ops = trace.calls, trace.ops
    launching = np.zeros(len(calls), bool)
    launching[trace.gpu.call[trace.gpu.call >= 0]] = True
    op = calls.op[dropped]
    still_launching = np.zeros(len(ops) + 1, bool)
    still_launching[calls.op[launching & ~removed]] = True
    whole = (op >= 0) & ~still_launching[op]
    start = np.where(whole, np.append(ops.start_ns, 0)[op], calls.start_ns[dropped])
    end = np.where(whole, np.append(ops.end_ns, 0)[op], calls.end_ns[dropped])
    return _removed_by_thread(calls.thread[dropped], start, end)


def _removed_by_thread(thread: Int32Array, start: Int64Array, end: Int64Array) -> tuple[RemovedCpuTime, ...]:
    """The time that vanishes of each thread."""
    threads = [(number, thread == number) for number in sorted(set(thread.tolist()))]
    return tuple(RemovedCpuTime(number, iv.union(start[mine], end[mine])) for number, mine in threads)


def remove_waits(calls: CallRows) -> Edit:
    """The CPU no longer waits for the GPU in some calls."""
    return Edit(unblocked_calls=calls)


def remove_blocking(calls: CallRows, done_ns: Int64Array) -> Edit:
    """Some calls, and the synchronize calls up to `done_ns`, take no time: copies from pinned memory.

    Args:
        calls: The calls.
        done_ns: For each of them when the CPU went on.
    """
    _require_rows(calls, CallRows)
    table, rows = calls.table, calls.index
    removed = _removed_by_thread(table.thread[rows], table.start_ns[rows], done_ns)
    inside = np.zeros(len(table), bool)
    for each in removed:
        inside |= (table.thread == each.thread) & iv.contains(each.intervals, table.start_ns)
    return Edit(unblocked_calls=CallRows(table, inside), removed_cpu_time=removed, is_upper_bound=True)


def remove_calls(calls: CallRows) -> Edit:
    """Some calls that launch nothing are not made: allocations that a cache serves."""
    _require_rows(calls, CallRows)
    table, rows = calls.table, calls.index
    removed = _removed_by_thread(table.thread[rows], table.start_ns[rows], table.end_ns[rows])
    return Edit(dropped_calls=calls, removed_cpu_time=removed)


def remove_cpu_time(
    thread: Int32Array,
    spans: tuple[Int64Array, Int64Array],
    window: Intervals,
    remaining_share: float = 0.0,
    *,
    is_upper_bound: bool = False,
) -> Edit:
    """Times of threads vanish but for a share of them that remains: a loader's waits that workers hide.

    Args:
        thread: For each time its thread, an index into `Trace.threads`.
        spans: Where the times begin and end.
        window: The analysed time; what lies outside stays.
        remaining_share: The share that stays, 0 to 1.
        is_upper_bound: Whether that is the best that the fix can do.
    """
    removed = [
        RemovedCpuTime(each.thread, iv.intersect(each.intervals, window), remaining_share)
        for each in _removed_by_thread(thread, *spans)
    ]
    return Edit(removed_cpu_time=tuple(removed), is_upper_bound=is_upper_bound)


def shorten_launches(
    calls: CallRows, window: Intervals, remaining_share: float = 0.0, *, is_upper_bound: bool = True
) -> Edit:
    """The CPU takes a share of its time to get to some launches, and in them: CUDA graphs, compiled code.

    That time counts from the call before on the same thread, but at most a millisecond: what takes longer is no
    launching.
    """
    _require_rows(calls, CallRows)
    table, rows = calls.table, calls.index
    removed = []
    for thread in sorted(set(table.thread[rows].tolist())):
        on_thread = np.flatnonzero(table.thread == thread)
        latest_end = np.maximum.accumulate(table.end_ns[on_thread])
        since = np.append(np.iinfo(np.int64).min // 4, latest_end[:-1])
        wanted = np.isin(on_thread, rows)
        start = np.maximum(since, table.start_ns[on_thread] - _LAUNCH_WORK_NS)[wanted]
        spans = iv.union(start, table.end_ns[on_thread[wanted]])
        removed.append(RemovedCpuTime(thread, iv.intersect(spans, window), remaining_share))
    return Edit(removed_cpu_time=tuple(removed), is_upper_bound=is_upper_bound)
