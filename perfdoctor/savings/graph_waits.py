"""Edges by which the CPU waits for the GPU: in blocking calls, for a full launch queue, at the ends of the window."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.timeline.cpu_waits import FULL_QUEUE_LENGTH, FULL_QUEUE_NS, find_event_waits
from perfdoctor.savings.graph_edges import ACTIVITY, DEPENDENCY, SECOND_DEPENDENCY, Edges
from perfdoctor.savings.graph_nodes import CALL_START, ITEM_START
from perfdoctor.savings.longest_path import SLOTS
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import links, nesting
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.unrecorded_tail import find_unrecorded_tail

_QUEUE_LENGTH = 1_024  # launches that CUDA queues


def add_blocking_edges(trace: Trace, edges: Edges) -> None:
    """Blocking calls end after what they wait for: their stream, their copy, or all streams of the device."""
    nodes = edges.nodes
    calls = np.flatnonzero(nodes.blocking).astype(np.int32)
    _add_event_edges(trace, edges)
    if len(calls) and len(nodes.item):
        last, on_other_stream = edges.last_item_ends
        edges.add(nodes.call_end[calls], DEPENDENCY, _find_awaited_ends(trace, edges, calls))
        whole_device = trace.match_rows(trace.calls, vocabulary.DEVICE_SYNC_CALL)[nodes.call[calls]]
        end = nodes.call_end[calls[whole_device]]
        edges.add(end, DEPENDENCY, last[end])
        edges.predecessor[end, SECOND_DEPENDENCY] = on_other_stream[end]
        _let_calls_wait(edges, calls, _own_times_ns(trace, edges, calls))
    staged = _find_staged_copies(trace, edges)
    edges.add(nodes.call_end[staged], DEPENDENCY, nodes.item_start[_last_item_of_calls(edges)[staged]])
    _let_calls_wait(edges, staged, edges.median_call_ns)


def _add_event_edges(trace: Trace, edges: Edges) -> None:
    """Reads of times begin after the GPU work whose events they read, where the wait for these was not recorded."""
    nodes = edges.nodes
    rows, _ = find_event_waits(trace)
    if not len(rows) or not len(nodes.item):
        return
    start = nodes.call_start[np.isin(nodes.call, rows)]
    edges.add(start, DEPENDENCY, edges.last_item_ends[0][start])
    edges.lag_ns[start, ACTIVITY] = np.minimum(edges.lag_ns[start, ACTIVITY], edges.median_call_ns)


def _let_calls_wait(edges: Edges, calls: Int32Array, own_ns: int | Int64Array) -> None:
    """Shorten the activity of calls that waited to what they take by themselves: the dependency explains the rest.

    A call that did not wait keeps its duration, and its dependency becomes a lower bound without a lag.
    """
    end = edges.nodes.call_end[calls]
    waited = _have_waited(edges, calls)
    shorter_ns = np.minimum(edges.lag_ns[end, ACTIVITY], own_ns)
    edges.lag_ns[end[waited], ACTIVITY] = shorter_ns[waited]
    edges.lag_ns[end[~waited], DEPENDENCY] = 0


def _have_waited(edges: Edges, calls: Int32Array) -> BoolArray:
    """For each call whether what it depends on happened during the call."""
    start, end = edges.nodes.call_start[calls], edges.nodes.call_end[calls]
    predecessor = edges.predecessor[end, DEPENDENCY]
    waited: BoolArray = (predecessor > start) & (predecessor < end)
    return waited


def _own_times_ns(trace: Trace, edges: Edges, calls: Int32Array) -> Int64Array:
    """For each blocking call what such a call takes besides its wait, at most as long as a call that never blocks.

    That is the median duration of those of its name that found their work done; without any, the median time in which
    those that waited returned once it was, which in 8 of 11 real traces is nearer to the first than other calls are.
    """
    nodes, name = edges.nodes, trace.calls.name[edges.nodes.call[calls]]
    start, end = nodes.call_start[calls], nodes.call_end[calls]
    predecessor, waited = edges.predecessor[end, DEPENDENCY], _have_waited(edges, calls)
    found_done = (predecessor >= 0) & (predecessor < start)
    since_ns = edges.times_of(np.where(waited, predecessor, start))
    own_ns = np.full(len(calls), edges.median_call_ns)
    for each in distinct(name):
        for known in (found_done & (name == each), waited & (name == each)):
            if known.any():
                typical_ns = int(np.median((edges.times_of(end) - since_ns)[known]))
                own_ns[name == each] = min(typical_ns, edges.median_call_ns)
                break
    return own_ns


def _last_item_of_calls(edges: Edges) -> Int32Array:
    """For each call the last item that it launched, or NONE."""
    found = np.full(len(edges.nodes.call), NONE, np.int32)
    linked = np.flatnonzero(edges.nodes.launch >= 0)
    found[edges.nodes.launch[linked]] = linked
    return found


def _find_awaited_ends(trace: Trace, edges: Edges, calls: Int32Array) -> Int32Array:
    """For each blocking call the item end that it waits for, or NONE.

    That of its own copy, else the last one before its return: on the stream that it synchronizes, or on any.
    """
    nodes = edges.nodes
    end = nodes.call_end[calls]
    found = edges.last_item_ends[0][end].copy()
    stream = _find_synchronized_streams(trace, nodes.call[calls])
    known = np.flatnonzero(stream >= 0)
    if len(known):
        item_stream, item_end = trace.gpu.stream[nodes.item], nodes.item_end.astype(np.int64)
        order = np.lexsort((item_end, item_stream))
        last = nesting.count_preceding(stream[known], end[known].astype(np.int64), item_stream, item_end) - 1
        fits = (last >= 0) & (item_stream[order[np.maximum(last, 0)]] == stream[known])
        found[known] = np.where(fits, nodes.item_end[order[np.maximum(last, 0)]], NONE)
    item = _last_item_of_calls(edges)[calls]
    found[item >= 0] = nodes.item_end[item[item >= 0]]
    return found


def _find_synchronized_streams(trace: Trace, rows: Int32Array) -> Int64Array:
    """For each call the stream that it synchronizes with, by the cuda_sync records; NONE where they do not say."""
    syncs = trace.syncs
    if not len(syncs):
        return np.full(len(rows), NONE, np.int64)
    record = links.find_first(trace.calls.correlation[rows], syncs.correlation)
    stream = np.where(syncs.stream[record] >= 0, syncs.stream[record], syncs.wait_stream[record])
    return np.where(record >= 0, stream, NONE)


def _find_staged_copies(trace: Trace, edges: Edges) -> Int32Array:
    """The calls that copy from pageable memory and return while the copy runs: they wait until it can start."""
    nodes = edges.nodes
    last_item = _last_item_of_calls(edges)
    calls = np.flatnonzero((last_item >= 0) & ~nodes.blocking)
    calls = calls[copy_kinds_of(trace).with_host[nodes.item[last_item[calls]]]]
    item_start = nodes.item_start[last_item[calls]]
    stream_end = edges.predecessor[item_start, DEPENDENCY]
    # Only work that still ran on the stream when the call began makes it wait. The rest is the CPU's own copying.
    waited = (stream_end > nodes.call_start[calls]) & (item_start < nodes.call_end[calls])
    found: Int32Array = calls[waited].astype(np.int32)
    return found


def add_queue_edges(edges: Edges) -> None:
    """Launches return when the launch queue of their stream has room."""
    nodes = edges.nodes
    linked = np.flatnonzero(nodes.launch >= 0)
    for stream in np.flatnonzero(np.bincount(nodes.stream[linked]) > FULL_QUEUE_LENGTH).tolist():
        items = linked[nodes.stream[linked] == stream]
        launch, first = np.unique(nodes.launch[items], return_index=True)
        _add_edges_of_queue(edges, launch, nodes.item_start[items[first]])


def _add_edges_of_queue(edges: Edges, launch: Int32Array, item_start: Int32Array) -> None:
    """Add the edges of the queue of one stream.

    Args:
        edges: The edges.
        launch: The launches of the stream, in their order.
        item_start: For each launch the node at which its first item starts.
    """
    nodes = edges.nodes
    end = nodes.call_end[launch]
    latest_start = np.maximum.accumulate(item_start)
    started = np.searchsorted(latest_start, end)
    depth = np.arange(len(launch)) + 1 - started
    duration_ns = nodes.time_ns[end] - nodes.time_ns[nodes.call_start[launch]]
    full = (duration_ns > FULL_QUEUE_NS) & (depth >= FULL_QUEUE_LENGTH) & (started > 0) & ~nodes.blocking[launch]
    edges.add(end[full], DEPENDENCY, latest_start[started[full] - 1])
    _let_calls_wait(edges, launch[full], edges.median_call_ns)
    room = max(_QUEUE_LENGTH, int(depth.max()) + 1)
    edges.predecessor[end[room:], SECOND_DEPENDENCY] = item_start[: max(len(launch) - room, 0)]


def add_boundary_edges(trace: Trace, edges: Edges) -> None:
    """Boundaries of the window follow the CPU's last activity, and the items that had ended before.

    The CPU runs ahead of the GPU at the start of the window as at its end, so a faster GPU alone only shortens that
    lead: at a boundary the CPU must have done as much as in the trace. Waits and idle time do not count as activity,
    nor does what the CPU did for work that the recording lacks because it ended before.
    """
    nodes = edges.nodes
    boundary = nodes.boundary
    boundary_ns = edges.times_of(boundary)
    last, on_other_stream = edges.last_item_ends
    item_start = _find_latest_before(boundary, nodes.kind == ITEM_START)
    at_start = (edges.times_of(item_start) == boundary_ns) & (edges.times_of(last[boundary]) < boundary_ns)
    on_cpu, driving = np.zeros(len(nodes), bool), nodes.driving[nodes.thread]
    on_cpu[nodes.call_start[driving]] = on_cpu[nodes.call_end[driving]] = True
    tail_ns = trace.calls.start_ns[find_unrecorded_tail(trace)].min(initial=np.iinfo(np.int64).max)
    on_cpu &= nodes.time_ns < tail_ns
    before = np.where(at_start, item_start, _find_latest_before(boundary, on_cpu))
    edges.add(boundary, ACTIVITY, before)
    for slot, ends in ((DEPENDENCY, last), (SECOND_DEPENDENCY, on_other_stream)):
        edges.predecessor[boundary, slot] = ends[boundary]
        edges.lag_ns[boundary, slot] = 0
    known = ~at_start & (before >= 0)
    waits = known & (nodes.kind[before] == CALL_START)
    waits[waits] = nodes.blocking[nodes.row[before[waits]]]
    active_until_ns = np.minimum(_last_cpu_activity_ns(trace, np.minimum(boundary_ns, tail_ns)), boundary_ns)
    active_ns = np.where(waits, 0, np.maximum(active_until_ns - edges.times_of(before), 0))
    edges.lag_ns[boundary[known], ACTIVITY] = active_ns[known]
    # What these edges do not explain is added to the lag of the latest, so that the replay of the trace is exact.
    at_ns = np.stack(
        [edges.times_of(edges.predecessor[boundary, slot]) + edges.lag_ns[boundary, slot] for slot in range(SLOTS)]
    )
    edges.lag_ns[boundary, at_ns.argmax(axis=0)] += boundary_ns - at_ns.max(axis=0)


def _last_cpu_activity_ns(trace: Trace, at_ns: Int64Array) -> Int64Array:
    """For each instant the latest end of the ops, calls and ranges that began before it."""
    found = np.full(len(at_ns), np.iinfo(np.int64).min // 4)
    for table in (trace.ops, trace.calls, trace.ranges):
        count = np.searchsorted(table.start_ns, at_ns)
        latest_end = np.maximum.accumulate(table.end_ns) if len(table) else table.end_ns
        found = np.maximum(found, np.where(count > 0, np.append(latest_end, 0)[count - 1], found))
    return found


def _find_latest_before(boundary: Int32Array, marked: BoolArray) -> Int32Array:
    """For each boundary the last marked node before it, or NONE."""
    nodes = np.flatnonzero(marked).astype(np.int32)
    return np.append(NONE, nodes)[np.searchsorted(nodes, boundary)].astype(np.int32)
