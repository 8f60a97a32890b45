"""Why a GPU item that had been queued in time did not start when the GPU ran dry.

On 34 real recordings that are whole, of 80,000 gaps before a queued item all but 60 last 20 us at most: the device
takes that long between two items, most before and after copies. The 60 ended while the launch call still ran. What is
longer waited for something, or follows work that the file does not hold: the two recordings among them that had been
thinned out, or hold only some kernels of their graphs, have a thousand such gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from perfdoctor.gpu import is_collective
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.distinct import distinct, occurring
from perfdoctor.trace.tables.links import find_first
from perfdoctor.trace.tables.model import KERNEL, Trace

# Between items that were queued in time the device itself takes 1 to 5 us between kernels, up to 20 us around copies.
DEVICE_LATENCY_NS = 20_000
# PyTorch numbers its ops one after another. Of 30 real files with 500 ops or more one holds 1 % of its numbers (every
# 70th op was kept), the others 74 to 100 %.
_THINNED_SHARE = 0.1
_LEAST_OPS = 500

NOT_HELD, EVENT, GRAPH, UNKNOWN = range(4)
HELD: Mapping[int, str] = MappingProxyType(
    {
        NOT_HELD: "it started as soon as it was launched",
        EVENT: "its stream waited for an event of another stream",
        GRAPH: "it belongs to or follows a CUDA graph of whose kernels the file holds only some",
        UNKNOWN: "nothing in the file says what it waited for",
    }
)


def is_subsampled(trace: Trace) -> bool:
    """Whether most events were taken out of the file: then what looks idle may be work that is missing."""
    ids = distinct(trace.ops.external_id[trace.ops.external_id > 0])
    return len(ids) >= _LEAST_OPS and len(ids) < _THINNED_SHARE * (int(ids[-1]) - int(ids[0]) + 1)


def find_queue_stalls(
    trace: Trace, start_ns: Int64Array, end_ns: Int64Array, next_item: Int32Array, queued: BoolArray
) -> Int8Array:
    """For each gap one of `HELD`.

    Args:
        trace: The trace.
        start_ns: Where each gap begins.
        end_ns: Where it ends.
        next_item: Row of the GPU item that ends it, or -1.
        queued: Whether that item's launch call had begun before the gap.
    """
    held = np.full(len(start_ns), NOT_HELD, np.int8)
    if not len(trace.gpu) or not len(trace.calls):
        return held
    launch = np.where(next_item >= 0, trace.gpu.call[next_item], NONE)
    returned = np.maximum(start_ns, trace.calls.end_ns[launch])
    rows = np.flatnonzero(queued & (launch >= 0) & (end_ns - returned > DEVICE_LATENCY_NS))
    if not len(rows):
        return held
    item, call = next_item[rows], launch[rows]
    before = _launched_before(trace, item)
    graphs = trace.match_rows(trace.calls, vocabulary.GRAPH_LAUNCH_CALL)
    first = _first_start(trace)[call] >= start_ns[rows]  # a later node of a graph cannot wait for another stream
    event = first & (_is_collective(trace, item) | _waits_between(trace, item, before))
    graph = graphs[call] | ((before >= 0) & graphs[before])
    held[rows] = np.where(event, EVENT, np.where(graph, GRAPH, UNKNOWN))
    return held


def _launched_before(trace: Trace, item: Int32Array) -> Int32Array:
    """For each GPU item the call that launched something to its stream last before its own call, or -1."""
    gpu = trace.gpu
    found = np.full(len(item), NONE, np.int32)
    for device, stream in sorted(set(zip(gpu.device[item].tolist(), gpu.stream[item].tolist(), strict=True))):
        lane = (gpu.device == device) & (gpu.stream == stream)
        calls = occurring(gpu.call[lane])  # rows of calls are sorted by start
        mine = lane[item]
        at = np.searchsorted(calls, gpu.call[item[mine]])
        found[mine] = np.where(at > 0, calls[np.maximum(at, 1) - 1], NONE)
    return found


def _first_start(trace: Trace) -> Int64Array:
    """For each call the start of the first GPU item that it launched."""
    first = np.full(len(trace.calls), np.iinfo(np.int64).max)
    linked = trace.gpu.call >= 0
    np.minimum.at(first, trace.gpu.call[linked], trace.gpu.start_ns[linked])
    return first


def _is_collective(trace: Trace, item: Int32Array) -> BoolArray:
    """Collectives run on a stream of their own and wait there for the event of their input."""
    names = trace.gpu.name[item]
    used = occurring(names).tolist()
    codes = [code for code in used if is_collective(trace.strings[code])]
    result: BoolArray = np.isin(names, codes) & (trace.gpu.kind[item] == KERNEL)
    return result


def _waits_between(trace: Trace, item: Int32Array, before: Int32Array) -> BoolArray:
    """Whether the item's stream was told to wait for an event between two launches to it.

    The call does not name its stream, the cuda_sync record with its correlation does; where there are no records every
    wait between the two launches counts.
    """
    calls, syncs, gpu = trace.calls, trace.syncs, trace.gpu
    waits = np.flatnonzero(trace.match_rows(calls, vocabulary.EVENT_WAIT_CALL))
    since = np.where(before >= 0, calls.start_ns[before], np.iinfo(np.int64).min)
    until = calls.start_ns[gpu.call[item]]
    record = find_first(calls.correlation[waits], syncs.correlation)
    told = np.where(record >= 0, syncs.stream[record], NONE) if len(syncs) else np.full(len(waits), NONE)
    waited = np.zeros(len(item), bool)
    for stream in sorted(set(gpu.stream[item].tolist())):
        mine = gpu.stream[item] == stream
        begun = calls.start_ns[waits[(told == NONE) | (told == stream)]]
        waited[mine] = np.searchsorted(begun, since[mine]) < np.searchsorted(begun, until[mine])
    return waited
