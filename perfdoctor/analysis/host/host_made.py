"""Which copies to the device carry a tensor that the program has just made on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoctor.analysis.host.host_copies import HostCopies
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, Trace

# Ops that make a tensor out of nothing but its size: they take device=.
_FACTORY = (
    r"^aten::(zeros|ones|full|arange|range|linspace|logspace|eye|rand|randn|randint|randperm|tril_indices|triu_indices"
    r"|normal|hann_window|hamming_window|kaiser_window|new_zeros|new_ones|new_full)(_like)?$"
)
# What torch.tensor(...), torch.as_tensor(...), torch.from_numpy(...) and an index that is a list leave in a trace.
_FROM_VALUES = r"^aten::(empty|lift_fresh|scalar_tensor)$"
# Ops between the making and the copying that change nothing about where the tensor came from.
_PASSING = (
    r"^(aten::)?(to|_to_copy|detach_?|lift_fresh|view|reshape|unsqueeze|squeeze|expand|expand_as|transpose|t|permute"
    r"|slice|select|alias|fill_|zero_|copy_|uniform_|normal_|random_|tril_?|triu_?|stack|cat|repeat|contiguous|clone"
    r"|set_|resize_)$"
)
# Ops that copy to the device, from the outside in; an index on the host is copied within the op that uses it.
_COPYING = r"^aten::(to|_to_copy|copy_|cuda|empty_strided|contiguous|index|index_put_?|_index_put_impl_|index_select)$"
_TO_DEVICE = r"HtoD|Host -> Device"
# Where a file tells no sizes: a copy that lasts this long is 1 MB or more on any link.
_SIZELESS_BYTES_PER_NS = 20
_OTHER, _FACTORY_OP, _VALUES_OP, _PASSING_OP = 0, 1, 2, 3


def host_made(run: Rank, copies: HostCopies, batch_bytes: float) -> tuple[HostCopies, BoolArray]:
    """Those copies whose tensor was made on the host by the op before, on the thread and level of the copying one.

    Tensors made inside a DataLoader are its batches. So are values that are copied together with something of
    `batch_bytes` or more, or first in a step: labels come as lists, too.

    Returns:
        The copies, with their makers, each beginning with the making; and for each whether the maker needed nothing
        from the host and could have run on the device. The others brought values: a Python number or list, an array.
    """
    trace, ops = run.trace, run.trace.ops
    op = trace.calls.op[copies.calls]
    if not len(ops) or not (op >= 0).any():
        return copies.only(np.zeros(len(copies), bool)), np.zeros(0, bool)
    copying = trace.match_rows(ops, _COPYING)
    outer = np.where(op >= 0, nesting.outermost(ops.parent, op, copying), NONE)
    before, kind = _last_telling(run, outer)
    loading = run.loader_waits.intervals
    factory = kind == _FACTORY_OP
    values = (kind == _VALUES_OP) & ~_in_batch(run, copies, batch_bytes)
    made = np.flatnonzero((factory | values) & ~iv.contains(loading, ops.start_ns[before]))
    maker = before[made].astype(np.int32)
    return replace(copies.only(made), maker=maker, begin_ns=ops.start_ns[maker]), factory[made]


def sizes(run: Rank, rows: Int64Array) -> Int64Array:
    """Bytes of copies; an estimate from above where the file does not tell."""
    gpu = run.trace.gpu
    known = gpu.bytes[rows]
    return np.where(known >= 0, known, gpu.dur_ns[rows] * _SIZELESS_BYTES_PER_NS)


def _last_telling(run: Rank, outer: Int32Array) -> tuple[Int64Array, Int64Array]:
    """For each op (or -1) the last one before it that does not just pass a tensor on, and what that one means.

    On its thread and inside the same op; -1 where there is none.
    """
    ops = run.trace.ops
    around = np.zeros(len(ops) + 1, bool)
    around[ops.parent[outer[outer >= 0]]] = True  # its last is for ops within none
    order = np.flatnonzero(around[ops.parent])
    order = order[np.lexsort((ops.start_ns[order], ops.parent[order], ops.thread[order]))]
    kind = _kinds(run, order)
    last = np.maximum.accumulate(np.where(kind != _PASSING_OP, np.arange(len(order)), NONE))
    place = np.zeros(len(ops), np.int64)
    place[order] = np.arange(len(order))
    before = np.where(outer >= 0, np.append(last, NONE)[place[outer] - 1], NONE)
    row = order[before]
    same = (before >= 0) & (ops.thread[row] == ops.thread[outer]) & (ops.parent[row] == ops.parent[outer])
    return np.where(same, row, NONE), np.where(same, kind[before], NONE)


def _kinds(run: Rank, rows: Int64Array) -> Int64Array:
    """What some ops mean for where a tensor came from; whatever launched GPU work is another story."""
    trace, ops = run.trace, run.trace.ops
    table = np.full(len(trace.strings), _OTHER, np.int64)
    # The later wins: lift_fresh passes on what came before, but tells by itself as well.
    for pattern, meaning in ((_PASSING, _PASSING_OP), (_FACTORY, _FACTORY_OP), (_FROM_VALUES, _VALUES_OP)):
        table[trace.match_strings(ops, pattern)] = meaning
    return np.where(_launching(trace)[rows], _OTHER, table[ops.name[rows]])


def _launching(trace: Trace) -> BoolArray:
    """For each op whether it launched GPU work, itself or by an op within it."""
    launching = np.zeros(len(trace.ops), bool)
    row = trace.calls.op[trace.gpu.call[trace.gpu.call >= 0]]
    while len(row):
        row = row[row >= 0]
        row = row[~launching[row]]
        launching[row] = True
        row = trace.ops.parent[row]
    return launching


def _in_batch(run: Rank, copies: HostCopies, batch_bytes: float) -> BoolArray:
    """Whether a copy belongs to a run of copies, without a kernel launch between, that moves the batch."""
    trace, gpu, calls = run.trace, run.trace.gpu, run.trace.calls
    launched = gpu.call >= 0
    launching = np.zeros(len(calls), bool)
    launching[gpu.call[launched & (gpu.kind == KERNEL)]] = True
    launches = calls.start_ns[launching]  # calls are sorted by start
    every = np.flatnonzero(launched & (gpu.kind == MEMCPY) & trace.match_rows(gpu, _TO_DEVICE))
    large = every[sizes(run, every) >= batch_bytes]
    moved = np.searchsorted(launches, calls.start_ns[gpu.call[large]])
    first = np.searchsorted(launches, run.steps.intervals[:, 0])
    batches = np.concatenate((moved, first, [0]))
    result: BoolArray = np.isin(np.searchsorted(launches, calls.start_ns[copies.calls]), batches)
    return result
