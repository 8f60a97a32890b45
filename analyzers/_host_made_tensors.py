"""Tensors that the program makes on the host and copies to the GPU: which, when, and the one fix of all that they cost.

PD106 tells the copies. PD102 and PD103 meet the same lines: the wait in the copy, and the time in the factory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoctor.rules import (
    KERNEL,
    NONE,
    Action,
    Advice,
    BoolArray,
    HostCopies,
    Int32Array,
    Int64Array,
    Intervals,
    Rank,
    Steps,
    Trace,
    copy_kinds_of,
    host_copies,
    nesting,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Ops that make a tensor out of nothing but its size: they take device=.
_FACTORY = (
    r"^aten::(zeros|ones|full|arange|range|linspace|logspace|eye|rand|randn|randint|randperm|tril_indices|triu_indices"
    r"|normal|hann_window|hamming_window|kaiser_window|new_zeros|new_ones|new_full)(_like)?$"
)
# The ops that torch.tensor(...), torch.as_tensor(...), torch.from_numpy(...) and an index that is a list call.
_FROM_VALUES = r"^aten::(empty|lift_fresh|scalar_tensor)$"
# Ops between the making and the copying that pass the tensor on, so that it still comes from the op before them.
_PASSING = (
    r"^(aten::)?(to|_to_copy|detach_?|lift_fresh|view|reshape|unsqueeze|squeeze|expand|expand_as|transpose|t|permute"
    r"|slice|select|alias|fill_|zero_|copy_|uniform_|normal_|random_|tril_?|triu_?|stack|cat|repeat|contiguous|clone"
    r"|set_|resize_)$"
)
# Ops that copy to the device, from the outside in; an index on the host is copied within the op that uses it.
_COPYING = r"^aten::(to|_to_copy|copy_|cuda|empty_strided|contiguous|index|index_put_?|_index_put_impl_|index_select)$"
# Where a file has no sizes of copies, they are estimated from durations at this bandwidth.
_SIZELESS_BYTES_PER_NS = 20
_OTHER, _FACTORY_OP, _VALUES_OP, _PASSING_OP = 0, 1, 2, 3
TARGET_DEVICE = (
    "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device"
)
# Pauses or waits of which less lies in such tensors have another cause as well.
_MOST = 0.6


def select_host_made_tensors(
    trace: Trace, steps: Steps, loading: Intervals, copies: HostCopies, batch_bytes: float
) -> tuple[HostCopies, BoolArray]:
    """The copies whose tensor was made on the host by the op just before the copying one, on its thread and level.

    Tensors made inside a DataLoader are batches and are left out. So are values that are copied in one run with
    `batch_bytes` or more, or in the first run of a step: labels may be lists, too.

    Returns:
        The copies with their `creator_op`, each starting with that op; and for each whether that op is a factory,
        which could have run on the device. The others copy values: a Python number or list, an array.
    """
    ops = trace.ops
    op = trace.calls.op[copies.calls]
    if not len(ops) or not (op >= 0).any():
        return copies.select(np.zeros(len(copies), bool)), np.zeros(0, bool)
    _, before, meaning = _find_makers(trace, op)
    factory = meaning == _FACTORY_OP
    values = (meaning == _VALUES_OP) & ~_belongs_to_batch(trace, steps, copies, batch_bytes)
    made = np.flatnonzero((factory | values) & ~iv.contains(loading, ops.start_ns[before]))
    creator = before[made].astype(np.int32)
    return replace(copies.select(made), creator_op=creator, op_start_ns=ops.start_ns[creator]), factory[made]


def find_factories_before(trace: Trace, calls: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The factories whose tensor some calls copy, and the ops that copy it: for each call that has both, in turn."""
    copying, before, meaning = _find_makers(trace, trace.calls.op[calls])
    made = meaning == _FACTORY_OP
    return before[made], copying[made]


def _find_makers(trace: Trace, op: Int32Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """For ops that copy (or -1) the outermost copying op around each, the op that made its tensor, what this means."""
    copying = nesting.outermost(trace.ops.parent, op, trace.match_rows(trace.ops, _COPYING)).astype(np.int64)
    return copying, *_last_meaningful_op(trace, copying)


def copy_bytes(trace: Trace, rows: Int64Array) -> Int64Array:
    """Bytes of copies; an upper bound where the file does not record them."""
    gpu = trace.gpu
    recorded = gpu.bytes[rows]
    return np.where(recorded >= 0, recorded, gpu.dur_ns[rows] * _SIZELESS_BYTES_PER_NS)


def _last_meaningful_op(trace: Trace, outer: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For each op (or -1) the last op before it that does not just pass a tensor on, and the meaning of that one.

    Both are -1 where no such op is on the same thread and inside the same op. For example, for `aten::to`::

        op     aten::mm  aten::ones  aten::view  aten::to     before: aten::ones
        means  other     factory     passing                  meaning: factory
    """
    ops = trace.ops
    around = np.zeros(len(ops) + 1, bool)
    around[ops.parent[outer[outer >= 0]]] = True  # the last entry is for ops within none
    order = np.flatnonzero(around[ops.parent])
    order = order[np.lexsort((ops.start_ns[order], ops.parent[order], ops.thread[order]))]
    meaning = _meanings(trace, order)
    last = np.maximum.accumulate(np.where(meaning != _PASSING_OP, np.arange(len(order)), NONE))
    position = np.zeros(len(ops), np.int64)
    position[order] = np.arange(len(order))
    before = np.where(outer >= 0, np.append(last, NONE)[position[outer] - 1], NONE)
    row = order[before]
    same = (before >= 0) & (ops.thread[row] == ops.thread[outer]) & (ops.parent[row] == ops.parent[outer])
    return np.where(same, row, NONE), np.where(same, meaning[before], NONE)


def _meanings(trace: Trace, rows: Int64Array) -> Int64Array:
    """For some ops what they mean for the origin of a tensor; an op that launched GPU work made none on the host."""
    ops = trace.ops
    table = np.full(len(trace.strings), _OTHER, np.int64)
    # A later pattern replaces an earlier one: lift_fresh passes a tensor on, but by itself means values as well.
    for pattern, meaning in ((_PASSING, _PASSING_OP), (_FACTORY, _FACTORY_OP), (_FROM_VALUES, _VALUES_OP)):
        table[trace.match_strings(ops, pattern)] = meaning
    return np.where(_launches_work(trace)[rows], _OTHER, table[ops.name[rows]])


def _launches_work(trace: Trace) -> BoolArray:
    """For each op whether it launched GPU work, itself or by an op inside it."""
    launching = np.zeros(len(trace.ops), bool)
    row = trace.calls.op[trace.gpu.call[trace.gpu.call >= 0]]
    while len(row):
        row = row[row >= 0]
        row = row[~launching[row]]
        launching[row] = True
        row = trace.ops.parent[row]
    return launching


def _belongs_to_batch(trace: Trace, steps: Steps, copies: HostCopies, batch_bytes: float) -> BoolArray:
    """For each copy whether its run of copies, without a kernel launch between, copies the batch of a step."""
    gpu, calls = trace.gpu, trace.calls
    launched = gpu.call >= 0
    launching = np.zeros(len(calls), bool)
    launching[gpu.call[launched & (gpu.kind == KERNEL)]] = True
    launches = calls.start_ns[launching]  # calls are sorted by start
    to_device = np.flatnonzero(launched & copy_kinds_of(trace).matches(vocabulary.HTOD))
    large = to_device[copy_bytes(trace, to_device) >= batch_bytes]
    # The copies of a run have equally many kernel launches before them.
    of_large = np.searchsorted(launches, calls.start_ns[gpu.call[large]])
    of_steps = np.searchsorted(launches, steps.intervals[:, 0])
    batches = np.concatenate((of_large, of_steps, [0]))
    result: BoolArray = np.isin(np.searchsorted(launches, calls.start_ns[copies.calls]), batches, kind="table")
    return result


def find_host_made(rank: Rank, batch_bytes: float) -> tuple[HostCopies, BoolArray]:
    """The copies to the GPU of tensors that were made on the host, and for each whether a factory made it."""
    # AMD's traces say "Host", whichever memory it was.
    from_host = copy_kinds_of(rank.trace).matches(vocabulary.HTOD, vocabulary.PAGEABLE, vocabulary.HOST)
    copies = host_copies(rank.trace, rank.window, from_host)
    return select_host_made_tensors(rank.trace, rank.steps, rank.loader_waits.intervals, copies, batch_bytes)


def most_frequent_name(trace: Trace, ops: Int64Array | Int32Array) -> str:
    """The name that most of some ops have."""
    names, counts = np.unique(trace.ops.name[ops], return_counts=True)
    return trace.strings[int(names[np.argmax(counts)])]


def advise_on_factories(rank: Rank, makers: Int64Array | Int32Array) -> Advice:
    """What to do about the ops that made tensors which are copied: the line of the most frequent one."""
    maker = most_frequent_name(rank.trace, makers).removeprefix("aten::")
    return Advice(
        "Make the tensor where it is used, with device=: nothing has to be copied, and the CPU does not wait.",
        f"torch.{maker}(..., device=x.device)",
        TARGET_DEVICE,
        (Action("make-on-device"),),
    )


def advise_if_made_on_host(rank: Rank, time: Intervals) -> Advice | None:
    """The same advice where most of some time passes in making such tensors and copying them; None elsewhere."""
    copies, by_factory = find_host_made(rank, 0)
    copies = copies.select(by_factory)
    if not len(copies) or not len(time):
        return None
    copies = copies.select(iv.overlap(copies.op_start_ns, copies.resume_ns, time) > 0)
    making = iv.union(copies.op_start_ns, copies.resume_ns)
    if iv.total(iv.intersect(making, time)) < _MOST * iv.total(time):
        return None
    return advise_on_factories(rank, copies.creator_op)
