"""What takes the time of the window, and where on the CPU it was launched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.locations import loop_thread_of
from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.step_breakdown import BACKWARD, OUTSIDE_OF_MODULES
from perfdoctor.analysis.timeline.idle_pieces import ONE_LAUNCH_NS, spread_instants
from perfdoctor.analysis.timeline.own_time import cut_by_op
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.tables.shared_columns import Groups
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv


@frozen_dataclass(eq=False)
class Work:
    """The GPU items that start in the window; of a program on the CPU the window cut by its innermost ops, and Python.

    Attributes:
        at_ns: When each was launched on the CPU; NONE where that is not known.
        thread: On which thread.
        op: The innermost op that launched it, or NONE.
        time_ns: How long it takes.
        in_backward: Whether a backward pass launched it.
        items: Rows of `Trace.gpu`; empty for a program on the CPU.
    """

    at_ns: Int64Array
    thread: Int32Array
    op: Int32Array
    time_ns: Int64Array
    in_backward: BoolArray
    items: Int64Array

    def __len__(self) -> int:
        return len(self.time_ns)


def work_in_window(rank: Rank) -> Work:
    """What takes the time of a rank's window."""
    in_backward = np.append(rank.forward_ops.in_backward, False)
    if rank.device_kind == "cpu":
        return _work_on_cpu(rank, in_backward)
    items, gpu = np.flatnonzero(rank.in_window), rank.trace.gpu
    at_ns, thread = launch_instants(rank.trace)
    op = gpu.op[items]
    return Work(at_ns[items], thread[items], op, gpu.dur_ns[items], in_backward[op], items)


def _work_on_cpu(rank: Rank, in_backward: BoolArray) -> Work:
    """The own time of ops, and Python, which may have been in several places if it took long."""
    pieces = cut_by_op(rank.trace, rank.window, rank.loader_waits.intervals)
    start_ns, end_ns = pieces.intervals.T
    python = pieces.op < 0
    piece, middle_ns, time_ns = spread_instants(start_ns, end_ns, python & (end_ns - start_ns > ONE_LAUNCH_NS))
    op = pieces.op[piece]
    thread = np.where(op >= 0, np.append(rank.trace.ops.thread, np.int32(0))[op], loop_thread_of(rank.trace))
    at_ns = np.where(op >= 0, start_ns[piece], middle_ns)
    return Work(at_ns, thread.astype(np.int32), op, time_ns, in_backward[op], np.empty(0, np.int64))


UNKNOWN_LAUNCH, COLLECTIVES = "launch not recorded", "collectives"
OUTSIDE = (OUTSIDE_OF_MODULES, BACKWARD, UNKNOWN_LAUNCH, COLLECTIVES)
"""What is named instead of a module where there is none; collectives are mostly launched by hooks on gradients."""


def modules_of_work(
    rank: Rank, at_ns: Int64Array, thread: IntArray, op: IntArray, items: Int64Array | None = None
) -> Int64Array:
    """For each piece of work the number of its module in `Rank.module_tree`; for others behind these that in `OUTSIDE`.

    `at_ns` is when each was launched on the CPU, `op` the innermost op that launched it: NONE where not known. `items`
    are their rows in `Trace.gpu`, where they are GPU items.
    """
    tree, joins = rank.module_tree, rank.forward_ops
    module = np.append(tree.module, NONE)[tree.calls_of_work(joins, at_ns, thread, op)]
    outside = np.append(joins.in_backward, False)[op].astype(np.int64)
    if rank.device_kind == "gpu":
        outside[at_ns == NONE] = OUTSIDE.index(UNKNOWN_LAUNCH)
    if items is not None and len(items):
        communicates = rank.kernel_classes.match_rows(lambda kernel: kernel.category == "communication")
        outside[communicates[items]] = OUTSIDE.index(COLLECTIVES)
    return np.where(module >= 0, module, len(tree) + outside)


class Costs(NamedTuple):
    """The known FLOPs and bytes of each piece of work; NaN where they are not known."""

    flops: FloatArray
    bytes: FloatArray


def costs_of_work(rank: Rank, work: Work) -> Costs:
    """The FLOPs of matrix work and the bytes of all work, as far as they are known; copies move what they copy."""
    unknown = np.full(len(work), np.nan)
    if not len(work.items):
        return Costs(unknown, unknown)
    costs, copied = costs_of_kernels(rank, work.items), rank.trace.gpu.bytes[work.items]
    return costs._replace(bytes=np.where(copied >= 0, copied, costs.bytes))


def costs_of_kernels(rank: Rank, items: Int64Array) -> Costs:
    """The FLOPs of matrix work and the least bytes of some kernels, as far as they are known."""
    costs = rank.kernel_costs
    usable = np.where(rank.verdicts.impossible[items], np.nan, 1.0)
    of_maths = np.where(costs.match_kinds("gemm", "convolution", "attention")[costs.kind[items]], 1.0, np.nan)
    return Costs(costs.flops[items] * usable * of_maths, costs.bytes[items] * usable)


def sum_by(row: IntArray, amounts: IntArray | BoolArray, count: int) -> Int64Array:
    """For each of some rows the sum of its whole amounts."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, row, amounts)
    return sums


def exposed_ns(rank: Rank, groups: Groups, start_ns: Int64Array, end_ns: Int64Array, part: str) -> Int64Array:
    """The time of each group within one of `Rank.exposed_parts`; the times are those of all items."""
    alone = rank.exposed_parts[part]
    rows = (groups.items[groups.group == group] for group in range(len(groups)))
    exposed = [iv.total(iv.intersect(iv.union(start_ns[each], end_ns[each]), alone)) for each in rows]
    return np.array(exposed, np.int64)
