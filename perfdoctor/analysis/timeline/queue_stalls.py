"""Queue stalls: why a GPU item that was launched before the GPU ran dry did not start at once.

In 34 complete real recordings there are 80,000 gaps before an item that was already in the queue. All but 60 last 20 us
at most: the device itself takes that long between two items, most of it around copies. The 60 ended while the launch
call still ran. So a longer gap means that the item waited for something, or that it follows work that is not in the
file: two recordings that are subsampled, or hold only some kernels of their CUDA graphs, have a thousand such gaps.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from perfdoctor.gpu import is_collective
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.distinct import distinct, occurring
from perfdoctor.trace.tables.links import find_first
from perfdoctor.trace.tables.model import KERNEL, Trace

# Between two queued items the device itself takes 1 to 5 us where both are kernels, up to 20 us around copies.
DEVICE_LATENCY_NS = 20_000
# PyTorch numbers its ops one after another. Of 30 real files with 500 ops or more one holds 1 % of its numbers (it is
# subsampled: every 70th op is there), the others hold 74 to 100 %.
_SUBSAMPLED_SHARE = 0.1
_MIN_OPS = 500
_NEVER_NS = np.iinfo(np.int64).max


class StallCause(IntEnum):
    """What a queued GPU item waited for."""

    NO_STALL = 0  # it started as soon as the device could, or was not queued
    EVENT_WAIT = 1  # its stream waited for an event of another stream
    MISSING_KERNELS = 2  # it belongs to a CUDA graph, or follows one, of which the file holds only some kernels
    UNKNOWN = 3  # the file does not contain the cause


def is_subsampled(trace: Trace) -> bool:
    """Whether most events were removed from the file: then apparent idle time may be missing work."""
    ids = distinct(trace.ops.external_id[trace.ops.external_id > 0])
    return len(ids) >= _MIN_OPS and len(ids) < _SUBSAMPLED_SHARE * (int(ids[-1]) - int(ids[0]) + 1)


def find_queue_stalls(
    trace: Trace, start_ns: Int64Array, end_ns: Int64Array, next_item: Int32Array, queued: BoolArray
) -> Int8Array:
    """For each gap between GPU items a StallCause.

    `next_item` is the row of the GPU item that ends each gap, or NONE; `queued` says whether the launch call of that
    item began before the gap.
    """
    cause = np.full(len(start_ns), StallCause.NO_STALL, np.int8)
    if not len(trace.gpu) or not len(trace.calls):
        return cause
    launch = np.where(next_item >= 0, trace.gpu.call[next_item], NONE)
    queued_ns = np.maximum(start_ns, trace.calls.end_ns[launch])  # from here on the item could have started
    rows = np.flatnonzero(queued & (launch >= 0) & (end_ns - queued_ns > DEVICE_LATENCY_NS))
    if not len(rows):
        return cause
    item, call = next_item[rows], launch[rows]
    previous = _previous_launches(trace, item)
    launches_graph = trace.match_rows(trace.calls, vocabulary.GRAPH_LAUNCH_CALL)
    # Only the first node of a graph can wait for another stream.
    is_first = _first_starts(trace)[call] >= start_ns[rows]
    event_wait = is_first & (_match_collectives(trace, item) | _match_event_waits(trace, item, previous))
    graph = launches_graph[call] | ((previous >= 0) & launches_graph[previous])
    cause[rows] = np.select(
        (event_wait, graph), (StallCause.EVENT_WAIT, StallCause.MISSING_KERNELS), StallCause.UNKNOWN
    )
    return cause


def _previous_launches(trace: Trace, item: Int32Array) -> Int32Array:
    """For each GPU item the last call before its launch that launched an item to the same stream, or NONE."""
    gpu = trace.gpu
    previous = np.full(len(item), NONE, np.int32)
    for device, stream in sorted(set(zip(gpu.device[item].tolist(), gpu.stream[item].tolist(), strict=True))):
        on_stream = (gpu.device == device) & (gpu.stream == stream)
        calls = occurring(gpu.call[on_stream])  # rows of calls are sorted by start
        rows = on_stream[item]
        position = np.searchsorted(calls, gpu.call[item[rows]])
        previous[rows] = np.where(position > 0, calls[np.maximum(position, 1) - 1], NONE)
    return previous


def _first_starts(trace: Trace) -> Int64Array:
    """For each call the start of the first GPU item that it launched; the latest instant where it launched none."""
    first = np.full(len(trace.calls), _NEVER_NS)
    linked = trace.gpu.call >= 0
    np.minimum.at(first, trace.gpu.call[linked], trace.gpu.start_ns[linked])
    return first


def _match_collectives(trace: Trace, item: Int32Array) -> BoolArray:
    """For each GPU item whether it is a collective, whose stream waits for an event of the stream of its input."""
    names = trace.gpu.name[item]
    codes = [code for code in occurring(names).tolist() if is_collective(trace.strings[code])]
    result: BoolArray = np.isin(names, codes) & (trace.gpu.kind[item] == KERNEL)
    return result


def _match_event_waits(trace: Trace, item: Int32Array, previous: Int32Array) -> BoolArray:
    """For each GPU item whether its stream waits for an event (cudaStreamWaitEvent) since the launch before it.

    For example, with records of the waits::

        call                         stream
        cudaLaunchKernel             7       previous launch of the first item
        cudaStreamWaitEvent          7       counts for the first item
        cudaStreamWaitEvent          20      does not: it is about another stream
        cudaLaunchKernel             7       launch of the first item

    The call itself does not name its stream, the cuda_sync record with the same correlation does. In a file without
    such records every wait between the two launches counts.
    """
    calls, syncs, gpu = trace.calls, trace.syncs, trace.gpu
    waits = np.flatnonzero(trace.match_rows(calls, vocabulary.EVENT_WAIT_CALL))
    since_ns = np.where(previous >= 0, calls.start_ns[previous], np.iinfo(np.int64).min)
    until_ns = calls.start_ns[gpu.call[item]]
    record = find_first(calls.correlation[waits], syncs.correlation)
    wait_stream = np.where(record >= 0, syncs.stream[record], NONE) if len(syncs) else np.full(len(waits), NONE)
    result = np.zeros(len(item), bool)
    for stream in sorted(set(gpu.stream[item].tolist())):
        on_stream = gpu.stream[item] == stream
        wait_ns = calls.start_ns[waits[(wait_stream == NONE) | (wait_stream == stream)]]
        since, until = since_ns[on_stream], until_ns[on_stream]
        result[on_stream] = np.searchsorted(wait_ns, since) < np.searchsorted(wait_ns, until)
    return result
