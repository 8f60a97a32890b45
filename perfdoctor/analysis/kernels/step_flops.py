"""How much each step has to compute, by the shapes of its inputs: equal for ranks with equal work."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.launching_ops import match_op_names
from perfdoctor.gpu.roofline.cost_of_op import cost_of_op
from perfdoctor.gpu.roofline.matrix_formulas import MATRIX_FORMULAS
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps


def step_flops(trace: Trace, steps: Steps) -> tuple[int, ...]:
    """FLOPs of matrix maths in each step, by the ops' input shapes; empty where shapes or steps are missing.

    An op and the op that it calls both count, so these figures serve to compare ranks and steps, not to compute
    achieved FLOP/s.
    """
    ops = trace.ops
    rows = np.flatnonzero(match_op_names(trace, MATRIX_FORMULAS.__contains__)[ops.name])
    if not len(rows) or not steps.count:
        return ()
    step = steps.at(ops.start_ns[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    if not len(rows):
        return ()
    columns = tuple(column[rows] for column in (ops.name, ops.dims, ops.types, ops.strides, ops.concrete))
    which, first = distinct_rows(columns, len(trace.strings))
    flops = []
    for codes in zip(*(column[first].tolist() for column in columns), strict=True):
        cost = cost_of_op(trace.strings[codes[0]], *(trace.text(code) for code in codes[1:]))
        flops.append(cost.flops if cost is not None else 0)
    total = np.bincount(step, np.array(flops, np.float64)[which], steps.count)
    return tuple(round(value) for value in total.tolist()) if total.any() else ()
