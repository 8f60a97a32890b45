"""The steps of optimizers without what else runs within them: closures, with the forward and backward passes in them.

Lightning, skorch and LBFGS give `Optimizer.step` a closure::

    Optimizer.step#SGD.step  [ perfdoctor::closure [ forward zero_grad backward ]   the optimizer's own ops ]

`perfdoctor run` marks closures. In other traces, a step with a backward pass inside is the optimizer's own from the end
of that pass on: nothing tells what LBFGS computes between two closures from their forward passes.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace


@frozen_dataclass(eq=False)
class OptimizerSteps:
    """The ranges around `step` of all optimizers, and the closures inside them.

    Attributes:
        trace: The trace.
        rows: The ranges around `step`, rows of `trace.ranges`.
        closure_start_ns: When each closure begins.
        closure_end_ns: When it ends.
        closure_thread: Its thread.
    """

    trace: Trace
    rows: Int64Array
    closure_start_ns: Int64Array
    closure_end_ns: Int64Array
    closure_thread: Int32Array

    def around(self, at_ns: Int64Array, thread: Int32Array) -> Int32Array:
        """For each instant and thread the innermost step whose own code ran then: a row of `trace.ranges`, or -1."""
        ranges, rows = self.trace.ranges, self.rows
        start_ns = ranges.start_ns[rows]
        step = nesting.innermost(start_ns, ranges.end_ns[rows], ranges.thread[rows], at_ns, thread)
        found = np.append(rows, NONE)[step].astype(np.int32)
        if len(self.closure_start_ns):
            columns = self.closure_start_ns, self.closure_end_ns, self.closure_thread
            closure = nesting.innermost(*columns, at_ns, thread)
            # The step in the closure of another step is nearer than that closure.
            step_start, closure_start = np.append(start_ns, 0)[step], np.append(self.closure_start_ns, 0)[closure]
            found[(closure >= 0) & (closure_start >= step_start)] = NONE
        return found

    def own_time(self, rows: IntArray | None = None) -> Intervals:
        """When the optimizers' own code ran: in all steps, or in some of them (rows of `trace.ranges`).

        Where one optimizer calls the `step` of another one, that step's time is the other one's.
        """
        ranges = self.trace.ranges
        wanted = self.rows if rows is None else rows
        time = iv.union(ranges.start_ns[wanted], ranges.end_ns[wanted])
        time = iv.subtract(time, iv.union(self.closure_start_ns, self.closure_end_ns))
        if rows is None:
            return time
        columns = (ranges.start_ns[self.rows], ranges.end_ns[self.rows], ranges.thread[self.rows])
        parent = np.append(self.rows, NONE)[nesting.parents(*columns)]
        called = self.rows[np.isin(parent, wanted) & ~np.isin(self.rows, wanted)]
        return iv.subtract(time, iv.union(ranges.start_ns[called], ranges.end_ns[called]))


def optimizer_steps_of(trace: Trace) -> OptimizerSteps:
    """The steps of all optimizers in a trace."""
    ranges = trace.ranges
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP))
    marked = np.flatnonzero(trace.match_rows(ranges, vocabulary.CLOSURE_RANGE))
    if len(marked) or not len(rows):
        return OptimizerSteps(trace, rows, ranges.start_ns[marked], ranges.end_ns[marked], ranges.thread[marked])
    start_ns, end_ns = ranges.start_ns[rows], _last_backward_ends(trace, rows)
    has_closure = end_ns > start_ns
    return OptimizerSteps(
        trace, rows, start_ns[has_closure], end_ns[has_closure], ranges.thread[rows[has_closure]].astype(np.int32)
    )


def _last_backward_ends(trace: Trace, rows: Int64Array) -> Int64Array:
    """For each step (a row of `trace.ranges`) the end of the last node of a backward pass in it, else its own start.

    Nodes run on the step's thread, or on threads of the autograd engine, in which no optimizer steps.
    """
    ranges, ops = trace.ranges, trace.ops
    nodes = np.flatnonzero(trace.match_rows(ops, vocabulary.AUTOGRAD_OP))
    result = ranges.start_ns[rows].copy()  # 0 would be an instant like any other: a trace may begin before it
    if not len(nodes):
        return result
    nodes = nodes[np.argsort(ops.start_ns[nodes], kind="stable")]
    stepping = distinct(ranges.thread[rows])
    for thread in stepping.tolist():
        mine = nodes[(ops.thread[nodes] == thread) | ~np.isin(ops.thread[nodes], stepping)]
        some = np.flatnonzero(ranges.thread[rows] == thread)
        start_ns, end_ns = ranges.start_ns[rows[some]], ranges.end_ns[rows[some]]
        first = np.searchsorted(ops.start_ns[mine], start_ns)
        last = np.searchsorted(ops.start_ns[mine], end_ns)
        has_nodes = last > first
        latest_ns = np.maximum.accumulate(ops.end_ns[mine])[last[has_nodes] - 1]
        result[some[has_nodes]] = np.minimum(latest_ns, end_ns[has_nodes])
    return result
