"""Which forward op the work of a backward pass belongs to, by the numbers that autograd gives to both.

A forward op that makes a node of the graph, and the op in which the engine runs that node later, have one number::

    loop thread    aten::addmm (5)
    engine thread      autograd::engine::evaluate_function: AddmmBackward0 (5) [ AddmmBackward0 (5) [ aten::mm ] ]

Work without a number belongs to no forward op: the accumulation of gradients, the hooks of DDP and FSDP on it.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array
from perfdoctor.trace.tables.links import find_latest
from perfdoctor.trace.tables.model import Ops, Trace


@frozen_dataclass(eq=False)
class ForwardOps:
    """For each op of a trace the node of the backward pass around it, and the forward op that made this node.

    Attributes:
        in_backward: Whether the op runs in a backward pass, numbered or not.
        node: The innermost numbered node that the op runs in, or is; a row of `trace.ops`, or NONE.
        forward: The forward op with that node's number; a row of `trace.ops`, or NONE.
    """

    in_backward: BoolArray
    node: Int32Array
    forward: Int32Array

    @property
    def has_numbers(self) -> bool:
        """Whether any work of a backward pass finds its forward op."""
        return bool((self.forward >= 0).any())


def forward_ops_of(trace: Trace) -> ForwardOps:
    """The forward op of each op of a backward pass.

    Threads count for themselves, and the profiler does not say which of the recorded threads it calls the forward one.
    Of the ops with a number the last one before the node made it: those before only saw which number would be next.
    """
    ops = trace.ops
    is_node = trace.match_rows(ops, vocabulary.BACKWARD_NODE)
    numbered = is_node & (ops.sequence >= 0)
    node = _innermost_around(ops, numbered)
    nodes = np.flatnonzero(numbered)
    forward = np.full(len(ops), NONE, np.int32)
    makers = np.flatnonzero(~is_node & (ops.sequence >= 0))
    found = find_latest(ops.sequence[nodes], ops.start_ns[nodes], ops.sequence[makers], ops.start_ns[makers])
    maker = np.append(makers, NONE)[found]
    # Where the forward pass was not recorded the only op of that number may come later, and is another's.
    later = np.append(ops.start_ns, 0)[maker] > ops.start_ns[nodes]
    forward[nodes] = np.where(later, NONE, maker)
    in_backward = _innermost_around(ops, is_node) >= 0
    return ForwardOps(in_backward, node, np.append(forward, np.int32(NONE))[node])


def _innermost_around(ops: Ops, wanted: BoolArray) -> Int32Array:
    """For each op the innermost wanted op that is itself or lies around it; NONE where there is none."""
    # Wanted ops and outermost ones lead to themselves, others to their parent; each round doubles the way.
    found = np.where(wanted | (ops.parent < 0), np.arange(len(ops), dtype=np.int32), ops.parent)
    while True:
        further = found[found]
        if np.array_equal(further, found):
            return np.where(wanted[found], found, np.int32(NONE))
        found = further
