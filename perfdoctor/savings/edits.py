"""What a fix would change in a trace: pure data over its rows, made by the rules that propose the fix.

Edits only take away: kernels get shorter, calls are not made, waits end, the CPU's work between calls vanishes. What
that does to the step is for `replay` to say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.savings.graph_edges import OTHER, OWN, WAIT
from perfdoctor.savings.graph_events import BOUNDARY, CALL_END, CALL_START
from perfdoctor.savings.replay_graph import NEVER, Graph
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# What the CPU does for longer between two launches is something else; PD104 draws the same line.
_LAUNCH_WORK_NS = 1_000_000

Rows: TypeAlias = BoolArray | npt.NDArray[np.integer]


def _none() -> Int64Array:
    return np.empty(0, np.int64)


class Hidden(NamedTuple):
    """Time of a thread that vanishes, but for a share `kept` of it (0 to 1)."""

    thread: int
    intervals: Intervals
    kept: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """What a fix changes.

    Attributes:
        items: Rows of `Trace.gpu` that get faster, and `dur_ns`, how long each takes then.
        dropped_calls: Rows of `Trace.calls` that are not made, with all that they launch.
        unblocked_calls: Rows of `Trace.calls` in which the CPU no longer waits.
        removed_cpu_time: Time of the CPU that vanishes.
        is_upper_bound: Whether this is the best that the fix can do, as a roofline says, rather than what it does.
    """

    items: Int64Array = field(default_factory=_none)
    dur_ns: Int64Array = field(default_factory=_none)
    dropped_calls: Int64Array = field(default_factory=_none)
    unblocked_calls: Int64Array = field(default_factory=_none)
    removed_cpu_time: tuple[Hidden, ...] = ()
    is_upper_bound: bool = False

    def __post_init__(self) -> None:
        if len(self.items) != len(self.dur_ns):
            raise ValueError(f"{len(self.items)} items cannot have {len(self.dur_ns)} durations")
        if (self.dur_ns < 0).any() or any(not 0 <= hidden.kept <= 1 for hidden in self.removed_cpu_time):
            raise ValueError("an edit leaves durations of 0 or more, and keeps a share between 0 and 1")

    def __or__(self, other: Edit) -> Edit:
        """Both changes; where both are bounds so are they together."""
        return Edit(
            np.concatenate((self.items, other.items)),
            np.concatenate((self.dur_ns, other.dur_ns)),
            np.concatenate((self.dropped_calls, other.dropped_calls)),
            np.concatenate((self.unblocked_calls, other.unblocked_calls)),
            (*self.removed_cpu_time, *other.removed_cpu_time),
            self.is_upper_bound and other.is_upper_bound,
        )


def set_durations(trace: Trace, rows: Rows, best_ns: float | npt.NDArray[np.floating], *, bound: bool = True) -> Edit:
    """Some GPU items take `best_ns` each, or as long as they do where that is longer or not known (NaN)."""
    items = _rows(rows)
    dur = trace.gpu.dur_ns[items].astype(np.float64)
    return Edit(items, np.fmin(np.maximum(best_ns, 0), dur).astype(np.int64), is_upper_bound=bound)


def scale_durations(trace: Trace, rows: Rows, saved_share: float, *, bound: bool = True) -> Edit:
    """Some GPU items save the same share (0 to 1) of their time."""
    items = _rows(rows)
    return set_durations(trace, items, trace.gpu.dur_ns[items] * (1 - saved_share), bound=bound)


def remove_items(trace: Trace, rows: Rows, *, bound: bool = True) -> Edit:
    """Some GPU items are gone (fused into others, or copies that are not needed), and their launches with them.

    What the CPU did in the op around each launch goes, too, if all that it launched does. Launches of several items
    stay where some of those stay.
    """
    items, gpu, calls = _rows(rows), trace.gpu, trace.calls
    gone = np.zeros(len(calls) + 1, np.int64)
    np.add.at(gone, gpu.call[items], 1)
    launched = np.bincount(gpu.call[gpu.call >= 0], minlength=len(calls) + 1)
    dropped = np.flatnonzero((gone[:-1] > 0) & (gone[:-1] == launched[:-1]))
    return Edit(
        items,
        np.zeros(len(items), np.int64),
        dropped,
        removed_cpu_time=_work_around(trace, dropped, gone[:-1] > 0),
        is_upper_bound=bound,
    )


def fused(trace: Trace, rows: Rows, saved_share: float, kept: Rows, *, bound: bool = True) -> Edit:
    """Some GPU items become fewer: all together save a share of their time, and only `kept` of them are launched.

    What is fused runs where its parts ran, each a share shorter: the sum is that of the fused kernels.
    """
    items = _rows(rows)
    gone = np.zeros(len(trace.calls) + 1, bool)
    gone[trace.gpu.call[items]] = True
    gone[trace.gpu.call[_rows(kept)]] = False
    launches = np.flatnonzero(gone[:-1])
    return scale_durations(trace, items, saved_share, bound=bound) | Edit(
        removed_cpu_time=_work_around(trace, launches, gone[:-1]), is_upper_bound=True
    )


def _work_around(trace: Trace, dropped: Int64Array, gone: BoolArray) -> tuple[Hidden, ...]:
    """The time in dropped calls, and in the ops around them that launch nothing else."""
    calls, ops = trace.calls, trace.ops
    launching = np.zeros(len(calls), bool)
    launching[trace.gpu.call[trace.gpu.call >= 0]] = True
    op = calls.op[dropped]
    kept = np.zeros(len(ops) + 1, bool)
    kept[calls.op[launching & ~gone]] = True
    whole = (op >= 0) & ~kept[op]
    start = np.where(whole, np.append(ops.start_ns, 0)[op], calls.start_ns[dropped])
    end = np.where(whole, np.append(ops.end_ns, 0)[op], calls.end_ns[dropped])
    return _by_thread(calls.thread[dropped], start, end)


def _by_thread(thread: Int32Array, start: Int64Array, end: Int64Array) -> tuple[Hidden, ...]:
    """Time that vanishes, of each thread."""
    threads = [(number, thread == number) for number in sorted(set(thread.tolist()))]
    return tuple(Hidden(number, iv.union(start[mine], end[mine])) for number, mine in threads)


def remove_waits(calls: Rows) -> Edit:
    """The CPU no longer waits for the GPU in some calls."""
    return Edit(unblocked_calls=_rows(calls))


def remove_blocking(trace: Trace, calls: Rows, done_ns: Int64Array) -> Edit:
    """Some calls, and the synchronize calls up to `done_ns`, take no time: copies from pinned memory.

    Args:
        trace: the trace.
        calls: rows of its calls.
        done_ns: for each of them when the CPU went on.
    """
    rows, table = _rows(calls), trace.calls
    hidden = _by_thread(table.thread[rows], table.start_ns[rows], done_ns)
    inside = np.zeros(len(table), bool)
    for each in hidden:
        inside |= (table.thread == each.thread) & iv.contains(each.intervals, table.start_ns)
    return Edit(unblocked_calls=np.flatnonzero(inside), removed_cpu_time=hidden, is_upper_bound=True)


def remove_calls(trace: Trace, calls: Rows) -> Edit:
    """Some calls that launch nothing are not made: allocations that a cache serves."""
    rows, table = _rows(calls), trace.calls
    return Edit(
        dropped_calls=rows, removed_cpu_time=_by_thread(table.thread[rows], table.start_ns[rows], table.end_ns[rows])
    )


def remove_cpu_time(
    thread: Int32Array,
    spans: tuple[Int64Array, Int64Array],
    window: Intervals,
    kept: float = 0.0,
    *,
    bound: bool = False,
) -> Edit:
    """Times of threads vanish but for a share `kept` of them: a loader's waits that workers hide.

    Args:
        thread: of each time its thread, an index into `Trace.threads`.
        spans: where they begin and end.
        window: the analysed time; what lies outside stays.
        kept: the share that stays.
        bound: whether that is the best that the fix can do.
    """
    inside = [h._replace(intervals=iv.intersect(h.intervals, window), kept=kept) for h in _by_thread(thread, *spans)]
    return Edit(removed_cpu_time=tuple(inside), is_upper_bound=bound)


def shorten_launches(trace: Trace, calls: Rows, window: Intervals, kept: float = 0.0, *, bound: bool = True) -> Edit:
    """The CPU takes a share `kept` of its time to get to some launches, and in them: CUDA graphs, compiled code.

    Counted from the call before it on its thread, but at most a millisecond: what takes longer is no launching.
    """
    rows = _rows(calls)
    hidden = []
    for thread in sorted(set(trace.calls.thread[rows].tolist())):
        on_thread = np.flatnonzero(trace.calls.thread == thread)
        reach = np.maximum.accumulate(trace.calls.end_ns[on_thread])
        since = np.append(np.iinfo(np.int64).min // 4, reach[:-1])
        wanted = np.isin(on_thread, rows)
        start = np.maximum(since, trace.calls.start_ns[on_thread] - _LAUNCH_WORK_NS)[wanted]
        spans = iv.union(start, trace.calls.end_ns[on_thread[wanted]])
        hidden.append(Hidden(thread, iv.intersect(spans, window), kept))
    return Edit(removed_cpu_time=tuple(hidden), is_upper_bound=bound)


def _rows(rows: Rows) -> Int64Array:
    found = np.flatnonzero(rows) if rows.dtype == bool else rows
    return found.astype(np.int64)


def edited(graph: Graph, edits: Iterable[tuple[Edit, float]]) -> Int64Array:
    """The lags of a graph after some edits, each as far as its strength (0 to 1) says.

    Where two edits shorten the same item the shorter duration holds; nothing is taken away twice.
    """
    lag_ns = graph.lag_ns.copy()
    hidden: list[tuple[Hidden, float]] = []
    for edit, strength in edits:
        _shorten(graph, edit, strength, lag_ns)
        hidden += [(each, (1 - each.kept) * strength) for each in edit.removed_cpu_time]
        if strength:
            _unblock(graph, edit, lag_ns)
        if strength == 1:
            _drop(graph, edit, lag_ns)
    _hide(graph, hidden, lag_ns)
    return lag_ns


def _positions(rows: Int64Array, of: Int32Array) -> Int64Array:
    """Where rows stand in a column of rows; those that do not are left out."""
    if not len(of):
        return _none()
    order = np.argsort(of, kind="stable")
    at = order[np.minimum(np.searchsorted(of, rows, sorter=order), len(of) - 1)]
    found: Int64Array = at[of[at] == rows]
    return found


def _shorten(graph: Graph, edit: Edit, strength: float, lag_ns: Int64Array) -> None:
    """Items take their new durations, or a part of the way to them."""
    if not len(edit.items):
        return
    events = graph.events
    new = np.full(int(max(events.item.max(initial=0), edit.items.max())) + 1, np.iinfo(np.int64).max)
    np.minimum.at(new, edit.items, edit.dur_ns)
    nodes = events.item_end
    whole = graph.lag_ns[nodes, OWN]
    less = np.maximum(whole - new[events.item], 0) * strength
    lag_ns[nodes, OWN] = np.minimum(lag_ns[nodes, OWN], whole - less.astype(np.int64))


def _unblock(graph: Graph, edit: Edit, lag_ns: Int64Array) -> None:
    """Nobody waits in dropped and unblocked calls."""
    calls = _positions(np.concatenate((edit.dropped_calls, edit.unblocked_calls)), graph.events.call)
    lag_ns[graph.events.call_end[calls][:, None], (WAIT, OTHER)] = NEVER


def _drop(graph: Graph, edit: Edit, lag_ns: Int64Array) -> None:
    """Dropped calls and their items take no time."""
    events = graph.events
    calls = _positions(edit.dropped_calls, events.call)
    # What began before the window, or begins it, stays where it is: else the window would begin earlier.
    begin = events.time_ns[events.boundary[0]]
    lag_ns[events.call_end[calls[events.time_ns[events.call_end[calls]] > begin]], OWN] = 0
    gone = np.zeros(len(events.call) + 1, bool)
    gone[calls] = True
    items = gone[events.launch] & (events.time_ns[events.item_start] > begin)
    lag_ns[events.item_end[items], OWN] = 0
    starts = events.item_start[items]
    lag_ns[starts] = np.minimum(lag_ns[starts], 0)


def _hide(graph: Graph, hidden: Iterable[tuple[Hidden, float]], lag_ns: Int64Array) -> None:
    """The CPU's work on each thread gets shorter by what vanishes of it."""
    events, before = graph.events, graph.before[:, OWN]
    by_thread: dict[int, list[tuple[Intervals, float]]] = defaultdict(list)
    for each, share in hidden:
        by_thread[each.thread].append((each.intervals, share))
    if not by_thread:
        return
    on_cpu = (events.kind == CALL_START) | (events.kind == CALL_END)
    nodes = np.flatnonzero((on_cpu | (events.kind == BOUNDARY)) & (before >= 0))
    worker = np.where(on_cpu[nodes], nodes, before[nodes])
    nodes, worker = nodes[on_cpu[worker]], worker[on_cpu[worker]]
    thread = events.thread[events.row[worker]]
    for number, some in by_thread.items():
        mine = nodes[thread == number]
        start, end = events.time_ns[before[mine]], events.time_ns[mine]
        start = np.clip(events.time_ns[events.boundary[0]], start, end)
        less = np.zeros(len(mine))
        for intervals, share in _apart(some):
            less += iv.overlap(start, end, intervals) * share
        whole = lag_ns[mine, OWN]
        lag_ns[mine, OWN] = np.where(whole > 0, np.maximum(whole - less.astype(np.int64), 0), whole)


def _apart(some: list[tuple[Intervals, float]]) -> Iterator[tuple[Intervals, float]]:
    """Sets of intervals with shares made disjoint: what several hold, the one with the largest share keeps."""
    taken = iv.EMPTY
    for intervals, share in sorted(some, key=lambda pair: -pair[1]):
        yield iv.subtract(intervals, taken), share
        taken = iv.union_of((taken, intervals))
