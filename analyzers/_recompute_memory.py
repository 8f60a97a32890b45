"""How much memory the program would take if it did not compute again what a backward pass needs."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from perfdoctor.rules import NONE, Intervals, RecordedInputs, Trace, UnusableInputsError, distinct_rows
from perfdoctor.rules import intervals as iv

# Ops that make no tensor, or another view of one: their inputs are counted where they are read.
_NO_COPY = (
    r"^aten::(view|_unsafe_view|_reshape_alias|as_strided|t|transpose|permute|expand\w*|reshape|flatten|unflatten"
    r"|slice|select|narrow|unsqueeze|squeeze"
    r"|detach\w*|alias|split\w*|chunk|unbind|empty\w*|resize_|set_|lift\w*|to|movedim)$"
)


def bound_recomputed_bytes(trace: Trace, sections: Intervals, passes: int) -> int | None:
    """The most bytes that a forward pass would keep instead: all inputs of ops in the sections; None without shapes.

    Autograd keeps inputs or results of ops, and a result is the input of another op. Weights are among them, which are
    kept anyway.

    Args:
        trace: The trace that has the sections and shapes.
        sections: When it computes again.
        passes: Backward passes in the trace: what one of them needs is free before the next one.
    """
    ops = trace.ops
    is_inner = np.zeros(len(ops) + 1, bool)
    is_inner[ops.parent] = True  # the last entry stands for "no parent"
    counted = ~is_inner[:-1] & (ops.dims != NONE) & ~trace.match_rows(ops, _NO_COPY)
    rows = np.flatnonzero(counted & iv.contains(sections, ops.start_ns))
    if not len(rows) or not passes:
        return None
    which, first = distinct_rows((ops.dims[rows], ops.types[rows]), len(trace.strings))
    each = [
        _input_bytes(trace.text(int(ops.dims[row])), trace.text(int(ops.types[row]))) for row in rows[first].tolist()
    ]
    return round(int((np.bincount(which, minlength=len(first)) * np.array(each)).sum()) / passes)


def _input_bytes(dims: str | None, types: str | None) -> int:
    """The bytes of all tensors among the inputs of an op; what cannot be read counts nothing."""
    try:
        inputs = RecordedInputs.parse(dims or "", types or "", None, None)
    except UnusableInputsError:
        return 0
    found = 0
    for index in range(len(inputs.sizes)):
        with suppress(UnusableInputsError):
            found += inputs.tensor(index).bytes
    return found
