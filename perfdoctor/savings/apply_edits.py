"""Edits applied to the graph of a replay: how the lags between its nodes change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from perfdoctor.savings.edits import Edit, RemovedCpuTime
from perfdoctor.savings.graph_edges import OTHER, OWN, WAIT
from perfdoctor.savings.graph_events import BOUNDARY, CALL_END, CALL_START
from perfdoctor.savings.replay_graph import NEVER, Graph
from perfdoctor.trace.arrays import Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals


def apply_edits(graph: Graph, edits: Iterable[tuple[Edit, float]]) -> Int64Array:
    """The lags of a graph after some edits, each applied as far as its strength (0 to 1) says.

    Where two edits shorten the same item the shorter duration holds; nothing is taken away twice.
    """
    lag_ns = graph.lag_ns.copy()
    removed: list[tuple[RemovedCpuTime, float]] = []
    for edit, strength in edits:
        _shorten_items(graph, edit, strength, lag_ns)
        removed += [(each, (1 - each.remaining_share) * strength) for each in edit.removed_cpu_time]
        if strength:
            _unblock_calls(graph, edit, lag_ns)
        if strength == 1:
            _drop_calls(graph, edit, lag_ns)
    _remove_cpu_time(graph, removed, lag_ns)
    return lag_ns


def _positions(rows: Int64Array, column: Int32Array) -> Int64Array:
    """Where rows stand in a column of rows; those that do not are left out."""
    if not len(column):
        return np.empty(0, np.int64)
    order = np.argsort(column, kind="stable")
    at = order[np.minimum(np.searchsorted(column, rows, sorter=order), len(column) - 1)]
    found: Int64Array = at[column[at] == rows]
    return found


def _shorten_items(graph: Graph, edit: Edit, strength: float, lag_ns: Int64Array) -> None:
    """Items take their new durations, or a part of the way to them."""
    items = edit.items.index
    if not len(items):
        return
    events = graph.events
    new_ns = np.full(int(max(events.item.max(initial=0), items.max())) + 1, np.iinfo(np.int64).max)
    np.minimum.at(new_ns, items, edit.dur_ns)
    nodes = events.item_end
    recorded_ns = graph.lag_ns[nodes, OWN]
    less_ns = np.maximum(recorded_ns - new_ns[events.item], 0) * strength
    lag_ns[nodes, OWN] = np.minimum(lag_ns[nodes, OWN], recorded_ns - less_ns.astype(np.int64))


def _unblock_calls(graph: Graph, edit: Edit, lag_ns: Int64Array) -> None:
    """Nobody waits in dropped and unblocked calls."""
    calls = _positions(np.concatenate((edit.dropped_calls.index, edit.unblocked_calls.index)), graph.events.call)
    lag_ns[graph.events.call_end[calls][:, None], (WAIT, OTHER)] = NEVER


def _drop_calls(graph: Graph, edit: Edit, lag_ns: Int64Array) -> None:
    """Dropped calls and their items take no time."""
    events = graph.events
    calls = _positions(edit.dropped_calls.index, events.call)
    # What began before the window, or begins it, stays where it is: else the window would begin earlier.
    begin = events.time_ns[events.boundary[0]]
    lag_ns[events.call_end[calls[events.time_ns[events.call_end[calls]] > begin]], OWN] = 0
    dropped = np.zeros(len(events.call) + 1, bool)
    dropped[calls] = True
    items = dropped[events.launch] & (events.time_ns[events.item_start] > begin)
    lag_ns[events.item_end[items], OWN] = 0
    starts = events.item_start[items]
    lag_ns[starts] = np.minimum(lag_ns[starts], 0)


def _remove_cpu_time(graph: Graph, removed: Iterable[tuple[RemovedCpuTime, float]], lag_ns: Int64Array) -> None:
    """The CPU's work on each thread gets shorter by what vanishes of it."""
    events, before = graph.events, graph.before[:, OWN]
    by_thread: dict[int, list[tuple[Intervals, float]]] = defaultdict(list)
    for each, share in removed:
        by_thread[each.thread].append((each.intervals, share))
    if not by_thread:
        return
    on_cpu = (events.kind == CALL_START) | (events.kind == CALL_END)
    nodes = np.flatnonzero((on_cpu | (events.kind == BOUNDARY)) & (before >= 0))
    worker = np.where(on_cpu[nodes], nodes, before[nodes])  # the node whose thread did the work
    nodes, worker = nodes[on_cpu[worker]], worker[on_cpu[worker]]
    thread = events.thread[events.row[worker]]
    for number, some in by_thread.items():
        mine = nodes[thread == number]
        start, end = events.time_ns[before[mine]], events.time_ns[mine]
        start = np.clip(events.time_ns[events.boundary[0]], start, end)
        less_ns = np.zeros(len(mine))
        for intervals, share in _disjoint(some):
            less_ns += iv.overlap(start, end, intervals) * share
        own_ns = lag_ns[mine, OWN]
        lag_ns[mine, OWN] = np.where(own_ns > 0, np.maximum(own_ns - less_ns.astype(np.int64), 0), own_ns)


def _disjoint(some: list[tuple[Intervals, float]]) -> Iterator[tuple[Intervals, float]]:
    """Sets of intervals with shares made disjoint: what several hold, the one with the largest share keeps."""
    covered = iv.EMPTY
    for intervals, share in sorted(some, key=lambda pair: -pair[1]):
        yield iv.subtract(intervals, covered), share
        covered = iv.union_of((covered, intervals))
