"""What the starts of calls and of GPU items wait for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfdoctor.savings.graph_events import CALL_END, CALL_START, ITEM_END, ITEM_START, Events
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import links, nesting
from perfdoctor.trace.tables.model import Trace

OWN, WAIT, OTHER = range(3)
"""Slots of a node: what it continues (its thread, its launch, its own start), what it waits for, what else."""

# An item that starts later than this after all that it is known to wait for waited for something else, by an event that
# was not recorded or for want of room: for the item of another stream whose end explains all of it but _HANDOVER_NS, or
# but a tenth.
_UNEXPLAINED_NS = 10_000
_HANDOVER_NS = 5_000
_LEAST_EXPLAINED = 10
_SHORT_NS = 1 << 16
_BEFORE_ALL = np.iinfo(np.int64).min // 4


@dataclass(frozen=True)
class Edges:
    """The nodes of a replay and, as they become known, what each waits for (see `replay.Graph`)."""

    events: Events
    before: Int32Array
    lag_ns: Int64Array

    def join(self, nodes: Int32Array | Int64Array, slot: int, others: Int32Array | Int64Array) -> None:
        """Let nodes follow other nodes (-1: none) as they did in the trace."""
        time = self.events.time_ns
        self.before[nodes, slot] = others
        self.lag_ns[nodes, slot] = np.where(others >= 0, time.take(nodes) - time.take(others), 0)

    def when(self, nodes: Int32Array | Int64Array) -> Int64Array:
        """When nodes happened; before everything for -1."""
        return np.where(nodes >= 0, self.events.time_ns.take(nodes), _BEFORE_ALL)

    @cached_property
    def call_ns(self) -> int:
        """What a call takes the CPU that does not wait: the median of the trace, also for those that do."""
        events = self.events
        took = (events.time_ns[events.call_end] - events.time_ns[events.call_start])[~events.blocking]
        return median_ns(took) if len(took) else 0

    @cached_property
    def last_ends(self) -> tuple[Int32Array, Int32Array]:
        """For each node the item end before it that came last, and the last one of any other stream; -1 for none."""
        kind, row = self.events.kind, self.events.row
        ends = np.flatnonzero(kind == ITEM_END).astype(np.int32)
        stream = self.events.stream[row[ends]]
        at = np.arange(len(ends), dtype=np.int32)
        changed = np.append(True, stream[1:] != stream[:-1])[: len(ends)]
        other = np.maximum.accumulate(np.where(changed, at, 0)) - 1
        count = np.cumsum(kind == ITEM_END, dtype=np.int32) - (kind == ITEM_END)
        known = np.append(NONE, ends).astype(np.int32)
        return known.take(count), known.take(np.append(0, other + 1)).take(count)


def median_ns(took_ns: Int64Array) -> int:
    """The median of times of 0 and more, mostly short ones: counting those takes a tenth of `np.median`, and less."""
    middle = np.array([(len(took_ns) - 1) // 2, len(took_ns) // 2])
    short = np.cumsum(np.bincount(np.minimum(took_ns, _SHORT_NS))[:_SHORT_NS])
    if middle[1] < short[-1]:
        return int(np.searchsorted(short, middle, side="right").sum()) // 2
    return int(np.median(took_ns))


def latest(marked: BoolArray) -> Int32Array:
    """For each position the last marked one before it; -1 where there is none."""
    found = np.full(len(marked), NONE, np.int32)
    at = np.where(marked, np.arange(len(marked), dtype=np.int32), np.int32(NONE))
    np.maximum.accumulate(at[:-1], out=found[1:])
    return found


def cpu_edges(trace: Trace, edges: Edges) -> None:
    """Starts and ends of calls follow what their thread did last, or what another thread handed on."""
    events = edges.events
    nodes = np.flatnonzero((events.kind == CALL_START) | (events.kind == CALL_END)).astype(np.int32)
    thread = events.thread.take(events.row.take(nodes))
    # Of small numbers a stable sort is one count and one pass.
    by_thread = np.argsort(thread.astype(np.min_scalar_type(len(events.launching))), kind="stable")
    sorted_thread, last = thread.take(by_thread), np.full(len(nodes), NONE, np.int32)
    np.copyto(last[1:], nodes.take(by_thread[:-1]), where=sorted_thread[1:] == sorted_thread[:-1])
    own = np.empty(len(nodes), np.int32)
    own[by_thread] = last
    edges.join(nodes, OWN, own)
    launching = events.launching
    if np.count_nonzero(launching) < 2:
        return
    # Only threads that launch hand on to each other: others (watchdogs, pinning) run beside them.
    launches, ends = launching.take(thread), events.kind.take(nodes) == CALL_END
    given = latest(ends & launches)
    free = np.flatnonzero(~ends & launches & (given >= 0) & (thread.take(given) != thread))
    taken, handed, own = nodes[free], nodes[given[free]], own[free]
    handed_ns = edges.when(handed)
    op = trace.calls.op[events.call[events.row[taken]]]
    # A thread that was within an op at that moment did not wait for it.
    waits = (handed_ns > edges.when(own)) & ((op < 0) | (np.append(trace.ops.start_ns, 0)[op] > handed_ns))
    taken = taken[waits]
    edges.join(taken, OWN, handed[waits])
    edges.before[taken, OTHER] = own[waits]
    edges.lag_ns[taken, OTHER] = 0


def gpu_edges(trace: Trace, edges: Edges) -> None:
    """Items take their time, and start after their launch, their stream, and what their stream was told to wait for."""
    events = edges.events
    edges.join(events.item_end, OWN, events.item_start)
    start = events.item_start
    launched = np.where(events.launch >= 0, events.call_start[events.launch] if len(events.call) else NONE, NONE)
    launched = np.where(launched < start, launched, NONE)
    stream = _stream_ends(edges)
    told = np.maximum(_told_ends(trace, edges), _graph_ends(edges))
    begun_ns, launched_ns, stream_ns = edges.when(start), edges.when(launched), edges.when(stream)
    latency = _latency_ns(begun_ns - launched_ns, launched >= 0, (stream >= 0) & (stream_ns <= launched_ns))
    late_ns = begun_ns - np.maximum(np.maximum(launched_ns + latency, stream_ns), edges.when(told))
    unexplained = np.flatnonzero(late_ns > _UNEXPLAINED_NS)
    told[unexplained] = _handed_over(edges, start[unexplained], told[unexplained], late_ns[unexplained])
    binding = np.stack((launched_ns + latency, stream_ns, edges.when(told))).argmax(axis=0)
    for slot, others in enumerate((launched, stream, told)):
        edges.join(start, slot, others)
        # What does not explain the start could have come later: by all but what always passes in between.
        loose = start[binding != slot]
        edges.lag_ns[loose, slot] = np.minimum(edges.lag_ns[loose, slot], latency if slot == OWN else 0)


def _handed_over(edges: Edges, start: Int32Array, told: Int32Array, late_ns: Int64Array) -> Int32Array:
    """For late starts the end of an item of any stream that explains them; else what they waited for anyway."""
    for ended in edges.last_ends:
        handed = ended[start]
        near = edges.when(start) - edges.when(handed) <= np.maximum(_HANDOVER_NS, late_ns // _LEAST_EXPLAINED)
        told = np.where(near & (handed > told), handed, told)
    return told


def _stream_ends(edges: Edges) -> Int32Array:
    """For each item the end of the one before it on its stream."""
    events = edges.events
    nodes = np.flatnonzero((events.kind == ITEM_END) | (events.kind == ITEM_START)).astype(np.int32)
    row = events.row[nodes]
    order = np.argsort(events.stream[row], kind="stable")
    nodes, stream = nodes[order], events.stream[row[order]]
    ended = latest(events.kind[nodes] == ITEM_END)
    ended = np.where((ended >= 0) & (stream[ended] == stream), ended, NONE)
    found = np.full(len(events.item), NONE, np.int32)
    starts = np.flatnonzero(events.kind[nodes] == ITEM_START)
    ended = ended[starts]
    found[events.row[nodes[starts]]] = np.where(ended >= 0, nodes[ended], NONE)
    return found


def _latency_ns(took_ns: Int64Array, launched: BoolArray, idle: BoolArray) -> int:
    """From a launch call to the start of its item: the median for those on an idle stream, else the least of all."""
    if (launched & idle).any():
        return int(np.median(took_ns[launched & idle]))
    return int(took_ns[launched].min()) if launched.any() else 0


def _told_ends(trace: Trace, edges: Edges) -> Int32Array:
    """For each item the end of the one of another stream that its stream was told to wait for (cudaStreamWaitEvent).

    The event stands for what the other stream had been given before; the wait holds for what this one is given next.
    """
    events, syncs = edges.events, trace.syncs
    found = np.full(len(events.item), NONE, np.int32)
    event_waits = trace.match_rows(syncs, vocabulary.STREAM_WAIT_RECORD)
    told = np.flatnonzero(event_waits & (syncs.wait_stream >= 0) & (syncs.stream >= 0))
    linked = np.flatnonzero(events.launch >= 0)
    if not len(told) or not len(linked):
        return found
    call = links.find_first(syncs.correlation[told], trace.calls.correlation)
    at = np.where(call >= 0, trace.calls.start_ns[call], syncs.start_ns[told])
    given = trace.calls.start_ns[events.call[events.launch[linked]]]
    stream = trace.gpu.stream[events.item[linked]]
    order = np.lexsort((given, stream))
    sorted_stream = stream[order]
    last = nesting.count_up_to(syncs.wait_stream[told], at, stream, given) - 1
    following = nesting.count_up_to(syncs.stream[told], at, stream, given)
    fits = (last >= 0) & (following < len(order))
    fits[fits] = (sorted_stream[last[fits]] == syncs.wait_stream[told[fits]]) & (
        sorted_stream[following[fits]] == syncs.stream[told[fits]]
    )
    waits, ends = linked[order[following[fits]]], events.item_end[linked[order[last[fits]]]]
    ends = np.where(ends < events.item_start[waits], ends, NONE)
    np.maximum.at(found, waits, ends)
    return found


def _graph_ends(edges: Edges) -> Int32Array:
    """For each item of a launch of several (a CUDA graph) the one of them that ended last before it started."""
    events = edges.events
    found = np.full(len(events.item), NONE, np.int32)
    several = np.bincount(events.launch[events.launch >= 0], minlength=len(events.call)) > 1
    rows = np.flatnonzero((events.launch >= 0) & np.append(several, False)[events.launch])
    if not len(rows):
        return found
    launch, end = events.launch[rows], events.item_end[rows].astype(np.int64)
    order = np.lexsort((end, launch))
    last = nesting.count_up_to(launch, events.item_start[rows].astype(np.int64), launch, end) - 1
    fits = last >= 0
    fits[fits] = launch[order[last[fits]]] == launch[fits]
    found[rows[fits]] = end[order[last[fits]]]
    return found
