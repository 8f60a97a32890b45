"""The calls and GPU items of a window, and the order in which their starts and ends came: the nodes of a replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import RETURN_LAG_NS, match_blocking_calls
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

ITEM_END, CALL_END, CALL_START, ITEM_START, BOUNDARY = range(5)
"""Kinds of nodes, in the order in which those of one instant come: what ends lets others begin."""

# Clocks and rounding to microseconds let what comes second seem to begin this much too early.
_ROUNDING_NS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Calls and GPU items that reach into a window, and the nodes that they are.

    Attributes:
        call: Rows of `Trace.calls`; `thread` of each, and whether it is one in which the CPU waits (`blocking`).
        item: Rows of `Trace.gpu`; `launch` is the position in `call` of each one's launch (-1: not known, or of an item
            that began before the window), `stream` a small number.
        time_ns: When each node happened; `kind` is one of the five above and `row` a position in `call`, in `item`, or
            among the boundaries.
        call_start: The nodes of each call, as `call_end`; `item_start` and `item_end` those of each item; `boundary`
            those of the starts and ends of the window's intervals, in turns.
        launching: For each thread of the trace whether it launched any of the items.
    """

    call: Int32Array
    thread: Int32Array
    blocking: BoolArray
    item: Int32Array
    launch: Int32Array
    stream: Int32Array
    time_ns: Int64Array
    kind: Int8Array
    row: Int32Array
    call_start: Int32Array
    call_end: Int32Array
    item_start: Int32Array
    item_end: Int32Array
    boundary: Int32Array
    launching: BoolArray

    @property
    def durations(self) -> Int64Array:
        """How long each item took, in ns; rounding is mended."""
        return self.time_ns[self.item_end] - self.time_ns[self.item_start]


def events_of(trace: Trace, window: Intervals) -> Events:
    """The nodes of a trace's window.

    Args:
        trace: with the clocks of CPU and GPU aligned.
        window: the analysed time, not empty.
    """
    gpu, calls = trace.gpu, trace.calls
    begin, end = _begin(trace, window), int(window[-1, 1])
    call = np.flatnonzero((calls.start_ns < end) & (calls.end_ns > begin)).astype(np.int32)
    call = _untied(call, calls.start_ns[call], (calls.thread[call], calls.end_ns[call]))
    item = np.flatnonzero((gpu.start_ns < end) & (gpu.end_ns > begin)).astype(np.int32)
    launched = np.append(calls.start_ns, NONE)[gpu.call[item]]
    item = _untied(item, gpu.start_ns[item], (launched, gpu.end_ns[item], gpu.stream[item]))
    position = np.full(len(calls) + 1, NONE, np.int32)
    position[call] = np.arange(len(call), dtype=np.int32)
    launch = position[gpu.call[item]]
    lane = (gpu.device[item].astype(np.int64) << 40) + gpu.stream[item]
    stream = np.searchsorted(distinct(lane), lane).astype(np.int32)
    blocking = match_blocking_calls(trace)[call]
    start, finish = _mended(trace, item, stream)
    finish = _seen_by_host(trace, call[blocking], (item, start, finish))
    launching = np.zeros(len(trace.threads) + 1, bool)
    launching[calls.thread[call[launch[launch >= 0]]]] = True
    times = (finish, calls.end_ns[call], calls.start_ns[call], start, window.ravel())
    order, kind, row = _in_order(times)
    node = np.empty(len(order), np.int32)
    node[order] = np.arange(len(order), dtype=np.int32)
    item_end, call_end, call_start, item_start, boundary = np.split(node, np.cumsum([len(t) for t in times])[:-1])
    return Events(
        call=call,
        thread=calls.thread[call],
        blocking=blocking,
        item=item,
        launch=launch,
        stream=stream,
        time_ns=np.concatenate(times).take(order),
        kind=kind,
        row=row,
        call_start=call_start,
        call_end=call_end,
        item_start=item_start,
        item_end=item_end,
        boundary=boundary,
        launching=launching,
    )


def _untied(rows: Int32Array, start: Int64Array, keys: tuple[IntArray, ...]) -> Int32Array:
    """Rows sorted by start, those of one start by further keys (the last counts most), not by the order of the file."""
    tied = np.zeros(len(rows), bool)
    tied[1:] = start[1:] == start[:-1]
    tied[:-1] |= tied[1:]
    at = np.flatnonzero(tied)
    sorted_rows = rows.copy()
    sorted_rows[at] = rows[at[np.lexsort((*(key[at] for key in keys), start[at]))]]
    return sorted_rows


def _begin(trace: Trace, window: Intervals) -> int:
    """Since when events matter: from the first launch of an item of the window on, if that lies before it."""
    gpu, begin = trace.gpu, int(window[0, 0])
    call = gpu.call[(gpu.start_ns < window[-1, 1]) & (gpu.end_ns > begin)]
    call = call[call >= 0]
    return min(begin, int(trace.calls.start_ns[call].min())) if len(call) else begin


def _in_order(times: tuple[Int64Array, ...]) -> tuple[Int64Array, Int8Array, Int32Array]:
    """The order of the nodes of each kind by time, and kind and row of each node in that order."""
    item_end, call_end, call_start, item_start, boundary = times
    # What has no length must still begin before it ends.
    key = np.concatenate(
        (np.maximum(item_end, item_start + 1), np.maximum(call_end, call_start + 1), call_start, item_start, boundary)
    )
    order = np.argsort(key, kind="stable")
    kind = np.repeat(np.arange(len(times), dtype=np.int8), [len(t) for t in times]).take(order)
    row = np.concatenate([np.arange(len(t), dtype=np.int32) for t in times]).take(order)
    return order, kind, row


def _mended(trace: Trace, item: Int32Array, stream: Int32Array) -> tuple[Int64Array, Int64Array]:
    """Starts and ends of items without what rounding did: starts before the launch, overlaps on a stream."""
    gpu = trace.gpu
    call = gpu.call[item]
    start = gpu.start_ns[item]
    if len(trace.calls):
        early = np.where(call >= 0, trace.calls.start_ns[call] - start, 0)
        start = start + np.where((early > 0) & (early <= _ROUNDING_NS), early, 0)
    finish = np.maximum(gpu.end_ns[item], start)
    order = np.argsort(stream, kind="stable")
    following = start[order[1:]]
    over = finish[order[:-1]] - following
    mend = (stream[order[1:]] == stream[order[:-1]]) & (over > 0) & (over <= _ROUNDING_NS)
    finish[order[:-1][mend]] = np.maximum(following[mend], start[order[:-1][mend]])
    return start, finish


def _seen_by_host(trace: Trace, waits: Int32Array, items: tuple[Int32Array, Int64Array, Int64Array]) -> Int64Array:
    """The ends of items, where the call that waited for one seems to return before it: no later than that return.

    A call returns after what it waited for. Where only an item that ends up to 20 us later explains the return, the
    clocks differ by that much.
    """
    item, start, finish = items
    if not len(waits) or not len(item):
        return finish
    returned = trace.calls.end_ns[waits]
    order = np.argsort(finish, kind="stable")
    ends = finish[order]
    after = np.searchsorted(ends, returned, side="right")
    known = after < len(ends)
    explained = np.where(after > 0, ends[np.maximum(after, 1) - 1], np.iinfo(np.int64).min // 2)
    candidate = order[np.minimum(after, len(ends) - 1)]
    fits = known & (finish[candidate] - returned <= RETURN_LAG_NS) & (returned - explained > RETURN_LAG_NS)
    fits &= (start[candidate] < returned) & (returned - trace.calls.start_ns[waits] > RETURN_LAG_NS)
    call = trace.gpu.call[item[candidate]]
    fits &= (call >= 0) & (trace.calls.start_ns[call] <= trace.calls.start_ns[waits])
    mended = finish.copy()
    mended[candidate[fits]] = np.minimum(mended[candidate[fits]], returned[fits])
    return mended
