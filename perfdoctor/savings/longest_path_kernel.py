"""`relax_nodes` for the compiler. `longest_path` stores the machine code, so that this is imported once a machine."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from perfdoctor.savings.relax_nodes import relax_nodes
from perfdoctor.trace.scanner.intrinsics import compiled

_relax_nodes = numba.njit(relax_nodes)


def _make_pointer_type(bits: int, kind: Any) -> Any:
    """A function that takes an address and returns a pointer to the array of integers there."""
    pointer: Any = types.CPointer

    def emit_code(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(bits).as_pointer())

    def infer_types(_typing: Any, _address: Any) -> Any:
        return pointer(kind)(types.int64), emit_code

    return intrinsic(infer_types)


_to_int32, _to_int64 = _make_pointer_type(32, types.int32), _make_pointer_type(64, types.int64)


@compiled
def relax_nodes_at(nodes: int, predecessor: int, lag_ns: int, time_ns: int) -> int:
    """Run `relax_nodes` on a graph whose arrays lie at these addresses."""
    return int(_relax_nodes(nodes, _to_int32(predecessor), _to_int64(lag_ns), _to_int64(time_ns)))
