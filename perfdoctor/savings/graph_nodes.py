"""The nodes of a replay: the starts and ends of calls and GPU items in a window, in the order of their times."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.timeline.idle_gaps import RETURN_LAG_NS, match_blocking_calls
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

ITEM_END, CALL_END, CALL_START, ITEM_START, BOUNDARY = range(5)
"""Kinds of nodes, in the order of nodes at one instant: what ends lets others start."""

# Rounding to microseconds can make an item start this much before its launch, or before its stream is free.
_ROUNDING_NS = 2_000


@frozen_dataclass(eq=False)
class Nodes:
    """The calls and GPU items that overlap a window, and the nodes for their starts and ends.

    Nodes are numbered in the order of their times. For example, a call that launches a kernel::

        node  kind        row  time_ns
        0     CALL_START  0    100      call_start[0] = 0
        1     CALL_END    0    105      call_end[0]   = 1
        2     ITEM_START  0    108      item_start[0] = 2
        3     ITEM_END    0    150      item_end[0]   = 3

    Attributes:
        call: For each call its row in `Trace.calls`.
        thread: For each call its thread.
        blocking: For each call whether the CPU waits for the GPU in it.
        item: For each GPU item its row in `Trace.gpu`.
        launch: For each GPU item the position of its launch in `call`; NONE where it is not known or not among these.
        stream: For each GPU item its stream, numbered from 0 over all devices.
        time_ns: For each node when it happened.
        kind: For each node one of the five kinds above.
        row: For each node a position in `call` or `item`, or among the boundaries.
        call_start, call_end: For each call its nodes.
        item_start, item_end: For each GPU item its nodes.
        boundary: The nodes of the window's intervals: start, end, start, end, ...
        driving: For each thread of the trace whether it launched any of the items, or waited for the GPU.
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
    driving: BoolArray

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.time_ns)


def nodes_of(trace: Trace, window: Intervals) -> Nodes:
    """The nodes of a trace's window.

    Args:
        trace: The trace, with the clocks of CPU and GPU aligned.
        window: The analysed time, not empty.
    """
    calls = trace.calls
    call, item = _select_calls_and_items(trace, window)
    position = np.full(len(calls) + 1, NONE, np.int32)
    position[call] = np.arange(len(call), dtype=np.int32)
    launch = position[trace.gpu.call[item]]
    stream = _number_streams(trace, item)
    blocking = match_blocking_calls(trace)[call]
    start_ns, end_ns = _undo_rounding(trace, item, stream)
    end_ns = _cap_ends_at_returns(trace, call[blocking], (item, start_ns, end_ns))
    driving = np.zeros(len(trace.threads) + 1, bool)
    driving[calls.thread[call[launch[launch >= 0]]]] = True
    driving[calls.thread[call[blocking]]] = True
    times = (end_ns, calls.end_ns[call], calls.start_ns[call], start_ns, window.ravel())
    order, kind, row = _order_nodes(times)
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    item_end, call_end, call_start, item_start, boundary = np.split(number, np.cumsum([len(t) for t in times])[:-1])
    return Nodes(
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
        driving=driving,
    )


def _select_calls_and_items(trace: Trace, window: Intervals) -> tuple[Int32Array, Int32Array]:
    """The rows of the calls and GPU items that matter for a window, each sorted by start.

    The time that matters begins at the window, or at the first launch of an item of the window, whichever is earlier.
    """
    gpu, calls = trace.gpu, trace.calls
    begin, end = int(window[0, 0]), int(window[-1, 1])
    launch = gpu.call[(gpu.start_ns < end) & (gpu.end_ns > begin)]
    begin = min(begin, int(calls.start_ns[launch[launch >= 0]].min(initial=begin)))
    call = np.flatnonzero((calls.start_ns < end) & (calls.end_ns > begin)).astype(np.int32)
    item = np.flatnonzero((gpu.start_ns < end) & (gpu.end_ns > begin)).astype(np.int32)
    launched_ns = np.append(calls.start_ns, np.iinfo(np.int64).min)[gpu.call[item]]
    keys = (_alphabetic_ranks(trace)[gpu.name[item]], launched_ns, gpu.end_ns[item], gpu.stream[item])
    item = _break_ties(item, gpu.start_ns[item], keys)
    first_item = np.full(len(calls) + 1, len(item), np.int32)  # the last entry is for items without a call
    np.minimum.at(first_item, gpu.call[item], np.arange(len(item), dtype=np.int32))
    return _break_ties(call, calls.start_ns[call], (first_item[call], calls.thread[call], calls.end_ns[call])), item


def _alphabetic_ranks(trace: Trace) -> Int32Array:
    """For each string of the trace that names a GPU item its position in the alphabet; 0 for the others."""
    ranks = np.zeros(len(trace.strings), np.int32)
    for position, code in enumerate(sorted(trace.name_ids(trace.gpu), key=trace.strings.__getitem__)):
        ranks[code] = position
    return ranks


def _break_ties(rows: Int32Array, start_ns: Int64Array, keys: tuple[IntArray, ...]) -> Int32Array:
    """Rows that are sorted by start, those of one start by further keys (the last counts most).

    So their order in the file does not matter. Only ties are sorted: a whole sort would take longer than the replay.
    """
    tied = np.zeros(len(rows), bool)
    tied[1:] = start_ns[1:] == start_ns[:-1]
    tied[:-1] |= tied[1:]
    at = np.flatnonzero(tied)
    sorted_rows = rows.copy()
    sorted_rows[at] = rows[at[np.lexsort((*(key[at] for key in keys), start_ns[at]))]]
    return sorted_rows


def _number_streams(trace: Trace, item: Int32Array) -> Int32Array:
    """For each item its stream, numbered from 0: streams of two devices can have the same id."""
    lane = (trace.gpu.device[item].astype(np.int64) << 40) + trace.gpu.stream[item]
    # Asked for indices, too, numpy sorts stably: a seventh of the time where most items are on one stream.
    number: Int32Array = np.unique(lane, return_index=True, return_inverse=True)[2].astype(np.int32)
    return number


def _order_nodes(times: tuple[Int64Array, ...]) -> tuple[Int64Array, Int8Array, Int32Array]:
    """The order of all nodes by time, and the kind and the row of each node in that order.

    Args:
        times: For each kind the times of its nodes.
    """
    item_end, call_end, call_start, item_start, boundary = times
    # The end of a call or item of no length still comes after its start.
    key = np.concatenate(
        (np.maximum(item_end, item_start + 1), np.maximum(call_end, call_start + 1), call_start, item_start, boundary)
    )
    order = np.argsort(key, kind="stable")
    kind = np.repeat(np.arange(len(times), dtype=np.int8), [len(t) for t in times]).take(order)
    row = np.concatenate([np.arange(len(t), dtype=np.int32) for t in times]).take(order)
    return order, kind, row


def _undo_rounding(trace: Trace, item: Int32Array, stream: Int32Array) -> tuple[Int64Array, Int64Array]:
    """Starts and ends of items that start after their launch, and after the item before them on their stream.

    Only errors as large as those of rounding are corrected::

        stream  launched  start, end  corrected
        0       1000      999, 1500   1000, 1499
        0       1010      1499, 1600  1499, 1600
    """
    gpu = trace.gpu
    call = gpu.call[item]
    start_ns = gpu.start_ns[item]
    if len(trace.calls):
        early_ns = np.where(call >= 0, trace.calls.start_ns[call] - start_ns, 0)
        start_ns = start_ns + np.where((early_ns > 0) & (early_ns <= _ROUNDING_NS), early_ns, 0)
    end_ns = np.maximum(gpu.end_ns[item], start_ns)
    order = np.argsort(stream, kind="stable")
    next_start_ns = start_ns[order[1:]]
    overlap_ns = end_ns[order[:-1]] - next_start_ns
    rounded = (stream[order[1:]] == stream[order[:-1]]) & (overlap_ns > 0) & (overlap_ns <= _ROUNDING_NS)
    end_ns[order[:-1][rounded]] = np.maximum(next_start_ns[rounded], start_ns[order[:-1][rounded]])
    return start_ns, end_ns


def _cap_ends_at_returns(
    trace: Trace, waits: Int32Array, items: tuple[Int32Array, Int64Array, Int64Array]
) -> Int64Array:
    """The ends of items, none later than the return of a call that waited for the item.

    A blocking call returns after the item that it waits for. Where the only item that explains the return ends up to
    20 us later, the clocks of CPU and GPU differ by that much.

    Args:
        trace: The trace.
        waits: Rows of the blocking calls.
        items: Rows, starts and ends of the items.
    """
    item, start_ns, end_ns = items
    if not len(waits) or not len(item):
        return end_ns
    returned_ns = trace.calls.end_ns[waits]
    order = np.argsort(end_ns, kind="stable")
    sorted_ends_ns = end_ns[order]
    after = np.searchsorted(sorted_ends_ns, returned_ns, side="right")
    last_end_ns = np.where(after > 0, sorted_ends_ns[np.maximum(after, 1) - 1], np.iinfo(np.int64).min // 2)
    next_item = order[np.minimum(after, len(order) - 1)]
    fits = (after < len(order)) & (end_ns[next_item] - returned_ns <= RETURN_LAG_NS)
    fits &= (returned_ns - last_end_ns > RETURN_LAG_NS) & (start_ns[next_item] < returned_ns)
    fits &= returned_ns - trace.calls.start_ns[waits] > RETURN_LAG_NS
    call = trace.gpu.call[item[next_item]]
    fits &= (call >= 0) & (trace.calls.start_ns[call] <= trace.calls.start_ns[waits])
    capped_ns = end_ns.copy()
    capped_ns[next_item[fits]] = np.minimum(capped_ns[next_item[fits]], returned_ns[fits])
    return capped_ns
