"""Edits applied to the graph of a replay: how the lags of its edges change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from perfdoctor.savings.edits import Edit, RemovedCpuTime
from perfdoctor.savings.graph_edges import ACTIVITY, DEPENDENCY, SECOND_DEPENDENCY
from perfdoctor.savings.graph_nodes import BOUNDARY, CALL_END, CALL_START
from perfdoctor.savings.replay_graph import NEVER, Graph
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.rows import CallRows, GpuRows


def apply_edits(graph: Graph, edits: Iterable[tuple[Edit, float]]) -> Int64Array:
    """The lags of a graph after some edits, each applied as far as its strength (0 to 1) says.

    Where two edits shorten the same item the shorter duration counts; no time is removed twice.
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


def _find_calls(graph: Graph, calls: CallRows) -> Int64Array:
    """Positions in `graph.nodes.call` of some calls; those that are not in the graph are left out."""
    return np.flatnonzero(np.isin(graph.nodes.call, calls.index, kind="table"))


def _shorten_items(graph: Graph, edit: Edit, strength: float, lag_ns: Int64Array) -> None:
    """Items take their new durations; with a strength under 1 they get only a part of the way there."""
    items = edit.items.index
    if not len(items):
        return
    nodes = graph.nodes
    new_ns = np.full(int(max(nodes.item.max(initial=0), items.max())) + 1, np.iinfo(np.int64).max)
    np.minimum.at(new_ns, items, edit.dur_ns)
    ends = nodes.item_end
    recorded_ns = graph.lag_ns[ends, ACTIVITY]
    less_ns = np.maximum(recorded_ns - new_ns[nodes.item], 0) * strength
    lag_ns[ends, ACTIVITY] = np.minimum(lag_ns[ends, ACTIVITY], recorded_ns - less_ns.astype(np.int64))


def lengthen_items(graph: Graph, items: GpuRows, dur_ns: Int64Array) -> Int64Array:
    """The lags of a graph whose GPU items take other times, longer ones too: a question about more work, no fix.

    Args:
        graph: The graph.
        items: The items.
        dur_ns: For each of them how long it takes, against its duration in the table.
    """
    lag_ns, nodes = graph.lag_ns.copy(), graph.nodes
    more_ns = np.zeros(len(items.table) + 1, np.int64)  # the last entry is for nodes of no item
    more_ns[items.index] = dur_ns - items.table.dur_ns[items.index]
    lag_ns[nodes.item_end, ACTIVITY] += more_ns[nodes.item]
    return lag_ns


def _unblock_calls(graph: Graph, edit: Edit, lag_ns: Int64Array) -> None:
    """Dropped and unblocked calls wait for nothing."""
    for calls in (edit.dropped_calls, edit.unblocked_calls):
        ends = graph.nodes.call_end[_find_calls(graph, calls)]
        lag_ns[ends[:, None], (DEPENDENCY, SECOND_DEPENDENCY)] = NEVER


def _drop_calls(graph: Graph, edit: Edit, lag_ns: Int64Array) -> None:
    """Dropped calls and the items that they launch take no time."""
    nodes = graph.nodes
    calls = _find_calls(graph, edit.dropped_calls)
    # Calls and items that begin before the window or with it are unchanged: else the window would begin earlier.
    begin_ns = nodes.time_ns[nodes.boundary[0]]
    lag_ns[nodes.call_end[calls[nodes.time_ns[nodes.call_end[calls]] > begin_ns]], ACTIVITY] = 0
    dropped = np.zeros(len(nodes.call) + 1, bool)  # the last entry is for items without a launch
    dropped[calls] = True
    items = dropped[nodes.launch] & (nodes.time_ns[nodes.item_start] > begin_ns)
    lag_ns[nodes.item_end[items], ACTIVITY] = 0
    starts = nodes.item_start[items]
    lag_ns[starts] = np.minimum(lag_ns[starts], 0)


def _remove_cpu_time(graph: Graph, removed: Iterable[tuple[RemovedCpuTime, float]], lag_ns: Int64Array) -> None:
    """The CPU's activities on each thread lose the part that lies in removed time."""
    nodes, predecessor = graph.nodes, graph.predecessor[:, ACTIVITY]
    by_thread: dict[int, list[tuple[Intervals, float]]] = defaultdict(list)
    for each, share in removed:
        by_thread[each.thread].append((iv.subtract(each.intervals, graph.once), share))
    if not by_thread:
        return
    on_cpu = (nodes.kind == CALL_START) | (nodes.kind == CALL_END)
    ends = np.flatnonzero((on_cpu | (nodes.kind == BOUNDARY)) & (predecessor >= 0))
    worker = np.where(on_cpu[ends], ends, predecessor[ends])  # the node whose thread did the work
    ends, worker = ends[on_cpu[worker]], worker[on_cpu[worker]]
    thread = nodes.thread[nodes.row[worker]]
    for number, of_thread in by_thread.items():
        at = ends[thread == number]
        start_ns, end_ns = nodes.time_ns[predecessor[at]], nodes.time_ns[at]
        start_ns = np.clip(nodes.time_ns[nodes.boundary[0]], start_ns, end_ns)
        less_ns = np.zeros(len(at))
        for intervals, share in _split_overlaps(of_thread):
            less_ns += iv.overlap(start_ns, end_ns, intervals) * share
        activity_ns = lag_ns[at, ACTIVITY]
        shorter_ns = np.maximum(activity_ns - less_ns.astype(np.int64), 0)
        lag_ns[at, ACTIVITY] = np.where(activity_ns > 0, shorter_ns, activity_ns)


def _split_overlaps(removed: list[tuple[Intervals, float]]) -> Iterator[tuple[Intervals, float]]:
    """The same sets of intervals without overlaps: where several overlap, the one with the largest share counts."""
    covered = iv.EMPTY
    for intervals, share in sorted(removed, key=lambda pair: -pair[1]):
        yield iv.subtract(intervals, covered), share
        covered = iv.union_of((covered, intervals))
