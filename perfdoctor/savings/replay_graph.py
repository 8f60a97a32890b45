"""A trace as a graph that can be replayed: what waits for what on the CPU and on the GPU, and how long after it.

The nodes are the starts and ends of runtime calls and of GPU items, and the boundaries of the analysed time, in order
of time. Each waits for up to three earlier ones:

- a call starts after what its thread did last, or, where its thread stood idle, after the call of another thread that
  ended last (forward and autograd threads hand on to each other): the work between them is kept as it was;
- a call ends after the time that it took, or, if it blocked, when the GPU has done what it waited for;
- a GPU item starts after its launch, after the item before it on its stream, and after what its stream was told to
  wait for; of those the one that explains its start keeps its distance, the others are lower bounds;
- a launch cannot return before the GPU has begun what was launched a whole queue earlier;
- a boundary lies where the CPU came to it and the GPU had done its work.

After Daydream (Zhu et al., USENIX ATC'20), whose graphs these are, and HTA's critical path. Collectives take as long as
they took: other ranks are assumed to gain alike. SMs that two streams share, and clocks that rise when less is to be
done, are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoctor.savings.graph_edges import Edges, cpu_edges, gpu_edges
from perfdoctor.savings.graph_events import Events, events_of
from perfdoctor.savings.graph_waits import boundary_edges, queue_edges, wait_edges
from perfdoctor.savings.longest_path import SLOTS, longest_path
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

NEVER = np.iinfo(np.int64).min // 4
"""A lag that makes no difference."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """What waits for what.

    Attributes:
        events: The calls and items, and which nodes they are.
        before: int32 (n, SLOTS), the nodes that each waits for, -1 for none; see `graph_edges` for the slots.
        lag_ns: int64 (n, SLOTS), how long after them it happens at the earliest.
    """

    events: Events
    before: Int32Array
    lag_ns: Int64Array

    def node_times(self, lag_ns: Int64Array | None = None) -> Int64Array:
        """When each node happens, with other lags or the same; what waits for nothing stays where it was."""
        rooted = np.ones(len(self.before), bool)
        for slot in range(SLOTS):
            rooted &= self.before[:, slot] < 0
        earliest = np.where(rooted, self.events.time_ns, NEVER)
        return longest_path(self.before, self.lag_ns if lag_ns is None else lag_ns, earliest)

    def span_ns(self, when: Int64Array) -> int:
        """How long the analysed time takes when its nodes happen then; what lies between its parts takes as long."""
        recorded, at = self.events.time_ns[self.events.boundary], when[self.events.boundary]
        outside_ns = int((recorded[2::2] - recorded[1:-1:2]).sum())
        return int(at[-1] - at[0]) - outside_ns


def graph_of(trace: Trace, window: Intervals) -> Graph:
    """The graph of a trace's window.

    Args:
        trace: with the clocks of CPU and GPU aligned.
        window: the analysed time, not empty.
    """
    events = events_of(trace, window)
    nodes = len(events.time_ns)
    before, lag_ns = np.full((nodes, SLOTS), NONE, np.int32), np.zeros((nodes, SLOTS), np.int64)
    edges = Edges(events, before, lag_ns)
    cpu_edges(trace, edges)
    gpu_edges(trace, edges)
    wait_edges(trace, edges)
    queue_edges(edges)
    boundary_edges(trace, edges)
    # Odd clocks let a cause come after its effect: then nothing is known about the two.
    numbers = np.arange(nodes, dtype=np.int32)
    for slot in range(SLOTS):
        before[before[:, slot] >= numbers, slot] = NONE
    return Graph(events, before, lag_ns)
