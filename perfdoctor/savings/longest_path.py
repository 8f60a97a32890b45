"""When each node of a graph happens: as soon as all that it waits for allows, in one pass.

The same function runs as machine code and as Python: machine code loads in 0.1 s where it was compiled before, and
settles 100 million nodes a second; Python settles 2 million, which will do for small graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import Int32Array, Int64Array
from perfdoctor.trace.scanner.machine_code import Native

SLOTS = 3
"""How many other nodes a node may wait for."""

_WORTH_LOADING = 4_000  # nodes: a graph is settled some twenty times, at 2 us a node in Python
_WORTH_COMPILING = 40_000  # which would take Python as long as compiling, 1.7 s


def pass_over(nodes: int, before: Any, lag: Any, when: Any) -> int:
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


def _dispatcher() -> Any:
    from perfdoctor.savings.longest_path_kernel import enter

    return enter


_KERNEL = Path(__file__).with_name("longest_path_kernel.py")
compiled = Native("longest_path", (Path(__file__), _KERNEL), 4, _dispatcher)
"""`pass_over` as machine code; arrays are given by their addresses."""


def settle(before: Int32Array, lag_ns: Int64Array, earliest_ns: Int64Array) -> Int64Array:
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
        pass_over(nodes, before.ravel().tolist(), lag_ns.ravel().tolist(), when)
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
