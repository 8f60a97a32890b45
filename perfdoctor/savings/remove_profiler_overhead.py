"""A graph without the profiler's overhead: fixes save time of the step that users have, not of the recorded one.

Recording costs the CPU about a microsecond for each op, call and annotation (docs/measuring.md). Where a capture timed
steps without the profiler, the overhead is the one that makes the replayed step as long as those.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoctor.savings.graph_edges import ACTIVITY
from perfdoctor.savings.graph_nodes import CALL_END, CALL_START
from perfdoctor.savings.replay_graph import Graph
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import Trace

# More than the profiler was ever seen to take for an event, with shapes and stacks. The bisection ends within 0.1 %.
_MAX_OVERHEAD_NS = 10_000
_BISECTIONS = 10


def remove_profiler_overhead(trace: Trace, graph: Graph, share: float) -> Graph:
    """The graph with less CPU time for each recorded event, so that its window takes `share` (0 to 1) as long.

    The window still takes as long as the GPU's work and the CPU's waits for it, which may be longer than asked for.
    """
    events = _count_recorded_events(trace, graph)
    target_ns = share * graph.span_ns(graph.node_times())
    low_ns, high_ns = 0.0, float(_MAX_OVERHEAD_NS)
    for _ in range(_BISECTIONS):
        middle_ns = (low_ns + high_ns) / 2
        if graph.span_ns(graph.node_times(_shorten_activities(graph, events, middle_ns))) > target_ns:
            low_ns = middle_ns
        else:
            high_ns = middle_ns
    return replace(graph, lag_ns=_shorten_activities(graph, events, low_ns))


def _shorten_activities(graph: Graph, events: Int64Array, overhead_ns: float) -> Int64Array:
    """The lags where the activity of each node is `overhead_ns` shorter for each of its recorded events."""
    lag_ns = graph.lag_ns.copy()
    activity_ns = graph.lag_ns[:, ACTIVITY]
    lag_ns[:, ACTIVITY] -= np.minimum((events * overhead_ns).astype(np.int64), np.maximum(activity_ns, 0))
    return lag_ns


def _count_recorded_events(trace: Trace, graph: Graph) -> Int64Array:
    """For each node how many events its thread recorded during its activity; 0 for nodes of the GPU."""
    nodes, predecessor = graph.nodes, graph.predecessor[:, ACTIVITY]
    count = np.zeros(len(predecessor), np.int64)
    on_cpu = np.flatnonzero(((nodes.kind == CALL_START) | (nodes.kind == CALL_END)) & (predecessor >= 0))
    thread = nodes.thread[nodes.row[on_cpu]]
    tables = (trace.ops, trace.calls, trace.ranges)
    for number in set(thread.tolist()):
        of_thread = on_cpu[thread == number]
        event_ns = np.sort(np.concatenate([table.start_ns[table.thread == number] for table in tables]))
        since_ns, until_ns = nodes.time_ns[predecessor[of_thread]], nodes.time_ns[of_thread]
        count[of_thread] = np.searchsorted(event_ns, until_ns, "right") - np.searchsorted(event_ns, since_ns, "right")
    return count
