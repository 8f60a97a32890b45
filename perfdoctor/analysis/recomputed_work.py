"""What activation checkpointing computes again: work of the forward pass within the backward pass.

The older kind runs the backward pass of what it computed inside of its own node, the newer kind computes when a node
asks for what it had saved::

    older   CheckpointFunctionBackward [ addmm   evaluate_function: AddmmBackward0 [ mm ] ]     again: addmm
    newer   evaluate_function: MulBackward0 [ unpack_hook [ addmm ] mul ]                      again: addmm
"""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace


@frozen_dataclass(eq=False)
class RecomputedSections:
    """When a backward pass computes again what the forward pass had computed.

    Attributes:
        ops: The outermost ops that do so, rows of `trace.ops`.
        by_thread: For each thread that does the sections: from the start of the node that needs something again to the
            end of the last of these ops in it.
    """

    ops: Int64Array
    by_thread: tuple[tuple[int, Intervals], ...]

    @property
    def time(self) -> Intervals:
        """The sections of all threads."""
        return iv.union_of(sections for _, sections in self.by_thread)


def match_recomputed(trace: Trace, at_ns: Int64Array, thread: Int32Array) -> BoolArray:
    """For each instant of a thread whether it lies in a checkpoint's function, and in none of its own backward nodes.

    The newer kind is seen by its Python frames alone.
    """
    node = _innermost_start(trace, trace.match_rows(trace.ops, vocabulary.BACKWARD_NODE), at_ns, thread)
    again = np.zeros(len(at_ns), bool)
    frames, ops = trace.frames, trace.ops
    for table, pattern in ((frames, vocabulary.RECOMPUTE_FRAME), (ops, vocabulary.RECOMPUTE_OP)):
        rows = trace.match_rows(table, pattern)
        if rows.any():
            inside = nesting.innermost(table.start_ns[rows], table.end_ns[rows], table.thread[rows], at_ns, thread)
            began_ns = np.append(table.start_ns[rows], NONE)[inside]
            again |= (inside >= 0) & (at_ns != NONE) & (node <= began_ns)
    return again


def _innermost_start(trace: Trace, rows: BoolArray, at_ns: Int64Array, thread: Int32Array) -> Int64Array:
    """For each instant and thread when the innermost of some ops around it began; before all where there is none."""
    ops = trace.ops
    start_ns = ops.start_ns[rows]
    inside = nesting.innermost(start_ns, ops.end_ns[rows], ops.thread[rows], at_ns, thread)
    return np.append(start_ns, np.iinfo(np.int64).min)[inside]


def recomputed_sections_of(trace: Trace, window: Intervals, *, uses_checkpoint: bool = False) -> RecomputedSections:
    """The sections of backward passes in the window that compute again.

    Where the program is known to call `checkpoint`, its newer kind is seen without frames, because ops within a
    backward node that record a graph are those of a forward pass.
    """
    ops = trace.ops
    is_node = trace.match_rows(ops, vocabulary.BACKWARD_NODE)
    again = match_recomputed(trace, ops.start_ns, ops.thread) & ~is_node
    if uses_checkpoint and not again.any():
        again = _match_recording_ops(trace, is_node)
    again &= iv.contains(window, ops.start_ns)
    rows = np.flatnonzero(again)
    outermost = rows[(ops.parent[rows] < 0) | ~again[ops.parent[rows]]]
    parent = ops.parent[outermost]
    in_node = (parent >= 0) & is_node[parent]
    thread = ops.thread[outermost]
    groups = np.where(in_node, parent, len(ops) + outermost)
    order = np.argsort(groups, kind="stable")
    first = np.flatnonzero(np.diff(groups[order], prepend=-1))
    if not len(first):
        return RecomputedSections(outermost, ())
    leaders = outermost[order][first]
    start_ns = np.where(in_node[order][first], ops.start_ns[parent[order][first]], ops.start_ns[leaders])
    end_ns = np.maximum.reduceat(ops.end_ns[outermost][order], first)
    of_thread = thread[order][first]
    sections = tuple(
        (number, iv.intersect(iv.union(start_ns[of_thread == number], end_ns[of_thread == number]), window))
        for number in sorted(set(of_thread.tolist()))
    )
    return RecomputedSections(outermost, sections)


def _match_recording_ops(trace: Trace, is_node: BoolArray) -> BoolArray:
    """For each op whether it records a graph inside of a backward node; none where whole backward passes do.

    Autograd numbers ops while it records (`sequence`), and a backward pass records only with create_graph=True: then
    most of its ops have numbers. A backward pass does at least as much as the forward pass that it computes again.
    """
    ops = trace.ops
    in_node = np.zeros(len(ops), bool)
    # Rows are sorted by start, so that an op comes after the one around it.
    node = nesting.innermost(ops.start_ns[is_node], ops.end_ns[is_node], ops.thread[is_node], ops.start_ns, ops.thread)
    in_node[:] = (node >= 0) & ~is_node
    records = in_node & (ops.sequence >= 0)
    if 2 * np.count_nonzero(records) > np.count_nonzero(in_node):
        return np.zeros(len(ops), bool)
    return records
