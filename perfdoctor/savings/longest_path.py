"""When each node of a graph happens: as soon as its predecessors allow, at the end of the longest path to it.

The C library takes 100 million nodes a second, and Python, where the library cannot be used, 2 million.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.arrays import Int32Array, Int64Array
from perfdoctor.trace.scanner.core_library import find_library

SLOTS = 3
"""How many predecessors a node can have."""


def longest_path(predecessor: Int32Array, lag_ns: Int64Array, earliest_ns: Int64Array) -> Int64Array:
    """When each node happens, in ns.

    For example::

        node  predecessor   lag_ns    earliest_ns  result
        0     NONE NONE NONE            100        100
        1     0    NONE NONE  5         NEVER      105
        2     0    1    NONE  10 7      NEVER      112

    Args:
        predecessor: int32 (n, SLOTS), the predecessors of each node, all of them earlier rows; NONE for no edge.
        lag_ns: int64 (n, SLOTS), how long after each of them the node happens at the earliest.
        earliest_ns: int64 (n,), a lower bound for each node.

    Raises:
        ValueError: the arrays are of different lengths, or a node is its own predecessor or comes before one.
    """
    nodes = len(earliest_ns)
    if predecessor.shape != (nodes, SLOTS) or lag_ns.shape != (nodes, SLOTS):
        raise ValueError(f"{nodes} nodes have {predecessor.shape} predecessors and {lag_ns.shape} lags")
    time_ns: Int64Array = np.array(earliest_ns, np.int64)
    library = find_library()
    if library is not None:
        predecessor, lag_ns = np.ascontiguousarray(predecessor, np.int32), np.ascontiguousarray(lag_ns, np.int64)
        columns = (column.ctypes.data for column in (predecessor, lag_ns, time_ns))
        in_order = library.perfdoctor_longest_path(nodes, *columns) < 0
    else:
        in_order = relax_nodes(predecessor, lag_ns, time_ns)
    if not in_order:
        raise ValueError("a node waits for itself or for a later one")
    return time_ns


def relax_nodes(predecessor: Int32Array, lag_ns: Int64Array, time_ns: Int64Array) -> bool:
    """Move each node to the latest of its time and the times of its predecessors plus their lags, in Python.

    Returns:
        Whether every node comes after its predecessors; else `time_ns` is not changed.
    """
    times_ns: list[int] = time_ns.tolist()
    for node, (others, lags_ns) in enumerate(zip(predecessor.tolist(), lag_ns.tolist(), strict=True)):
        for other, lag in zip(others, lags_ns, strict=True):
            if other >= node:
                return False
            if other >= 0:
                times_ns[node] = max(times_ns[node], times_ns[other] + lag)
    time_ns[:] = times_ns
    return True
