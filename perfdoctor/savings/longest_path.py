"""When each node of a graph happens: as soon as all that it waits for allows, the longest path to it.

The same function runs as machine code and as Python. Machine code loads in 0.1 s where it was compiled before, and
takes 100 million nodes a second; Python takes 2 million, which is enough for small graphs.
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
"""How many other nodes a node may wait for."""

_WORTH_LOADING = 4_000  # nodes: a graph is replayed some twenty times, at 2 us a node in Python
_WORTH_COMPILING = 40_000  # which would take Python as long as compiling, 1.7 s


def _dispatcher() -> Any:
    from perfdoctor.savings.longest_path_kernel import enter

    return enter


_SOURCES = [Path(__file__).with_name(name) for name in ("relax_nodes.py", "longest_path_kernel.py")]
compiled = Native("longest_path", _SOURCES, 4, _dispatcher)
"""`relax_nodes` as machine code; arrays are given by their addresses."""


def longest_path(before: Int32Array, lag_ns: Int64Array, earliest_ns: Int64Array) -> Int64Array:
    """When each node happens, in ns.

    Args:
        before: int32 (n, SLOTS), the nodes that each waits for, all of them earlier rows; -1 for none.
        lag_ns: int64 (n, SLOTS), how long after them it happens at the earliest.
        earliest_ns: int64 (n,), what bounds it besides.
    """
    nodes = len(earliest_ns)
    if before.shape != (nodes, SLOTS) or lag_ns.shape != (nodes, SLOTS):
        raise ValueError(f"{nodes} nodes have {before.shape} others and {lag_ns.shape} lags")
    if not _use_compiled(nodes):
        when = earliest_ns.tolist()
        relax_nodes(nodes, before.ravel().tolist(), lag_ns.ravel().tolist(), when)
        return np.array(when, np.int64)
    before, lag_ns = np.ascontiguousarray(before, np.int32), np.ascontiguousarray(lag_ns, np.int64)
    numbers = np.arange(nodes, dtype=np.int32)
    if not all((before[:, slot] < numbers).all() for slot in range(SLOTS)):
        raise ValueError("a node waits for itself or for a later one")
    result: npt.NDArray[np.int64] = np.array(earliest_ns, np.int64)
    compiled(nodes, before.ctypes.data, lag_ns.ctypes.data, result.ctypes.data)
    return result


def _use_compiled(nodes: int) -> bool:
    """Whether machine code is at hand, or worth making; where numba cannot be used, Python does it."""
    if compiled.is_loaded():
        return True
    if nodes < _WORTH_LOADING or (nodes < _WORTH_COMPILING and compiled.cached_in() is None):
        return False
    try:
        compiled.load()
    except Exception:  # of a package that is missing, too new for another, or built for another machine
        return False
    return True
