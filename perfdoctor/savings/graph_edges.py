"""Edges between the nodes of a replay: order of threads, launches, streams, events, CUDA graphs.

A node has one slot each for up to three edges, and one predecessor a slot::

    node        ACTIVITY                 DEPENDENCY                 SECOND_DEPENDENCY
    call start  the node before it on    -                          the node before it on its thread,
                its thread, or the call                             where another thread handed work on
                that handed work on
    call end    the node before it on    the item whose end (or     an item of another stream, or one launched
                its thread               start) it waits for        a whole queue earlier
    item start  its launch               the item before it on      the item whose event its stream waits for
                                         its stream
    item end    its start                -                          -
    boundary    the last node on the     the last item end          the last item end on another stream
                CPU

The lag of an activity is how long it takes: work on the CPU, a call, the launch latency, a kernel.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.graph_nodes import CALL_END, CALL_START, ITEM_END, ITEM_START, Nodes
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import links, nesting
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.quantiles import quantiles

ACTIVITY, DEPENDENCY, SECOND_DEPENDENCY = range(3)
"""Slots of a node."""

# An item that starts later than this after all its known predecessors waited for something that was not recorded. An
# item of another stream that ended less than _EVENT_LATENCY_NS before, or less than a tenth of that delay, explains it.
_UNEXPLAINED_NS = 10_000
_EVENT_LATENCY_NS = 5_000
_LATENCY_PARTS = 10
_BEFORE_ALL = np.iinfo(np.int64).min // 4


@frozen_dataclass(eq=False)
class Edges:
    """The edges of a graph while they are being found.

    Attributes:
        nodes: The nodes.
        predecessor: int32 (n, SLOTS), for each node and slot the predecessor; NONE for no edge.
        lag_ns: int64 (n, SLOTS), how long after its predecessor a node happens at the earliest.
    """

    nodes: Nodes
    predecessor: Int32Array
    lag_ns: Int64Array

    def add(self, nodes: Int32Array | Int64Array, slot: int, predecessor: Int32Array | Int64Array) -> None:
        """Add edges to some nodes, with the lags of the trace; a predecessor NONE is no edge."""
        time_ns = self.nodes.time_ns
        self.predecessor[nodes, slot] = predecessor
        self.lag_ns[nodes, slot] = np.where(predecessor >= 0, time_ns.take(nodes) - time_ns.take(predecessor), 0)

    def times_of(self, nodes: Int32Array | Int64Array) -> Int64Array:
        """When nodes happened, in ns; before everything for NONE."""
        return np.where(nodes >= 0, self.nodes.time_ns.take(nodes), _BEFORE_ALL)

    @cached_property
    def median_call_ns(self) -> int:
        """The median duration of calls that do not block: what a blocking call costs the CPU besides its wait."""
        nodes = self.nodes
        durations_ns = (nodes.time_ns[nodes.call_end] - nodes.time_ns[nodes.call_start])[~nodes.blocking]
        # Sorting takes a tenth of the time of np.median, which partitions: many calls take equally long.
        return int(quantiles(durations_ns, (0.5,))[0]) if len(durations_ns) else 0

    @cached_property
    def last_item_ends(self) -> tuple[Int32Array, Int32Array]:
        """For each node the last item end before it, and the last one on any other stream than that; or NONE.

        For example::

            node                 last  last on another stream
            0  end on stream 7   NONE  NONE
            1  end on stream 9   0     NONE
            2  end on stream 9   1     0
            3  a call            2     0
        """
        is_end = self.nodes.kind == ITEM_END
        ends = np.flatnonzero(is_end).astype(np.int32)
        stream = self.nodes.stream[self.nodes.row[ends]]
        at = np.arange(len(ends), dtype=np.int32)
        changed = np.append(True, stream[1:] != stream[:-1])[: len(ends)]
        other = np.maximum.accumulate(np.where(changed, at, 0)) - 1
        count = np.cumsum(is_end, dtype=np.int32) - is_end
        ends_or_none = np.append(NONE, ends).astype(np.int32)
        return ends_or_none.take(count), ends_or_none.take(np.append(0, other + 1)).take(count)


def find_latest(marked: BoolArray) -> Int32Array:
    """For each position the last marked one before it, or NONE."""
    found = np.full(len(marked), NONE, np.int32)
    at = np.where(marked, np.arange(len(marked), dtype=np.int32), np.int32(NONE))
    np.maximum.accumulate(at[:-1], out=found[1:])
    return found


def add_cpu_edges(trace: Trace, edges: Edges) -> None:
    """Starts and ends of calls follow the node before them on their thread, or a thread that hands work on."""
    nodes = edges.nodes
    at = np.flatnonzero((nodes.kind == CALL_START) | (nodes.kind == CALL_END)).astype(np.int32)
    thread = nodes.thread.take(nodes.row.take(at))
    # numpy sorts numbers of 8 and 16 bits by counting: one pass instead of a merge sort.
    by_thread = np.argsort(thread.astype(np.min_scalar_type(len(nodes.driving))), kind="stable")
    sorted_thread, before = thread.take(by_thread), np.full(len(at), NONE, np.int32)
    np.copyto(before[1:], at.take(by_thread[:-1]), where=sorted_thread[1:] == sorted_thread[:-1])
    thread_before = np.empty(len(at), np.int32)
    thread_before[by_thread] = before
    edges.add(at, ACTIVITY, thread_before)
    if np.count_nonzero(nodes.driving) > 1:
        _add_handovers(trace, edges, at, thread_before)


def _add_handovers(trace: Trace, edges: Edges, at: Int32Array, thread_before: Int32Array) -> None:
    """Calls on a thread that was idle follow the call of another thread that ended last.

    Forward and backward run on different threads and hand work on to each other. Threads that neither launch nor wait
    for the GPU (watchdogs, pinning) run beside them.

    Args:
        trace: The trace.
        edges: The edges.
        at: The nodes of calls.
        thread_before: For each of them the node before it on its thread, or NONE.
    """
    nodes = edges.nodes
    thread, is_end = nodes.thread.take(nodes.row.take(at)), nodes.kind.take(at) == CALL_END
    driving = nodes.driving.take(thread)
    last_end = find_latest(is_end & driving)
    starts = np.flatnonzero(~is_end & driving & (last_end >= 0) & (thread.take(last_end) != thread))
    call_start, handover, before = at[starts], at[last_end[starts]], thread_before[starts]
    handover_ns = edges.times_of(handover)
    op = trace.calls.op[nodes.call[nodes.row[call_start]]]
    # A thread that was within an op at that moment was not idle.
    idle = (handover_ns > edges.times_of(before)) & ((op < 0) | (np.append(trace.ops.start_ns, 0)[op] > handover_ns))
    call_start = call_start[idle]
    edges.add(call_start, ACTIVITY, handover[idle])
    edges.predecessor[call_start, SECOND_DEPENDENCY] = before[idle]
    edges.lag_ns[call_start, SECOND_DEPENDENCY] = 0


def add_gpu_edges(trace: Trace, edges: Edges) -> None:
    """Items end after their duration, and start after their launch, the item before, and the event they wait for.

    The predecessor that explains the start keeps its lag, so that the replay of the unchanged trace is exact. The other
    edges are lower bounds. For example, with a launch latency of 5 us::

        launch  stream free  event  start    lags
        100     150          NONE   152      launch 5, stream 2
        100     90           NONE   107      launch 7, stream 0
        100     90           130    131      launch 5, stream 0, event 1
    """
    nodes = edges.nodes
    edges.add(nodes.item_end, ACTIVITY, nodes.item_start)
    start = nodes.item_start
    launch = np.where(nodes.launch >= 0, nodes.call_start[nodes.launch] if len(nodes.call) else NONE, NONE)
    launch = np.where(launch < start, launch, NONE)
    stream = _find_stream_predecessors(edges)
    event = np.maximum(_find_awaited_items(trace, edges), _find_graph_predecessors(edges))
    start_ns, launch_ns, stream_ns = edges.times_of(start), edges.times_of(launch), edges.times_of(stream)
    latency_ns = _launch_latency_ns(start_ns - launch_ns, launch >= 0, (stream >= 0) & (stream_ns <= launch_ns))
    ready_ns = np.maximum(np.maximum(launch_ns + latency_ns, stream_ns), edges.times_of(event))
    late = np.flatnonzero(start_ns - ready_ns > _UNEXPLAINED_NS)
    event[late] = _infer_awaited_items(edges, start[late], event[late], (start_ns - ready_ns)[late])
    binding = np.stack((launch_ns + latency_ns, stream_ns, edges.times_of(event))).argmax(axis=0)
    for slot, predecessor in enumerate((launch, stream, event)):
        edges.add(start, slot, predecessor)
        not_binding = start[binding != slot]
        min_ns = latency_ns if slot == ACTIVITY else 0
        edges.lag_ns[not_binding, slot] = np.minimum(edges.lag_ns[not_binding, slot], min_ns)


def _infer_awaited_items(edges: Edges, start: Int32Array, event: Int32Array, late_ns: Int64Array) -> Int32Array:
    """For items that start late: the end of an item shortly before, which explains the start; else the known event."""
    for item_end in edges.last_item_ends:
        last = item_end[start]
        near = edges.times_of(start) - edges.times_of(last) <= np.maximum(_EVENT_LATENCY_NS, late_ns // _LATENCY_PARTS)
        event = np.where(near & (last > event), last, event)
    return event


def _find_stream_predecessors(edges: Edges) -> Int32Array:
    """For each item the end of the item before it on its stream, or NONE."""
    nodes = edges.nodes
    at = np.flatnonzero((nodes.kind == ITEM_END) | (nodes.kind == ITEM_START)).astype(np.int32)
    stream = nodes.stream[nodes.row[at]]
    by_stream = np.argsort(stream, kind="stable")
    at, stream = at[by_stream], stream[by_stream]
    starts = np.flatnonzero(nodes.kind[at] == ITEM_START)
    last_end = find_latest(nodes.kind[at] == ITEM_END)[starts]
    same = (last_end >= 0) & (stream[last_end] == stream[starts])
    found = np.full(len(nodes.item), NONE, np.int32)
    found[nodes.row[at[starts]]] = np.where(same, at[last_end], NONE)
    return found


def _launch_latency_ns(delay_ns: Int64Array, launched: BoolArray, idle: BoolArray) -> int:
    """From a launch to the start of its item: the median where the stream was idle, else the least of all.

    Args:
        delay_ns: For each item from its launch to its start.
        launched: For each item whether its launch is known.
        idle: For each item whether its stream was free at the launch.
    """
    if (launched & idle).any():
        return int(np.median(delay_ns[launched & idle]))
    return int(delay_ns[launched].min()) if launched.any() else 0


def _find_awaited_items(trace: Trace, edges: Edges) -> Int32Array:
    """For each item the end of the item whose event its stream waits for (cudaStreamWaitEvent), or NONE.

    The event comes after all items launched on the other stream before the call; the next item launched on this stream
    waits for it::

        stream 7  launch a
        stream 9            cudaStreamWaitEvent(stream 7)  launch b      b waits for the end of a
    """
    nodes, syncs = edges.nodes, trace.syncs
    found = np.full(len(nodes.item), NONE, np.int32)
    is_wait = trace.match_rows(syncs, vocabulary.STREAM_WAIT_RECORD)
    waits = np.flatnonzero(is_wait & (syncs.wait_stream >= 0) & (syncs.stream >= 0))
    linked = np.flatnonzero(nodes.launch >= 0)
    if not len(waits) or not len(linked):
        return found
    call = links.find_first(syncs.correlation[waits], trace.calls.correlation)
    wait_ns = np.where(call >= 0, trace.calls.start_ns[call], syncs.start_ns[waits])
    launch_ns = trace.calls.start_ns[nodes.call[nodes.launch[linked]]]
    stream = trace.gpu.stream[nodes.item[linked]]
    order = np.lexsort((launch_ns, stream))
    sorted_stream = stream[order]
    last = nesting.count_preceding(syncs.wait_stream[waits], wait_ns, stream, launch_ns) - 1
    following = nesting.count_preceding(syncs.stream[waits], wait_ns, stream, launch_ns)
    fits = (last >= 0) & (following < len(order))
    fits[fits] = (sorted_stream[last[fits]] == syncs.wait_stream[waits[fits]]) & (
        sorted_stream[following[fits]] == syncs.stream[waits[fits]]
    )
    waiting, ends = linked[order[following[fits]]], nodes.item_end[linked[order[last[fits]]]]
    ends = np.where(ends < nodes.item_start[waiting], ends, NONE)
    np.maximum.at(found, waiting, ends)
    return found


def _find_graph_predecessors(edges: Edges) -> Int32Array:
    """For each item of a CUDA graph the item of the same launch that ended last before it started, or NONE."""
    nodes = edges.nodes
    found = np.full(len(nodes.item), NONE, np.int32)
    several = np.bincount(nodes.launch[nodes.launch >= 0], minlength=len(nodes.call)) > 1
    rows = np.flatnonzero((nodes.launch >= 0) & np.append(several, False)[nodes.launch])
    if not len(rows):
        return found
    launch, end = nodes.launch[rows], nodes.item_end[rows].astype(np.int64)
    order = np.lexsort((end, launch))
    last = nesting.count_preceding(launch, nodes.item_start[rows].astype(np.int64), launch, end) - 1
    fits = last >= 0
    fits[fits] = launch[order[last[fits]]] == launch[fits]
    found[rows[fits]] = end[order[last[fits]]]
    return found
