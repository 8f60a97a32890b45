"""When each node of a graph happens: as soon as its predecessors allow, at the end of the longest path to it.

The same function runs as machine code and as Python. Machine code that was compiled before loads in 0.1 s and takes
100 million nodes a second. Python takes 2 million, which is enough for small graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfdoctor.savings.relax_nodes import relax_nodes
from perfdoctor.trace.arrays import Int32Array, Int64Array
from perfdoctor.trace.scanner.machine_code import Native

SLOTS = 3
"""How many predecessors a node can have."""

_LOADING_PAYS = 4_000  # nodes: a graph is replayed some twenty times, at 2 us a node in Python
_COMPILING_PAYS = 40_000  # nodes: Python takes as long as compiling does, 1.7 s


def _load_dispatcher() -> Any:
    from perfdoctor.savings.longest_path_kernel import relax_nodes_at

    return relax_nodes_at


_SOURCES = [Path(__file__).with_name(name) for name in ("relax_nodes.py", "longest_path_kernel.py")]
longest_path_code = Native("longest_path", _SOURCES, 4, _load_dispatcher)
"""`relax_nodes` as machine code, which takes the addresses of its arrays."""


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
    if not _use_machine_code(nodes):
        times_ns = earliest_ns.tolist()
        relax_nodes(nodes, predecessor.ravel().tolist(), lag_ns.ravel().tolist(), times_ns)
        return np.array(times_ns, np.int64)
    predecessor, lag_ns = np.ascontiguousarray(predecessor, np.int32), np.ascontiguousarray(lag_ns, np.int64)
    numbers = np.arange(nodes, dtype=np.int32)
    if not all((predecessor[:, slot] < numbers).all() for slot in range(SLOTS)):
        raise ValueError("a node waits for itself or for a later one")
    result: npt.NDArray[np.int64] = np.array(earliest_ns, np.int64)
    longest_path_code(nodes, predecessor.ctypes.data, lag_ns.ctypes.data, result.ctypes.data)
    return result


def _use_machine_code(nodes: int) -> bool:
    """Whether machine code is loaded, or pays for a graph of this size; False where numba cannot be used."""
    if longest_path_code.is_loaded():
        return True
    if nodes < _LOADING_PAYS or (nodes < _COMPILING_PAYS and longest_path_code.cached_in() is None):
        return False
    try:
        longest_path_code.load()
    except Exception:  # from a package that is missing, too new for another, or built for another machine
        return False
    return True
