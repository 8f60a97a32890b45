"""A trace as a graph for a critical-path model: what waits for what on the CPU and on the GPU, and for how long.

The nodes are the starts and ends of runtime calls and GPU items, and the boundaries of the analysed time, in order of
time. Each has up to three earlier nodes as predecessors:

- A call starts after the node before it on its thread. Where its thread was idle it starts after the call of another
  thread that ended last: forward and autograd threads hand work on to each other. CPU work in between is unchanged.
- A call ends after its duration. If it blocks, it ends when the GPU has done what it waits for.
- A GPU item starts after its launch, after the item before it on its stream, and after the event that its stream waits
  for. The predecessor that explains its start keeps its lag, the others are lower bounds.
- A launch returns when the GPU has started what was launched a whole queue earlier.
- A boundary comes when the CPU has done its work up to there, and the GPU has.

After Daydream (Zhu et al., USENIX ATC'20) and the critical path analysis of HTA. Collectives take as long as they took:
other ranks are assumed to gain alike. SMs that two streams share, and clocks that rise when there is less to do, are
not modelled.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.graph_edges import ACTIVITY, Edges, add_cpu_edges, add_gpu_edges
from perfdoctor.savings.graph_nodes import CALL_START, Nodes, nodes_of
from perfdoctor.savings.graph_waits import add_blocking_edges, add_boundary_edges, add_queue_edges
from perfdoctor.savings.longest_path import SLOTS, longest_path
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

NEVER = np.iinfo(np.int64).min // 4
"""A lag that makes no difference."""


@frozen_dataclass(eq=False)
class Graph:
    """The nodes and edges of a replay.

    Attributes:
        nodes: The nodes, with the calls and items that they belong to.
        predecessor: int32 (n, SLOTS), for each node and slot the predecessor, NONE for no edge; see `graph_edges`.
        lag_ns: int64 (n, SLOTS), how long after its predecessor a node happens at the earliest.
        once: What happened once, which the graph has not in it any more: the lags lack it, the times of nodes do not.
    """

    nodes: Nodes
    predecessor: Int32Array
    lag_ns: Int64Array
    once: Intervals = field(default_factory=lambda: iv.EMPTY)

    def without(self, once: Intervals) -> Graph:
        """The graph as if some time had not passed: its replay without edits takes as long as the rest of the window.

        Where an edge lasts over such time, its lag is that much shorter. What was only a lower bound stays one. A
        window that begins right after such time begins amid the CPU's work: its first calls follow its begin.
        """
        at_ns, predecessor, lag_ns = _shift_back(self.nodes.time_ns, once), self.predecessor.copy(), self.lag_ns.copy()
        begin = self.nodes.boundary[0]
        first = np.flatnonzero((self.nodes.kind == CALL_START) & (predecessor < 0).all(axis=1))
        first = first[first > begin]
        predecessor[first, ACTIVITY], lag_ns[first, ACTIVITY] = begin, at_ns[first] - at_ns[begin]
        known = predecessor >= 0
        between_ns = np.where(known, at_ns[:, None] - at_ns[predecessor], 0)
        lag_ns = np.where(known, np.minimum(lag_ns, between_ns), lag_ns)
        return replace(self, predecessor=predecessor, lag_ns=lag_ns, once=once)

    def node_times(self, lag_ns: Int64Array | None = None) -> Int64Array:
        """When each node happens, in ns, with these lags or the graph's own; nodes without predecessors do not move."""
        return longest_path(self.predecessor, self.lag_ns if lag_ns is None else lag_ns, self._earliest_ns)

    @cached_property
    def _earliest_ns(self) -> Int64Array:
        """Where nodes without predecessors stand; NEVER for the others."""
        has_predecessor = np.zeros(len(self.predecessor), bool)
        for slot in range(SLOTS):  # `any` along so short an axis takes twenty times as long
            has_predecessor |= self.predecessor[:, slot] >= 0
        return np.where(has_predecessor, NEVER, _shift_back(self.nodes.time_ns, self.once))

    def span_ns(self, node_times_ns: Int64Array) -> int:
        """Length of the analysed time when its nodes happen at these times; gaps between its intervals do not count."""
        boundary = self.nodes.boundary
        recorded_ns, at_ns = _shift_back(self.nodes.time_ns[boundary], self.once), node_times_ns[boundary]
        gaps_ns = int((recorded_ns[2::2] - recorded_ns[1:-1:2]).sum())
        return int(at_ns[-1] - at_ns[0]) - gaps_ns


def _shift_back(time_ns: Int64Array, once: Intervals) -> Int64Array:
    """Instants as they would have come without some time before them."""
    if not len(once):
        return time_ns
    result: Int64Array = time_ns - iv.overlap(np.broadcast_to(once[0, 0], time_ns.shape), time_ns, once)
    return result


def graph_of(trace: Trace, window: Intervals) -> Graph:
    """The graph of a trace's window.

    Args:
        trace: The trace, with the clocks of CPU and GPU aligned.
        window: The analysed time, not empty.
    """
    nodes = nodes_of(trace, window)
    predecessor, lag_ns = np.full((len(nodes), SLOTS), NONE, np.int32), np.zeros((len(nodes), SLOTS), np.int64)
    edges = Edges(nodes, predecessor, lag_ns)
    add_cpu_edges(trace, edges)
    add_gpu_edges(trace, edges)
    add_blocking_edges(trace, edges)
    add_queue_edges(edges)
    add_boundary_edges(trace, edges)
    # Where clocks disagree a cause can come after its effect. Such an edge is dropped.
    predecessor[predecessor >= np.arange(len(nodes), dtype=np.int32)[:, None]] = NONE
    return Graph(nodes, predecessor, lag_ns)
