"""What a thread of the CPU did in some time: the functions, ops, calls and ranges that take most of it.

The argument is inclusive time: how much of the asked time an activity covers, wherever it was called from. For a pause
of 10 ms::

    main            ########## 10 ms   frame
      preprocess    ######### 9 ms     frame    <- the deepest that takes 60 %
        aten::mul   ##  2 ms           op
      aten::copy_            # 1 ms    op
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from perfdoctor.analysis.host.locations import frame_thread_of
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import activity_kinds, vocabulary
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Calls, Frames, Ops, Ranges, Trace

_Recorded: TypeAlias = Frames | Ranges | Ops | Calls
ActivityTable: TypeAlias = Literal["frame", "range", "op", "call"]

DOMINATING_SHARE = 0.6
"""An activity that takes less of the time is not what the time was spent on."""
# A launch takes 3 to 10 us; one of a millisecond, with an idle GPU, loads the kernel's module first.
_MIN_LOADING_NS = 1_000_000
# Names that take less of the time are not asked what kind of work they are: only their sum could matter.
_MIN_KIND_SHARE = 0.01
# So many of the longest pauses are asked one by one for their kind of work, and so many of the longest runs of the
# dominating activity for the user's line.
_MAX_LOOKUPS = 16
# What is around that much of the time without pauses does not explain the pauses.
_MAX_SHARE_OUTSIDE = 0.8
# Pauses of one kind that are less of all say little of what to change first.
_MIN_SHARE_OF_PART = 0.2
_MIN_SHARE_OF_KIND = 0.33
# A pause of which less is what they are named by has a cause of its own.
_MIN_PAUSE_SHARE = 0.3
# What is so short beside all of them needs no cause; waits for a loader cut such pieces off.
_NEGLIGIBLE_SHARE = 0.005
# Steps and their parts say nothing about what is done in them, lines of code are locations, and wrappers are around
# everything.
_UNNAMED = tuple(
    re.compile(each)
    for each in (
        *(vocabulary.PROFILER_STEP, vocabulary.COUNTED_STEP, vocabulary.SOURCE_MARK, vocabulary.OWN_MARK),
        *(vocabulary.RECORDER_FRAME, vocabulary.WRAPPER_FRAME),
    )
)
_KERNEL_LAUNCH = re.compile(rf"^(?!.*(Memcpy|{vocabulary.GRAPH_LAUNCH_CALL})).*({vocabulary.LAUNCH_CALL})")

_TABLES: tuple[ActivityTable, ...] = ("frame", "range", "op", "call")


class Activity(NamedTuple):
    """A function, range, op or call by its name, and how much of the asked time it takes, wherever it was called.

    Attributes:
        name: Its name, without the address of an object.
        table: What it is.
        time_ns: Its inclusive time in the asked time; where it calls itself that counts once.
        runs: How often it ran, calls of itself not counted.
    """

    name: str
    table: ActivityTable
    time_ns: int
    runs: int


@frozen_dataclass
class HotPath:
    """Where the CPU's time went.

    Attributes:
        time_ns: Length of the asked time.
        activities: Those that take `DOMINATING_SHARE` of it and more: the deepest last, before it those around it.
        kind: One of `activity_kinds.KINDS` that takes `DOMINATING_SHARE`; None where no name says it.
        kind_time: When that kind of work is done, within the asked time; empty without one.
        deepest_time: When the deepest activity runs, within the asked time.
    """

    time_ns: int = 0
    activities: tuple[Activity, ...] = ()
    kind: str | None = None
    kind_time: Intervals = field(default_factory=lambda: iv.EMPTY, repr=False, compare=False)
    deepest_time: Intervals = field(default_factory=lambda: iv.EMPTY, repr=False, compare=False)

    @property
    def named_time(self) -> Intervals:
        """When the CPU does what the path is named by: its kind of work, else its deepest activity."""
        return self.deepest_time if self.kind is None else self.kind_time

    @property
    def deepest(self) -> Activity | None:
        """The innermost activity that takes most of the time; None where nothing was recorded that does."""
        return self.activities[-1] if self.activities else None

    @property
    def outermost_op(self) -> Activity | None:
        """The outermost op that takes most of the time: the one that Python called."""
        return next((activity for activity in self.activities if activity.table == "op"), None)


class Runs(NamedTuple):
    """Rows of several tables that overlap the asked time.

    Attributes:
        start_ns: Start of each.
        end_ns: End of each.
        lane: The thread that was asked about.
        table: Index into `_TABLES`.
        row: Row of its table.
        name: Number of its name in `names`.
        inside_ns: How much of it lies in the asked time.
        names: The distinct names, without addresses.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    lane: Int32Array
    table: Int8Array
    row: Int64Array
    name: Int64Array
    inside_ns: Int64Array
    names: tuple[str, ...]


def find_hot_path(trace: Trace, time: Intervals, thread: int | Int32Array) -> HotPath:
    """Where the time of a thread went.

    `thread` is an index into `Trace.threads`, or one for each interval.
    """
    by_thread = dict(_split_by_thread(time, thread))
    total_ns = iv.total(time)
    if not total_ns:
        return HotPath()
    runs = find_runs(trace, by_thread)
    min_ns = DOMINATING_SHARE * total_ns
    # Where an activity calls itself the sum is too large: it only decides which names are looked at.
    sums_ns = _sum_by_name(runs)
    measured = {
        name: _inclusive_ns(runs, np.flatnonzero(runs.name == name), by_thread)
        for name in np.flatnonzero(sums_ns >= min_ns).tolist()
        if not _is_unnamed(runs.names[name])
    }
    measured = {name: time_ns for name, time_ns in measured.items() if time_ns >= min_ns}
    activities, deepest = _order_by_depth(runs, measured)
    kind, kind_time = _find_kind(trace, runs, by_thread)
    return HotPath(
        total_ns,
        activities,
        kind,
        kind_time,
        iv.intersect(iv.union(runs.start_ns[deepest], runs.end_ns[deepest]), time),
    )


def find_pause_path(
    trace: Trace, pauses: Intervals, thread: Int32Array, window: Intervals
) -> tuple[HotPath, BoolArray]:
    """Where the time of some pauses went, and of which pauses that is true: of all where they have it in common.

    Where they have no kind of work in common, those of one kind are separated if they are a third of the time. Where
    no activity takes most of all, or only one around the whole loop, the pauses of one name that are longest together
    are named, if they are a fifth of it.
    """
    path = find_hot_path(trace, pauses, thread)
    if path.kind is None:
        path = _find_part_with_a_name(trace, pauses, thread, window, path)
    length_ns = pauses[:, 1] - pauses[:, 0]
    chosen: BoolArray = iv.overlap(pauses[:, 0], pauses[:, 1], path.named_time) >= _MIN_PAUSE_SHARE * length_ns
    chosen |= length_ns <= _NEGLIGIBLE_SHARE * length_ns.sum()
    if chosen.all() or not iv.total(path.named_time):
        return path, np.ones(len(pauses), bool)
    return find_hot_path(trace, pauses[chosen], thread[chosen]), chosen


def _find_part_with_a_name(
    trace: Trace, pauses: Intervals, thread: Int32Array, window: Intervals, path: HotPath
) -> HotPath:
    """The path of those pauses that have something to be named by in common; that of all where they have it."""
    of_kind = _find_largest_kind(trace, pauses, thread)
    if iv.total(pauses[of_kind]) >= _MIN_SHARE_OF_KIND * path.time_ns:
        return find_hot_path(trace, pauses[of_kind], thread[of_kind])
    if path.deepest is not None and not _runs_anyway(trace, path.deepest, pauses, window):
        return path
    chosen = _find_longest_part(trace, pauses, thread, path)
    part = find_hot_path(trace, pauses[chosen], thread[chosen])
    known = {activity.name for activity in path.activities}
    says_more = part.kind is not None or (part.deepest is not None and part.deepest.name not in known)
    return part if says_more and part.time_ns >= _MIN_SHARE_OF_PART * path.time_ns else path


def _find_largest_kind(trace: Trace, pauses: Intervals, thread: Int32Array) -> BoolArray:
    """Which pauses have the kind of work in common that takes most of the longest ones; none where no kind does."""
    length_ns = pauses[:, 1] - pauses[:, 0]
    rows_of: dict[str, list[int]] = {}
    longest = np.sort(np.argsort(-length_ns, kind="stable")[:_MAX_LOOKUPS])
    runs = find_runs(trace, dict(_split_by_thread(pauses[longest], thread[longest])))
    for row in longest.tolist():
        lane = int(thread[row])
        kind, _ = _find_kind(trace, _runs_during(runs, lane, pauses[row]), {lane: pauses[[row]]})
        if kind is not None:
            rows_of.setdefault(kind, []).append(row)
    chosen = np.zeros(len(pauses), bool)
    if rows_of:
        kind = max(rows_of, key=lambda each: (int(length_ns[rows_of[each]].sum()), each))
        chosen[rows_of[kind]] = True
        chosen |= _does_kind(trace, pauses, thread, kind)
    return chosen


def _does_kind(trace: Trace, pauses: Intervals, thread: Int32Array, kind: str) -> BoolArray:
    """For each pause whether activities whose names say this kind of work take most of it."""
    runs = find_runs(trace, dict(_split_by_thread(pauses, thread)))
    rows = np.array([kind in activity_kinds.kinds_of_work(name) for name in runs.names], bool)[runs.name]
    does = np.zeros(len(pauses), bool)
    for lane in set(thread.tolist()):
        of_lane = rows & (runs.lane == lane)
        time = iv.union(runs.start_ns[of_lane], runs.end_ns[of_lane])
        inside_ns = iv.overlap(pauses[:, 0], pauses[:, 1], time)
        does |= (thread == lane) & (inside_ns >= DOMINATING_SHARE * (pauses[:, 1] - pauses[:, 0]))
    return does


def usual_run_of(trace: Trace, activity: Activity, apart_from: Intervals) -> tuple[int, int]:
    """How many runs an activity has that lie outside of some time, and the median of their lengths in ns."""
    table = _tables(trace)[_TABLES.index(activity.table)]
    rows = _rows_named(trace, activity)
    rows = rows[iv.overlap(table.start_ns[rows], table.end_ns[rows], apart_from) == 0]
    return len(rows), int(np.median(table.dur_ns[rows])) if len(rows) else 0


def _rows_named(trace: Trace, activity: Activity) -> Int64Array:
    """All runs of an activity in the trace, as rows of its table."""
    table = _tables(trace)[_TABLES.index(activity.table)]
    codes = [
        code for code in trace.name_ids(table) if activity_kinds.without_address(trace.strings[code]) == activity.name
    ]
    return np.flatnonzero(np.isin(table.name, codes))


def _runs_anyway(trace: Trace, activity: Activity, pauses: Intervals, window: Intervals) -> bool:
    """Whether an activity is around most of the time without pauses, too: then it explains none."""
    rest = iv.subtract(window, pauses)
    table, rows = _tables(trace)[_TABLES.index(activity.table)], _rows_named(trace, activity)
    around = iv.intersect(iv.union(table.start_ns[rows], table.end_ns[rows]), rest)
    return iv.total(around) > _MAX_SHARE_OUTSIDE * iv.total(rest)


def _find_longest_part(trace: Trace, time: Intervals, thread: Int32Array, path: HotPath) -> BoolArray:
    """Which intervals have most of the time in common with each other, where their common path says nothing.

    Each interval is given to the outermost single run that takes most of it and is not on the path of all; the
    intervals with the same name, that have the most time together, are the answer.
    """
    runs = find_runs(trace, dict(_split_by_thread(time, thread)))
    known = {activity.name for activity in path.activities}
    common = np.array([name in known or _is_unnamed(name) for name in runs.names], bool)
    length = time[:, 1] - time[:, 0]
    label = np.full(len(time), -1, np.int64)
    order = np.argsort(runs.start_ns - runs.end_ns, kind="stable")  # longest first
    rows = order[~common[runs.name[order]] & (runs.inside_ns[order] >= DOMINATING_SHARE * length.min(initial=0))]
    # The pairs of a run and an interval that it overlaps.
    low = np.searchsorted(time[:, 1], runs.start_ns[rows], side="right")
    count = np.maximum(np.searchsorted(time[:, 0], runs.end_ns[rows], side="left") - low, 0)
    pair = np.repeat(rows, count)
    which = np.arange(len(pair)) + np.repeat(low - (np.cumsum(count) - count), count)
    inside = np.minimum(runs.end_ns[pair], time[which, 1]) - np.maximum(runs.start_ns[pair], time[which, 0])
    dominates = (inside >= DOMINATING_SHARE * length[which]) & (runs.lane[pair] == thread[which])
    first, at = np.unique(which[dominates], return_index=True)
    label[first] = runs.name[pair[dominates][at]]
    sums_ns = np.bincount(label + 1, weights=length)
    longest: BoolArray = label + 1 == sums_ns.argmax()
    return longest


def _is_unnamed(name: str) -> bool:
    return any(pattern.search(name) for pattern in _UNNAMED)


def _split_by_thread(time: Intervals, thread: int | Int32Array) -> Iterator[tuple[int, Intervals]]:
    """Each thread with its intervals."""
    threads = np.broadcast_to(np.asarray(thread, np.int32), len(time))
    for number in sorted(set(threads.tolist())):
        yield number, time[threads == number]


def find_runs(trace: Trace, by_thread: dict[int, Intervals]) -> Runs:
    """The rows of all tables that overlap the asked time of their thread."""
    tables = _tables(trace)
    found: list[tuple[_Recorded, int, int, Int64Array]] = []
    inside_ns: list[Int64Array] = []
    for lane, time in by_thread.items():
        for number, table in enumerate(tables):
            thread = frame_thread_of(trace, lane) if table is trace.frames else lane
            rows = _rows_during(table, thread, time)
            found.append((table, number, lane, rows))
            inside_ns.append(iv.overlap(table.start_ns[rows], table.end_ns[rows], time))
    code = np.concatenate([table.name[rows] for table, _, _, rows in found])
    start_ns = np.concatenate([table.start_ns[rows] for table, _, _, rows in found])
    # The numbers decide between names that take as long: the earlier one first, as a file has no order.
    first_ns: dict[str, int] = {}
    name_of: dict[int, str] = {}
    codes, at = np.unique(code[np.argsort(start_ns, kind="stable")], return_index=True)
    for each, started_ns in zip(codes.tolist(), np.sort(start_ns)[at].tolist(), strict=True):
        name = name_of[each] = activity_kinds.without_address(trace.strings[each])
        first_ns[name] = min(started_ns, first_ns.get(name, started_ns))
    numbers = {name: number for number, name in enumerate(sorted(first_ns, key=lambda name: (first_ns[name], name)))}
    number_of = np.zeros(len(trace.strings), np.int64)
    for each, name in name_of.items():
        number_of[each] = numbers[name]
    return Runs(
        start_ns,
        np.concatenate([table.end_ns[rows] for table, _, _, rows in found]),
        np.concatenate([np.full(len(rows), lane, np.int32) for _, _, lane, rows in found]),
        np.concatenate([np.full(len(rows), number, np.int8) for _, number, _, rows in found]),
        np.concatenate([rows for _, _, _, rows in found]),
        number_of[code],
        np.concatenate(inside_ns),
        tuple(numbers),
    )


def _runs_during(runs: Runs, lane: int, interval: Int64Array) -> Runs:
    """Those of some runs that overlap an interval of a thread."""
    inside_ns = np.minimum(runs.end_ns, interval[1]) - np.maximum(runs.start_ns, interval[0])
    rows = np.flatnonzero((runs.lane == lane) & (inside_ns > 0))
    return Runs(
        runs.start_ns[rows],
        runs.end_ns[rows],
        runs.lane[rows],
        runs.table[rows],
        runs.row[rows],
        runs.name[rows],
        inside_ns[rows],
        runs.names,
    )


def _tables(trace: Trace) -> tuple[_Recorded, ...]:
    """The tables in the order of `_TABLES`: of events at the same time the first is around the next."""
    return trace.frames, trace.ranges, trace.ops, trace.calls


def _rows_during(table: _Recorded, thread: int, time: Intervals) -> Int64Array:
    """The rows of a thread that overlap the time, in the order of the table; those without length do not."""
    start, end = table.start_ns, table.end_ns
    if not len(start) or not len(time):
        return np.empty(0, np.int64)
    begun = np.searchsorted(start, time[:, 0])
    until = np.searchsorted(start, time[:, 1])
    # Rows that began before an interval: the next interval after each of them, if it still runs then.
    early = int(begun[-1])
    next_start = np.repeat(time[:, 0], np.diff(np.concatenate(([0], begun))))
    reaching = np.flatnonzero(end[:early] > next_start)
    count = until - begun
    inside = np.arange(int(count.sum())) + np.repeat(begun - (np.cumsum(count) - count), count)
    inside = inside[end[inside] > start[inside]]
    chosen = np.zeros(len(start), bool)
    chosen[reaching] = chosen[inside] = True
    rows = np.flatnonzero(chosen)
    result: Int64Array = rows[table.thread[rows] == thread]
    return result


def _inclusive_ns(runs: Runs, rows: Int64Array, by_thread: dict[int, Intervals]) -> int:
    """The asked time that some runs cover together."""
    if len(rows) == 1:
        return int(runs.inside_ns[rows[0]])
    covered = 0
    for lane, time in by_thread.items():
        of_lane = rows[runs.lane[rows] == lane]
        covered += iv.total(iv.intersect(iv.union(runs.start_ns[of_lane], runs.end_ns[of_lane]), time))
    return covered


def _order_by_depth(runs: Runs, measured: dict[int, int]) -> tuple[tuple[Activity, ...], Int64Array]:
    """The dominating activities from the outermost to the deepest, and the runs of the deepest.

    The depth of a name is that of its outermost runs among all of them, weighted by time.
    """
    is_measured = np.zeros(len(runs.names), bool)
    is_measured[list(measured)] = True
    rows = np.flatnonzero(is_measured[runs.name])
    parent = nesting.parents(runs.start_ns[rows], runs.end_ns[rows], runs.lane[rows])
    name, depth, inner = runs.name[rows], np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    up = parent
    while (up >= 0).any():
        depth += up >= 0
        inner |= (up >= 0) & (name[np.maximum(up, 0)] == name)
        up = np.where(up >= 0, parent[np.maximum(up, 0)], up)
    found: list[tuple[float, int]] = []
    for number in measured:
        outer = (name == number) & ~inner
        found.append((float(np.average(depth[outer], weights=runs.inside_ns[rows[outer]])), number))
    if not found:
        return (), rows
    is_deepest = (name == max(found)[1]) & ~inner
    above = _sum_above(is_deepest, parent, name, runs.inside_ns[rows], len(runs.names))
    activities: list[Activity] = []
    for _, number in sorted(found):
        if number != max(found)[1] and above[number] < DOMINATING_SHARE * runs.inside_ns[rows[is_deepest]].sum():
            continue  # it takes most of the time, but elsewhere
        outer = (name == number) & ~inner
        table = _TABLES[int(runs.table[rows[np.argmax(outer)]])]
        activities.append(Activity(runs.names[number], table, measured[number], int(outer.sum())))
    return tuple(activities), rows[is_deepest]


def _sum_by_name(runs: Runs) -> FloatArray:
    """For each name the asked time of its runs; what calls itself counts several times."""
    return _sum_by_number(runs.name, runs.inside_ns, len(runs.names))


def _sum_by_number(name: Int64Array, time_ns: Int64Array, count: int) -> FloatArray:
    result: FloatArray = np.zeros(count) + np.bincount(name, weights=time_ns, minlength=count)
    return result


def _sum_above(
    chosen: BoolArray, parent: Int32Array, name: Int64Array, inside_ns: Int64Array, count: int
) -> FloatArray:
    """For each name the time of the chosen runs that lie in runs of that name."""
    result = np.zeros(count)
    weight_ns, up = inside_ns[chosen], parent[chosen]
    while (up >= 0).any():
        weight_ns, up = weight_ns[up >= 0], up[up >= 0]
        result += _sum_by_number(name[up], weight_ns, count)
        up = parent[up]
    return result


def _find_kind(trace: Trace, runs: Runs, by_thread: dict[int, Intervals]) -> tuple[str | None, Intervals]:
    """The first kind of work that takes most of the time, and when it is done; None where no kind does."""
    kinds: dict[str, list[int]] = {activity_kinds.MODULE_LOAD: [], activity_kinds.GRAPH_CAPTURE: []}
    asked_ns = sum(iv.total(time) for time in by_thread.values())
    for number in np.flatnonzero(_sum_by_name(runs) >= _MIN_KIND_SHARE * asked_ns).tolist():
        for kind in activity_kinds.kinds_of_work(runs.names[number]):
            kinds.setdefault(kind, []).append(number)
    for kind in filter(kinds.__contains__, activity_kinds.KINDS):
        is_kind = np.zeros(len(runs.names), bool)
        is_kind[kinds[kind]] = True
        rows = is_kind[runs.name]
        if kind == activity_kinds.MODULE_LOAD:
            rows |= _is_long_launch(runs)
        times = []
        for lane, time in by_thread.items() if rows.any() or kind == activity_kinds.GRAPH_CAPTURE else ():
            of_lane = rows & (runs.lane == lane)
            working = iv.union(runs.start_ns[of_lane], runs.end_ns[of_lane])
            if kind == activity_kinds.GRAPH_CAPTURE:
                working = iv.union_of((working, _find_captures(trace, lane)))
            times.append(iv.intersect(working, time))
        kind_time = iv.union_of(times)
        if iv.total(kind_time) >= DOMINATING_SHARE * asked_ns:
            return kind, kind_time
    return None, iv.EMPTY


def _is_long_launch(runs: Runs) -> BoolArray:
    """The launches of kernels that take as long as only the first one of a module does."""
    long: BoolArray = (runs.table == _TABLES.index("call")) & (runs.end_ns - runs.start_ns >= _MIN_LOADING_NS)
    long[long] = [bool(_KERNEL_LAUNCH.search(runs.names[name])) for name in runs.name[long].tolist()]
    return long


def _find_captures(trace: Trace, thread: int) -> Intervals:
    """When a thread captures graphs: in the op that begins a capture, and until the call that ends it.

    torch.cuda.graph collects garbage and empties the allocator's cache before it begins: that takes most of the time.
    """
    calls, ops = trace.calls, trace.ops
    if not trace.match_strings(calls, vocabulary.CAPTURE_BEGIN_CALL).any():
        return iv.EMPTY
    begin = np.flatnonzero(trace.match_rows(calls, vocabulary.CAPTURE_BEGIN_CALL) & (calls.thread == thread))
    end = np.flatnonzero(trace.match_rows(calls, vocabulary.CAPTURE_END_CALL) & (calls.thread == thread))
    at = np.searchsorted(calls.start_ns[end], calls.start_ns[begin])
    ends_ns = np.append(calls.end_ns[end], 0)  # of those that never end only the beginning counts
    until_ns = np.where(at < len(end), ends_ns[np.minimum(at, len(end))], calls.end_ns[begin])
    op = calls.op[begin][calls.op[begin] >= 0]
    return iv.union(np.append(calls.start_ns[begin], ops.start_ns[op]), np.append(until_ns, ops.end_ns[op]))
