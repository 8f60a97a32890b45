"""The one pass over a graph that its longest path takes, in the words that both Python and numba understand."""

from __future__ import annotations

from typing import Any


def relax_nodes(nodes: int, before: Any, lag: Any, when: Any) -> int:
    """Set `when` of each node to the latest of what it is and what its slots say.

    Args:
        nodes: How many there are; each comes after those that it waits for.
        before: SLOTS numbers a node: the nodes that it waits for, -1 for none.
        lag: SLOTS numbers a node: how long after each of them it happens at the earliest, in ns.
        when: In ns, a number a node: at the earliest; changed.
    """
    for node in range(nodes):
        best = when[node]
        for slot in range(3 * node, 3 * node + 3):
            other = before[slot]
            if other >= 0:
                after = when[other] + lag[slot]
                if after > best:
                    best = after
        when[node] = best
    return nodes
