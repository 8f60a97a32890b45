"""What a fix would change in a trace: plain data over rows of its tables, made by the rule that proposes the fix.

Edits only remove: kernels get shorter, calls are not made, waits end, work of the CPU between calls vanishes. The
replay says how much shorter the step gets. How far a fix goes is rarely known exactly: an edit can have variants, what
the fix changes at least and at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.rows import CallRows, GpuRows

# The most that a launch takes of the CPU: a longer break before it has another cause. PD104 has the same limit.
_MAX_LAUNCH_WORK_NS = 1_000_000


@frozen_dataclass(eq=False)
class RemovedCpuTime:
    """Time of a thread that vanishes, except for a share of it.

    Attributes:
        thread: Index into `Trace.threads`.
        intervals: The time.
        remaining_share: The share of it that remains, 0 to 1.
    """

    thread: int
    intervals: Intervals
    remaining_share: float = 0.0


@frozen_dataclass
class MovedWork:
    """Work that a fix moves to a resource beside the program, such as a worker that prepares the next input.

    No step gets shorter than such a resource is busy for it, whatever other fixes do.

    Attributes:
        resource: What is busy with it; what several fixes move to one resource adds up.
        busy_ns: How long it is busy for a step, in ns without the profiler (`Rank.per_step`).
    """

    resource: str
    busy_ns: int


@frozen_dataclass(eq=False)
class Edit:
    """What a fix changes.

    Attributes:
        items: GPU items that get faster.
        dur_ns: int64, for each of these items how long it takes then, in ns.
        dropped_calls: Calls that are not made, and with them all that they launch.
        unblocked_calls: Calls in which the CPU no longer waits.
        removed_cpu_time: Time of the CPU that vanishes.
        moved: Work that is done elsewhere, beside the program.
        blocked_by: Calls that have to go before the fix can be made, such as syncs, which no CUDA graph can capture.
        is_upper_bound: Whether this is the best that the fix can do, as a roofline says, rather than what it does.
        at_least: What the fix changes where it goes badly; None where that is not known to differ.
        at_most: What the fix changes where it goes well; None where that is not known to differ.
        cause: What takes the whole cause away, for what it costs, where a part of it stays whatever the fix does: a
            collective that no work can hide; None where nothing stays.

    Raises:
        TypeError, ValueError: see `check`.
    """

    items: GpuRows = field(default_factory=GpuRows)
    dur_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    dropped_calls: CallRows = field(default_factory=CallRows)
    unblocked_calls: CallRows = field(default_factory=CallRows)
    removed_cpu_time: tuple[RemovedCpuTime, ...] = ()
    moved: tuple[MovedWork, ...] = ()
    blocked_by: CallRows = field(default_factory=CallRows)
    is_upper_bound: bool = False
    at_least: Edit | None = None
    at_most: Edit | None = None
    cause: Edit | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check that the edit can be applied.

        Raises:
            TypeError: it has rows of another table, durations that are no int64 array, no RemovedCpuTime or MovedWork,
                or a variant that is no edit.
            ValueError: there is not one duration for each item, one is negative, a share lies outside of 0 to 1, or a
                variant has variants.
        """
        _require_rows(self.items, GpuRows)
        _require_rows(self.dropped_calls, CallRows)
        _require_rows(self.unblocked_calls, CallRows)
        _require_rows(self.blocked_by, CallRows)
        if len(self.items) != len(self.dur_ns):
            raise ValueError(f"{len(self.items)} items cannot have {len(self.dur_ns)} durations")
        if type(self.dur_ns) is not np.ndarray or self.dur_ns.dtype != np.int64:
            raise TypeError("the durations of an edit are an int64 array")
        for removed in self.removed_cpu_time:
            if type(removed) is not RemovedCpuTime or type(removed.intervals) is not np.ndarray:
                raise TypeError("an edit removes CPU time in the form of RemovedCpuTime, with an array of intervals")
        if any(type(moved) is not MovedWork or type(moved.busy_ns) is not int for moved in self.moved):
            raise TypeError("an edit moves work in the form of MovedWork, with whole nanoseconds")
        shares = [removed.remaining_share for removed in self.removed_cpu_time]
        if (self.dur_ns < 0).any() or any(not 0 <= share <= 1 for share in shares):
            raise ValueError("an edit leaves durations of 0 or more, and a remaining share between 0 and 1")
        self._check_variants()

    def _check_variants(self) -> None:
        for variant in self.variants()[1:]:
            if type(variant) is not Edit:
                raise TypeError(f"what a fix changes at least or at most is an Edit, not {type(variant).__name__}")
            variant.check()
            if len(variant.variants()) > 1:
                raise ValueError("what a fix changes at least or at most has no variants of its own")

    def variants(self) -> tuple[Edit, ...]:
        """The edit itself, and what it changes at least, at most and with all of its cause where that differs."""
        return (self, *(each for each in (self.at_least, self.at_most, self.cause) if each is not None))

    def unblocks(self, other: Edit) -> bool:
        """Whether the fix takes away calls that block another one."""
        if not len(other.blocked_by):
            return False
        gone = np.concatenate((self.dropped_calls.index, self.unblocked_calls.index))
        return bool(np.isin(other.blocked_by.index, gone).any())

    def __or__(self, other: Edit) -> Edit:
        """An edit that makes the changes of both, in each variant; an upper bound if both are."""

        def join(variant: Edit | None, other_variant: Edit | None) -> Edit | None:
            return (variant or self)._join(other_variant or other) if variant or other_variant else None

        return replace(
            self._join(other),
            at_least=join(self.at_least, other.at_least),
            at_most=join(self.at_most, other.at_most),
            cause=join(self.cause, other.cause),
        )

    def _join(self, other: Edit) -> Edit:
        return Edit(
            self.items + other.items,
            np.concatenate((self.dur_ns, other.dur_ns)),
            self.dropped_calls + other.dropped_calls,
            self.unblocked_calls + other.unblocked_calls,
            (*self.removed_cpu_time, *other.removed_cpu_time),
            (*self.moved, *other.moved),
            self.blocked_by + other.blocked_by,
            self.is_upper_bound and other.is_upper_bound,
        )


def _require_rows(rows: object, kind: type[GpuRows | CallRows]) -> None:
    if type(rows) is not kind:
        raise TypeError(
            f"an edit takes {kind.__name__} here, not {type(rows).__name__}: a mask does not say which table it is of"
        )


def set_durations(rows: GpuRows, best_ns: float | npt.NDArray[np.floating], *, is_upper_bound: bool = True) -> Edit:
    """An edit that gives some GPU items new durations; none gets longer.

    Args:
        rows: The items.
        best_ns: The new duration of all or of each, in ns; an item whose duration is NaN does not change.
        is_upper_bound: Whether that is the best that the fix can do.
    """
    _require_rows(rows, GpuRows)
    dur_ns = rows.table.dur_ns[rows.index].astype(np.float64)
    return Edit(rows, np.fmin(np.maximum(best_ns, 0), dur_ns).astype(np.int64), is_upper_bound=is_upper_bound)


def set_duration_range(
    rows: GpuRows,
    slowest_ns: npt.NDArray[np.floating],
    expected_ns: npt.NDArray[np.floating],
    fastest_ns: npt.NDArray[np.floating],
) -> Edit:
    """An edit that gives some GPU items new durations, at worst, as expected and at best; none gets longer.

    Args:
        rows: The items.
        slowest_ns: The new duration of each at worst, in ns; an item whose duration is NaN does not change.
        expected_ns: The same as expected.
        fastest_ns: The same at best.
    """
    return replace(
        set_durations(rows, expected_ns, is_upper_bound=False),
        at_least=set_durations(rows, slowest_ns, is_upper_bound=False),
        at_most=set_durations(rows, fastest_ns, is_upper_bound=False),
    )


def scale_durations(rows: GpuRows, saved_share: float, *, is_upper_bound: bool = True) -> Edit:
    """An edit that shortens each of some GPU items by the same share (0 to 1) of its duration."""
    _require_rows(rows, GpuRows)
    return set_durations(rows, rows.table.dur_ns[rows.index] * (1 - saved_share), is_upper_bound=is_upper_bound)


def remove_items(trace: Trace, rows: GpuRows, *, is_upper_bound: bool = True) -> Edit:
    """An edit that removes some GPU items, and their launches: kernels that others absorb, copies that nobody needs.

    The op around a launch takes no time either if everything that it launched is removed. A launch of several items
    remains where one of them remains.
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
    """An edit that fuses some GPU items: their time shrinks by a share, and only some of them are launched.

    Each item remains where it was and gets a share shorter; the sum is the time of the fused kernels.

    Args:
        trace: The trace.
        rows: The items.
        saved_share: The share (0 to 1) of its duration by which each gets shorter.
        launches_left: Those of the items whose launches remain.
        is_upper_bound: Whether that is the best that the fix can do.
    """
    _require_rows(rows, GpuRows)
    _require_rows(launches_left, GpuRows)
    removed = np.zeros(len(trace.calls) + 1, bool)
    removed[trace.gpu.call[rows.index]] = True
    removed[trace.gpu.call[launches_left.index]] = False
    launches = np.flatnonzero(removed[:-1])
    return scale_durations(rows, saved_share, is_upper_bound=is_upper_bound) | Edit(
        removed_cpu_time=_cpu_time_of_launches(trace, launches, removed[:-1]), is_upper_bound=is_upper_bound
    )


def _cpu_time_of_launches(trace: Trace, dropped: Int64Array, removed: BoolArray) -> tuple[RemovedCpuTime, ...]:
    """The time in dropped calls, or in the op around such a call where it launches nothing else.

    Without the calls in it that ask the driver for memory: what needs memory next would ask in its place.

    Args:
        trace: The trace.
        dropped: Rows of the calls.
        removed: For each call of the trace whether an item that it launches is removed.
    """
    calls, ops = trace.calls, trace.ops
    launching = np.zeros(len(calls), bool)
    launching[trace.gpu.call[trace.gpu.call >= 0]] = True
    op = calls.op[dropped]
    still_launching = np.zeros(len(ops) + 1, bool)
    still_launching[calls.op[launching & ~removed]] = True
    takes_op = (op >= 0) & ~still_launching[op]
    start_ns = np.where(takes_op, np.append(ops.start_ns, 0)[op], calls.start_ns[dropped])
    end_ns = np.where(takes_op, np.append(ops.end_ns, 0)[op], calls.end_ns[dropped])
    allocator = trace.match_rows(calls, vocabulary.ALLOCATOR_CALL)
    allocating = iv.union(calls.start_ns[allocator], calls.end_ns[allocator])
    removed_time = _remove_spans(calls.thread[dropped], start_ns, end_ns)
    return tuple(replace(each, intervals=iv.subtract(each.intervals, allocating)) for each in removed_time)


def _remove_spans(thread: Int32Array, start_ns: Int64Array, end_ns: Int64Array) -> tuple[RemovedCpuTime, ...]:
    """The union of some spans of time on each thread, as removed time."""
    spans = {number: thread == number for number in sorted(set(thread.tolist()))}
    return tuple(RemovedCpuTime(number, iv.union(start_ns[at], end_ns[at])) for number, at in spans.items())


def remove_waits(calls: CallRows) -> Edit:
    """An edit that ends the CPU's waits for the GPU in some calls."""
    return Edit(unblocked_calls=calls)


def remove_blocking(calls: CallRows, done_ns: Int64Array) -> Edit:
    """An edit that lets copies no longer block: their calls take no time, nor do the synchronize calls after them.

    That is what the fix does and no upper bound: an asynchronous copy takes the CPU as little as a launch.

    Args:
        calls: The calls that copy.
        done_ns: For each of them when the CPU had synchronized, in ns.
    """
    _require_rows(calls, CallRows)
    table, rows = calls.table, calls.index
    removed = _remove_spans(table.thread[rows], table.start_ns[rows], done_ns)
    inside = np.zeros(len(table), bool)
    for each in removed:
        inside |= (table.thread == each.thread) & iv.contains(each.intervals, table.start_ns)
    return Edit(unblocked_calls=CallRows(table, inside), removed_cpu_time=removed)


def remove_calls(calls: CallRows) -> Edit:
    """An edit that removes some calls that launch nothing, such as allocations that a cache serves."""
    _require_rows(calls, CallRows)
    table, rows = calls.table, calls.index
    removed = _remove_spans(table.thread[rows], table.start_ns[rows], table.end_ns[rows])
    return Edit(dropped_calls=calls, removed_cpu_time=removed)


def remove_pauses(
    trace: Trace, pauses: Intervals, window: Intervals, remaining_share: float = 0.0, *, is_upper_bound: bool = False
) -> Edit:
    """An edit that removes pauses of the CPU, in which it launched nothing: a checkpoint, preprocessing in the loop.

    Forward and backward run on different threads that hand work on to each other. So the time vanishes from all threads
    that launch.

    Args:
        trace: The trace.
        pauses: When the CPU did what is no longer there: from the end of a launch to the next launch, or a part of it.
        window: The analysed time; time outside of it remains.
        remaining_share: The share of the time that remains, 0 to 1.
        is_upper_bound: Whether that is the best that the fix can do.
    """
    launches = trace.gpu.call[trace.gpu.call >= 0]
    inside = iv.intersect(pauses, window)
    threads = sorted(set(trace.calls.thread[launches].tolist()))
    removed = tuple(RemovedCpuTime(thread, inside, remaining_share) for thread in threads)
    return Edit(removed_cpu_time=removed, is_upper_bound=is_upper_bound)


def remove_sections(trace: Trace, thread: int, sections: Intervals, window: Intervals) -> Edit:
    """An edit that removes sections of a thread with all that they launch, such as DDP's broadcast of buffers.

    Args:
        trace: The trace.
        thread: The thread, an index into `Trace.threads`.
        sections: When it did what is no longer done.
        window: The analysed time; time outside of it remains.
    """
    inside = iv.intersect(sections, window)
    calls, gpu = trace.calls, trace.gpu
    dropped = (calls.thread == thread) & iv.contains(inside, calls.start_ns)
    items = (gpu.call >= 0) & np.append(dropped, False)[gpu.call]
    rows = GpuRows(gpu, items)
    removed = (RemovedCpuTime(thread, inside),)
    return Edit(rows, np.zeros(len(rows), np.int64), CallRows(calls, dropped), removed_cpu_time=removed)


def remove_cpu_time(
    thread: Int32Array,
    spans: tuple[Int64Array, Int64Array],
    window: Intervals,
    remaining_share: float = 0.0,
    *,
    is_upper_bound: bool = False,
) -> Edit:
    """An edit that removes some time of threads, such as waits for a loader that workers hide.

    Args:
        thread: For each span of time its thread, an index into `Trace.threads`.
        spans: Starts and ends of the spans, in ns.
        window: The analysed time; time outside of it remains.
        remaining_share: The share of the time that remains, 0 to 1.
        is_upper_bound: Whether that is the best that the fix can do.
    """
    removed = [
        RemovedCpuTime(each.thread, iv.intersect(each.intervals, window), remaining_share)
        for each in _remove_spans(thread, *spans)
    ]
    return Edit(removed_cpu_time=tuple(removed), is_upper_bound=is_upper_bound)


def shorten_launches(
    calls: CallRows,
    window: Intervals,
    remaining_share: float = 0.0,
    *,
    is_upper_bound: bool = True,
    pause_ns: int = _MAX_LAUNCH_WORK_NS,
) -> Edit:
    """An edit that lets the CPU launch faster, by CUDA graphs or compiled code: a share of its time remains.

    The time of a launch begins at the end of the call before it on the same thread. A longer break than
    `pause_ns` is no launch overhead: of that, as much counts as before the launches in the median.

    Args:
        calls: The launches.
        window: The analysed time; time outside of it remains.
        remaining_share: The share of the time that remains, 0 to 1.
        is_upper_bound: Whether that is the best that the fix can do.
        pause_ns: From this length on a break between calls is a pause.
    """
    _require_rows(calls, CallRows)
    table, rows = calls.table, calls.index
    removed = []
    for thread in sorted(set(table.thread[rows].tolist())):
        on_thread = np.flatnonzero(table.thread == thread)
        latest_end_ns = np.maximum.accumulate(table.end_ns[on_thread])
        end_before_ns = np.append(np.iinfo(np.int64).min // 4, latest_end_ns[:-1])
        launches = np.isin(on_thread, rows)
        start_ns, end_ns = table.start_ns[on_thread[launches]], table.end_ns[on_thread[launches]]
        work_ns = np.maximum(start_ns - end_before_ns[launches], 0)
        is_launch_work = work_ns <= pause_ns
        typical_ns = int(np.median(work_ns[is_launch_work])) if is_launch_work.any() else 0
        spans = iv.union(start_ns - np.where(is_launch_work, work_ns, typical_ns), end_ns)
        removed.append(RemovedCpuTime(thread, iv.intersect(spans, window), remaining_share))
    return Edit(removed_cpu_time=tuple(removed), is_upper_bound=is_upper_bound)


def move_work(edit: Edit, resource: str, busy_ns: int) -> Edit:
    """An edit whose work is done elsewhere, beside the program: no step gets shorter than that takes.

    Args:
        edit: The edit that takes the work out of the program.
        resource: What is busy with it then, such as "worker".
        busy_ns: How long it is busy for a step, in ns without the profiler (`Rank.per_step`).
    """
    return replace(edit, moved=(*edit.moved, MovedWork(resource, busy_ns)))


def remove_cause(edit: Edit) -> Edit:
    """The edit that removes the whole cause, for what it costs: at its most, with nothing left or done elsewhere."""
    high = edit.cause or edit.at_most or replace(edit, at_least=None)
    removed = tuple(replace(each, remaining_share=0.0) for each in high.removed_cpu_time)
    return replace(high, removed_cpu_time=removed, moved=())


def busiest_ns(edits: Iterable[tuple[Edit, float]]) -> float:
    """How long the busiest resource takes for a step that some edits move work to, each as far as its strength says."""
    busy_ns: dict[str, float] = defaultdict(float)
    for edit, strength in edits:
        for moved in edit.moved:
            busy_ns[moved.resource] += moved.busy_ns * strength
    return max(busy_ns.values(), default=0.0)
