"""`relax_nodes` for the compiler. `longest_path` keeps the machine code, so that this is imported once a machine."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from perfdoctor.savings.relax_nodes import relax_nodes
from perfdoctor.trace.scanner.intrinsics import compiled

_relax_nodes = numba.njit(relax_nodes)


def _pointer(bits: int, kind: Any) -> Any:
    """A function that takes an address for the beginning of an array of integers."""
    to: Any = types.CPointer

    def code(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(bits).as_pointer())

    def typed(_typing: Any, _address: Any) -> Any:
        return to(kind)(types.int64), code

    return intrinsic(typed)


_of_int32, _of_int64 = _pointer(32, types.int32), _pointer(64, types.int64)


@compiled
def enter(nodes: int, before: int, lag: int, when: int) -> int:
    """Run `relax_nodes` on a graph whose arrays lie at these addresses."""
    return int(_relax_nodes(nodes, _of_int32(before), _of_int64(lag), _of_int64(when)))
