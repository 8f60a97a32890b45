"""A graph without the profiler's own time: what fixes save of the step that users have, not of the one recorded.

Recording costs the CPU about a microsecond for each operator, call and annotation (docs/measuring.md). Where the
capture has timed steps without it, that cost is the one that makes the replayed step as long as those.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoctor.savings.graph_edges import OWN
from perfdoctor.savings.graph_events import CALL_END, CALL_START
from perfdoctor.savings.replay_graph import Graph
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import Trace

# Nobody has seen the profiler take more for an event, with shapes and stacks; the bisection ends within 0.1 % of that.
_MOST_NS = 10_000
_ROUNDS = 10


def without_profiler(trace: Trace, graph: Graph, share: float) -> Graph:
    """The graph with so much less CPU time for each recorded event that its window takes `share` (0 to 1) as long.

    Not shorter than the GPU's work and the CPU's waits for it allow, so what comes out may take longer.
    """
    events = _recorded(trace, graph)
    goal_ns = share * graph.span_ns(graph.node_times())
    low, high = 0.0, float(_MOST_NS)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        lag_ns = _cheaper(graph, events, middle)
        if graph.span_ns(graph.node_times(lag_ns)) > goal_ns:
            low = middle
        else:
            high = middle
    return replace(graph, lag_ns=_cheaper(graph, events, low))


def _cheaper(graph: Graph, events: Int64Array, cost_ns: float) -> Int64Array:
    """The lags with `cost_ns` less for each recorded event."""
    lag_ns = graph.lag_ns.copy()
    own = lag_ns[:, OWN]
    less = np.minimum((events * cost_ns).astype(np.int64), np.maximum(own, 0))
    lag_ns[:, OWN] = own - less
    return lag_ns


def _recorded(trace: Trace, graph: Graph) -> Int64Array:
    """For each node how many events of its thread were recorded since the node that it follows."""
    nodes, before = graph.events, graph.before[:, OWN]
    found = np.zeros(len(before), np.int64)
    on_cpu = ((nodes.kind == CALL_START) | (nodes.kind == CALL_END)) & (before >= 0)
    thread = np.full(len(before), -1, np.int64)
    thread[on_cpu] = nodes.thread[nodes.row[on_cpu]]
    tables = (trace.ops, trace.calls, trace.ranges)
    for number in set(thread[on_cpu].tolist()):
        mine = np.flatnonzero(thread == number)
        begun = np.sort(np.concatenate([table.start_ns[table.thread == number] for table in tables]))
        since, until = nodes.time_ns[before[mine]], nodes.time_ns[mine]
        found[mine] = np.searchsorted(begun, until, side="right") - np.searchsorted(begun, since, side="right")
    return found
