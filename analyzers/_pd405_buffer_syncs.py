"""How DistributedDataParallel makes the ranks' buffers equal before each forward pass, as the trace shows it.

The names are those of torch's `distributed.py` and `broadcast_coalesced`, as traces from PyTorch 1.8 on contain them.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    Edit,
    GpuQuery,
    Int32Array,
    Int64Array,
    Intervals,
    Rank,
    frozen_dataclass,
    nesting,
    remove_cpu_time,
    remove_items,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_FIRST_OPS = r"^(aten::flatten_dense_tensors|c10d::broadcast_)$"
_BROADCAST_OP = r"^c10d::broadcast_$"
_SYNC_OPS = r"^(aten::(un)?flatten_dense_tensors|aten::copy_|c10d::broadcast_|record_param_comms)$"
# DDP's own bookkeeping before it takes a few ops at most; a broadcast behind more of them is the model's.
_MAX_OPS_BEFORE = 10


@frozen_dataclass(eq=False)
class BufferSyncs:
    """The spans of the CPU in which forward passes begin with making buffers equal.

    Attributes:
        thread: The thread of each span, an index into `Trace.threads`.
        start_ns, end_ns: From the first op that flattens or broadcasts to the last that copies a buffer back.
        copied: How many buffers were copied back in all.
    """

    thread: Int32Array
    start_ns: Int64Array
    end_ns: Int64Array
    copied: int

    @property
    def time(self) -> Intervals:
        """All spans."""
        return iv.union(self.start_ns, self.end_ns)


def buffer_syncs_of(rank: Rank) -> BufferSyncs:
    """The spans in forward passes of the window: the first ops of a pass, where a broadcast is among them.

    For example, of a pass whose outermost ops are these the first four::

        flatten_dense_tensors  broadcast_  unflatten_dense_tensors  copy_  conv2d  copy_
    """
    trace, ranges, ops = rank.trace, rank.trace.ranges, rank.trace.ops
    forward = np.flatnonzero(
        trace.match_rows(ranges, vocabulary.DDP_FORWARD) & iv.contains(rank.window, ranges.start_ns)
    )
    none = BufferSyncs(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64), 0)
    if not len(forward) or not trace.match_strings(ops, _BROADCAST_OP).any():
        return none
    inside = nesting.innermost(
        ranges.start_ns[forward], ranges.end_ns[forward], ranges.thread[forward], ops.start_ns, ops.thread
    )
    outermost = (inside >= 0) & (np.append(inside, -1)[ops.parent] != inside)  # a parent of -1 is the appended one
    rows = np.flatnonzero(outermost)
    rows = rows[np.lexsort((ops.start_ns[rows], inside[rows]))]
    pass_number = inside[rows]
    begun = _count_within(trace.match_rows(ops, _FIRST_OPS)[rows], pass_number) > 0
    ended = _count_within(begun & ~trace.match_rows(ops, _SYNC_OPS)[rows], pass_number) > 0
    early = _count_within(~begun, pass_number) <= _MAX_OPS_BEFORE
    chosen = begun & ~ended & early
    broadcasts = np.bincount(pass_number[chosen & trace.match_rows(ops, _BROADCAST_OP)[rows]], minlength=len(forward))
    chosen &= broadcasts[pass_number] > 0
    rows, pass_number = rows[chosen], pass_number[chosen]
    if not len(rows):
        return none
    first = np.flatnonzero(np.diff(pass_number, prepend=-1))
    return BufferSyncs(
        ranges.thread[forward[pass_number[first]]],
        ops.start_ns[rows[first]],
        np.maximum.reduceat(ops.end_ns[rows], first),
        int(trace.match_rows(ops, r"^aten::copy_$")[rows].sum()),
    )


def items_of(rank: Rank, syncs: BufferSyncs) -> GpuQuery:
    """The GPU items that were launched in the spans: they flatten, broadcast and copy back."""
    trace = rank.trace
    calls = trace.calls
    inside = nesting.innermost(syncs.start_ns, syncs.end_ns, syncs.thread, calls.start_ns, calls.thread) >= 0
    return (rank.kernels | rank.copies).where(np.append(inside, False)[trace.gpu.call])


def drop_syncs(rank: Rank, syncs: BufferSyncs) -> Edit:
    """The edit that leaves the spans out, and all that they launched."""
    items = remove_items(rank.trace, items_of(rank, syncs).rows, is_upper_bound=False)
    spans = (syncs.start_ns, syncs.end_ns)
    return items | remove_cpu_time(syncs.thread, spans, rank.window, is_upper_bound=False)


def _count_within(counts: BoolArray, group: Int32Array) -> Int64Array:
    """For each row how many rows of its group count, from the first up to it; groups stand together.

    For example, [0, 1, 0, 1, 1] in the groups [0, 0, 0, 1, 1] become [0, 1, 1, 1, 2].
    """
    total: Int64Array = np.cumsum(counts, dtype=np.int64)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    before: Int64Array = (total - counts)[first]
    sizes = np.diff(np.append(first, len(group)))
    return total - np.repeat(before, sizes)
