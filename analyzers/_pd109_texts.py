"""What copies are for, by what repeats and by who makes them, and the advice about each purpose: PD109."""

from __future__ import annotations

import re
from enum import Enum

import numpy as np

from perfdoctor.analyzers._pd109_copy_groups import CopyGroup
from perfdoctor.rules import Advice, BoolArray, Int64Array, Rank, advise, vocabulary

# A step copies its batch in a few pieces; weights come tensor by tensor.
_MIN_WEIGHTS = 8
# Of copies within the device, shorter ones than this last as long as any kernel: what they move hardly matters.
_SHORT_COPY_NS = 10_000
# From this share of the copies on they are what a name says.
_MIN_SHARE = 0.5
_OFFLOAD = re.compile(r"(?i)offload|swap_?(in|out)|hooks\.py\(\d+\): (pre|post)_forward|onload")
_KV_CACHE = re.compile(r"(?i)(kv|key_?value|paged|prefix|block)_?cache|cache_?(utils|engine|blocks)|_cache\b.*update")
_PACKS = re.compile(r"(?i)c10d|reducer|all_?gather|reduce_?scatter|all_?to_?all|flatten_dense|fsdp|AccumulateGrad")


class Purpose(Enum):
    """What copies are for."""

    WEIGHTS = "weights that lie in host memory"
    SWAPPED = "state that is moved to host memory and back"
    CACHE = "a cache of keys and values"
    BATCH = "input"
    RESULTS = "results"
    PEER = "data of another GPU"
    PACKED = "tensors that are packed for collectives"
    COMPILED = "tensors that compiled code clones"
    MANY_SMALL = "many small tensors"
    WITHIN = "tensors within the GPU's memory"
    UNKNOWN = "data"


def find_purpose(rank: Rank, group: CopyGroup, *, sent_back: bool) -> Purpose:
    """What the copies of a group are for.

    Args:
        rank: The rank.
        group: The copies.
        sent_back: Whether about as much goes to the host as comes from it.
    """
    rows = group.rows
    if _share_of_time(rank, rows, _match_launchers(rank, _KV_CACHE)) > _MIN_SHARE:
        return Purpose.CACHE
    if group.direction == vocabulary.PTOP:
        return Purpose.PEER
    if group.direction == vocabulary.DTOD:
        return _purpose_within(rank, group)
    if sent_back:
        return Purpose.SWAPPED
    if group.direction == vocabulary.DTOH:
        return Purpose.RESULTS
    if group.direction != vocabulary.HTOD:
        return Purpose.UNKNOWN
    if _share_of_time(rank, rows, _match_launchers(rank, _OFFLOAD)) > _MIN_SHARE:
        return Purpose.WEIGHTS
    is_many = len(group) >= _MIN_WEIGHTS * max(rank.steps.count, 1)
    if is_many and _is_interleaved(rank, rows):
        return Purpose.WEIGHTS if group.repeats else Purpose.UNKNOWN
    return Purpose.BATCH if rank.steps.count else Purpose.UNKNOWN


def _is_interleaved(rank: Rank, rows: Int64Array) -> bool:
    """Whether kernels start between most copies and the next: a batch is copied at once, weights layer by layer."""
    gpu = rank.trace.gpu
    kernels_ns = np.sort(gpu.start_ns[rank.kernels.mask])
    before = np.searchsorted(kernels_ns, np.sort(gpu.start_ns[rows]))
    return bool((np.diff(before) > 0).mean() > _MIN_SHARE)


def _purpose_within(rank: Rank, group: CopyGroup) -> Purpose:
    rows = group.rows
    if _share_of_time(rank, rows, rank.traffic.is_compiled) > _MIN_SHARE:
        return Purpose.COMPILED
    if _share_of_time(rank, rows, _match_launchers(rank, _PACKS)) > _MIN_SHARE:
        return Purpose.PACKED
    if np.median(rank.trace.gpu.dur_ns[rows]) < _SHORT_COPY_NS and len(group) >= _MIN_WEIGHTS:
        return Purpose.MANY_SMALL
    return Purpose.WITHIN


def _share_of_time(rank: Rank, rows: Int64Array, which: BoolArray) -> float:
    """The share (0 to 1) of the time of some copies that a mask of GPU items selects."""
    dur_ns = rank.trace.gpu.dur_ns[rows]
    return float(dur_ns[which[rows]].sum() / max(dur_ns.sum(), 1))


def _match_launchers(rank: Rank, pattern: re.Pattern[str]) -> BoolArray:
    """For each GPU item whether an op, a range or a Python frame with a matching name was open at its launch."""
    trace, gpu, calls = rank.trace, rank.trace.gpu, rank.trace.calls
    found = rank.ops.named(pattern).kernels.mask
    for table in (trace.ranges, trace.frames):
        matching = trace.match_rows(table, pattern)
        if not matching.any():
            continue
        linked = np.flatnonzero((gpu.call >= 0) & ~found)
        for thread in np.flatnonzero(np.bincount(table.thread[matching])).tolist():
            rows = matching & (table.thread == thread)
            starts, ends = np.sort(table.start_ns[rows]), np.sort(table.end_ns[rows])
            on_thread = linked[calls.thread[gpu.call[linked]] == thread]
            at_ns = calls.start_ns[gpu.call[on_thread]]
            # At an instant as many of the spans are open as have begun and not ended.
            is_open = np.searchsorted(starts, at_ns, "right") > np.searchsorted(ends, at_ns, "right")
            found[on_thread[is_open]] = True
    return found


def advice_for(rank: Rank, purpose: Purpose, group: CopyGroup, hidden_share: float) -> Advice:
    """What to do about copies.

    Args:
        rank: The rank.
        purpose: What the copies are for.
        group: The copies.
        hidden_share: Which share (0 to 1) of their exposed time kernels could hide.
    """
    situation = _SITUATIONS[purpose]
    if purpose is Purpose.COMPILED and rank.trace.match_rows(rank.trace.gpu, vocabulary.TRITON_KERNEL).any():
        situation = "copies by generated code"
    stream = "Issue the copies earlier: they have a stream of their own, but the kernels wait for them"
    limit = f" The kernels can hide only {hidden_share:.0%} of this time, so copy less."
    if group.on_kernel_stream_share > _MIN_SHARE:
        stream = "Issue the copies on a stream of their own, ahead of the kernels that need them"
    if hidden_share > _MIN_SHARE:
        limit = ""
    if not len(rank.kernels):
        stream, limit = "Copy less: the GPU runs no kernel that could hide the copies", ""
    return advise(situation, rank.context, stream=stream, limit=limit)


_SITUATIONS = {
    Purpose.WEIGHTS: "copies of weights",
    Purpose.SWAPPED: "copies of swapped state",
    Purpose.CACHE: "copies of a cache",
    Purpose.BATCH: "copies of input",
    Purpose.RESULTS: "copies of results",
    Purpose.PEER: "copies between GPUs",
    Purpose.PACKED: "copies packed for collectives",
    Purpose.COMPILED: "copies by compiled code",
    Purpose.MANY_SMALL: "many small copies",
    Purpose.WITHIN: "copies within the GPU",
    Purpose.UNKNOWN: "copies of unknown purpose",
}
