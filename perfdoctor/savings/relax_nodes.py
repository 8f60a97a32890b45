"""The pass over the nodes of a graph that finds its longest paths, in code that both Python and numba understand."""

from __future__ import annotations

from typing import Any


def relax_nodes(nodes: int, predecessor: Any, lag_ns: Any, time_ns: Any) -> int:
    """Move each node to the latest of its time and the times of its predecessors plus their lags; returns `nodes`.

    Args:
        nodes: How many there are; each comes after its predecessors.
        predecessor: SLOTS numbers a node: its predecessors, NONE for no edge.
        lag_ns: SLOTS numbers a node: how long after each of them it happens at the earliest, in ns.
        time_ns: A number a node: the earliest time, in ns; changed.
    """
    for node in range(nodes):
        latest = time_ns[node]
        for slot in range(3 * node, 3 * node + 3):
            other = predecessor[slot]
            if other >= 0:
                after = time_ns[other] + lag_ns[slot]
                if after > latest:
                    latest = after
        time_ns[node] = latest
    return nodes
