"""Where the CPU waits for the GPU: in blocking calls, before a full launch queue, and at the end of the window."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.timeline.cpu_waits import FULL_QUEUE_LENGTH, FULL_QUEUE_NS
from perfdoctor.savings.graph_edges import OTHER, OWN, WAIT, Edges
from perfdoctor.savings.graph_events import CALL_START, ITEM_START
from perfdoctor.savings.longest_path import SLOTS
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import links, nesting
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.model import Trace

_QUEUE = 1_024  # launches that CUDA queues


def wait_edges(trace: Trace, edges: Edges) -> None:
    """Blocking calls return after what they wait for."""
    events = edges.events
    rows = np.flatnonzero(events.blocking).astype(np.int32)
    if len(rows) and len(events.item):
        last, other = edges.last_ends
        end = events.call_end[rows]
        edges.join(end, WAIT, _awaited(trace, edges, rows))
        whole = trace.match_rows(trace.calls, vocabulary.DEVICE_SYNC_CALL)[events.call[rows]]
        edges.before[end[whole], WAIT] = last[end[whole]]
        edges.join(end[whole], WAIT, last[end[whole]])
        edges.before[end[whole], OTHER] = other[end[whole]]
        _wait(edges, rows)
    staged = _staged(trace, edges)
    edges.join(events.call_end[staged], WAIT, events.item_start[_item_of(edges)[staged]])
    _wait(edges, staged)


def _wait(edges: Edges, rows: Int32Array) -> None:
    """Let calls whose slot WAIT is known wait there, if they did, instead of taking the time that they took."""
    events = edges.events
    end, start = events.call_end[rows], events.call_start[rows]
    awaited = edges.before[end, WAIT]
    waited = (awaited > start) & (awaited < end)
    edges.lag_ns[end[waited], OWN] = np.minimum(edges.lag_ns[end[waited], OWN], edges.call_ns)
    edges.lag_ns[end[~waited], WAIT] = 0


def _item_of(edges: Edges) -> Int32Array:
    """For each call the last item that it launched; -1 for none."""
    found = np.full(len(edges.events.call), NONE, np.int32)
    linked = np.flatnonzero(edges.events.launch >= 0)
    found[edges.events.launch[linked]] = linked
    return found


def _awaited(trace: Trace, edges: Edges, rows: Int32Array) -> Int32Array:
    """For each blocking call the node that it waited for: its own copy, else the last end of the stream it names."""
    events = edges.events
    end = events.call_end[rows]
    found = edges.last_ends[0][end].copy()
    stream = _named_stream(trace, events.call[rows])
    named = np.flatnonzero(stream >= 0)
    if len(named):
        of_item = trace.gpu.stream[events.item]
        ends = events.item_end.astype(np.int64)
        order = np.lexsort((ends, of_item))
        last = nesting.count_up_to(stream[named], end[named].astype(np.int64), of_item, ends) - 1
        fits = (last >= 0) & (of_item[order[np.maximum(last, 0)]] == stream[named])
        found[named] = np.where(fits, events.item_end[order[np.maximum(last, 0)]], NONE)
    item = _item_of(edges)[rows]
    copies = item >= 0
    found[copies] = events.item_end[item[copies]]
    return found


def _named_stream(trace: Trace, calls: Int32Array) -> Int64Array:
    """The stream that a call synchronised with, as cuda_sync records tell; -1 where they do not."""
    syncs = trace.syncs
    if not len(syncs):
        return np.full(len(calls), NONE, np.int64)
    record = links.find_first(trace.calls.correlation[calls], syncs.correlation)
    stream = np.where(syncs.stream[record] >= 0, syncs.stream[record], syncs.wait_stream[record])
    return np.where(record >= 0, stream, NONE)


def _staged(trace: Trace, edges: Edges) -> Int32Array:
    """Calls that return while their copy from pageable memory still runs: they waited until it could begin."""
    events = edges.events
    item = _item_of(edges)
    rows = np.flatnonzero((item >= 0) & ~events.blocking)
    rows = rows[copy_kinds_of(trace).with_host[events.item[item[rows]]]]
    start, end = events.call_start[rows], events.call_end[rows]
    stream_end = edges.before[events.item_start[item[rows]], WAIT]
    # Only what still ran on the stream when the call began makes it wait; the rest of its time it copied itself.
    held = (stream_end > start) & (events.item_start[item[rows]] < end)
    found: Int32Array = rows[held].astype(np.int32)
    return found


def queue_edges(edges: Edges) -> None:
    """Launches return when there is room in the queue of their stream."""
    events = edges.events
    linked = np.flatnonzero(events.launch >= 0)
    for stream in np.flatnonzero(np.bincount(events.stream[linked]) > FULL_QUEUE_LENGTH).tolist():
        rows = linked[events.stream[linked] == stream]
        launch, first = np.unique(events.launch[rows], return_index=True)
        _queue_of_stream(edges, launch, events.item_start[rows[first]])


def _queue_of_stream(edges: Edges, launch: Int32Array, begun: Int32Array) -> None:
    """The launches of one stream in their order, and the nodes at which their first items begin."""
    events = edges.events
    end = events.call_end[launch]
    reach = np.maximum.accumulate(begun)
    started = np.searchsorted(reach, end)
    depth = np.arange(len(launch)) + 1 - started
    took = edges.events.time_ns[end] - edges.events.time_ns[events.call_start[launch]]
    full = (took > FULL_QUEUE_NS) & (depth >= FULL_QUEUE_LENGTH) & (started > 0) & ~events.blocking[launch]
    rows = np.flatnonzero(full)
    edges.join(end[rows], WAIT, reach[started[rows] - 1])
    _wait(edges, launch[rows])
    room = max(_QUEUE, int(depth.max()) + 1)
    edges.before[end[room:], OTHER] = begun[: len(begun) - room] if len(begun) > room else begun[:0]


def boundary_edges(trace: Trace, edges: Edges) -> None:
    """Boundaries come when the CPU is where it was then, and the GPU through with what had ended before.

    The CPU runs ahead of the GPU, at the beginning of the window as at its end: a faster GPU alone only lets it run
    less far ahead. So at a boundary the CPU must have got as far as it had, unless it waited there or had nothing left
    to do.
    """
    events = edges.events
    nodes = events.boundary
    last, other = edges.last_ends
    begun = _last_of(nodes, events.kind == ITEM_START)
    begins = (edges.when(begun) == edges.when(nodes)) & (edges.when(last[nodes]) < edges.when(nodes))
    on_cpu, launching = np.zeros(len(events.kind), bool), events.launching[events.thread]
    on_cpu[events.call_start[launching]] = on_cpu[events.call_end[launching]] = True
    own = np.where(begins, begun, _last_of(nodes, on_cpu))
    edges.join(nodes, OWN, own)
    for slot, ends in ((WAIT, last), (OTHER, other)):
        edges.before[nodes, slot] = ends[nodes]
        edges.lag_ns[nodes, slot] = 0
    known = ~begins & (own >= 0)
    busy_until = np.minimum(_last_activity(trace, edges.when(nodes)), edges.when(nodes))
    inside = known & (events.kind[own] == CALL_START)
    inside[inside] = events.blocking[events.row[own[inside]]]
    busy = np.where(inside, 0, np.maximum(busy_until - edges.when(own), 0))
    edges.lag_ns[nodes[known], OWN] = busy[known]
    # What is left unexplained stays as it was.
    at = np.stack([edges.when(edges.before[nodes, slot]) + edges.lag_ns[nodes, slot] for slot in range(SLOTS)])
    edges.lag_ns[nodes, at.argmax(axis=0)] += edges.when(nodes) - at.max(axis=0)


def _last_activity(trace: Trace, at: Int64Array) -> Int64Array:
    """For each instant the latest end of the ops, calls and ranges that began before it."""
    found = np.full(len(at), np.iinfo(np.int64).min // 4)
    for table in (trace.ops, trace.calls, trace.ranges):
        begun = np.searchsorted(table.start_ns, at)
        reach = np.maximum.accumulate(table.end_ns) if len(table) else table.end_ns
        found = np.maximum(found, np.where(begun > 0, np.append(reach, 0)[begun - 1], found))
    return found


def _last_of(nodes: Int32Array, marked: BoolArray) -> Int32Array:
    """For each node the last marked one before it; -1 for none."""
    rows = np.flatnonzero(marked).astype(np.int32)
    return np.append(NONE, rows)[np.searchsorted(rows, nodes)].astype(np.int32)
