"""Which op launched each GPU item, and in which range, by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.model import Trace


def match_op_names(trace: Trace, test: Callable[[str], bool]) -> BoolArray:
    """For each string of the trace whether it is the name of an op that passes the test."""
    passing = np.zeros(len(trace.strings), bool)
    passing[[name for name in trace.name_ids(trace.ops) if test(trace.strings[name])]] = True
    return passing


def launching_op_names(trace: Trace) -> Int32Array:
    """For each GPU item the code of the name of the op that launched it, or -1."""
    return np.append(trace.ops.name, np.int32(NONE))[trace.gpu.op]


def launching_ranges(trace: Trace, pattern: str) -> Int32Array:
    """For each GPU item the innermost range with a matching name in which it was launched: a row of `ranges`, or -1."""
    gpu, calls, ranges = trace.gpu, trace.calls, trace.ranges
    found = np.full(len(gpu), NONE, np.int32)
    wanted = np.flatnonzero(trace.match_rows(ranges, pattern))
    rows = np.flatnonzero(gpu.call >= 0)
    if not len(wanted) or not len(rows):
        return found
    call = gpu.call[rows]
    start, end, thread = ranges.start_ns[wanted], ranges.end_ns[wanted], ranges.thread[wanted]
    inside = nesting.innermost(start, end, thread, calls.start_ns[call], calls.thread[call])
    found[rows] = np.where(inside >= 0, wanted[inside], NONE)
    return found


def match_launching_ops(trace: Trace, pattern: str | re.Pattern[str]) -> BoolArray:
    """For each GPU item whether the op that launched it, or an op around that one, has a matching name."""
    return match_each_launching_op(trace, (pattern,))[0]


def match_each_launching_op(trace: Trace, patterns: Sequence[str | re.Pattern[str]]) -> list[BoolArray]:
    """`match_launching_ops` for each of up to eight patterns, in one climb through the ops."""
    marks = np.zeros(len(trace.strings), np.uint8)  # a bit a pattern
    for i, pattern in enumerate(patterns):
        marks[trace.match_strings(trace.ops, pattern)] |= np.uint8(1 << i)
    found = marks_of_launching_ops(trace, marks[trace.ops.name])
    return [(found & np.uint8(1 << i)) != 0 for i in range(len(patterns))]


def marks_of_launching_ops(trace: Trace, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """For each GPU item the marks of the op that launched it and of all ops around that one, or-ed bit by bit.

    For example, for a kernel that the innermost of three nested ops launched::

        MulBackward0 (marks 1) > aten::mul (0) > aten::copy_ (4)      the kernel: 5
    """
    gpu, ops = trace.gpu, trace.ops
    found = np.zeros(len(gpu), np.uint8)
    rows = np.flatnonzero(gpu.op >= 0) if marks.any() else np.zeros(0, np.int64)
    op = gpu.op[rows]
    while len(rows):
        found[rows] |= marks[op]
        op = ops.parent[op]
        nested = op >= 0
        op, rows = op[nested], rows[nested]
    return found


def find_outermost_ops(trace: Trace, op: Int32Array, through: Callable[[str], bool]) -> tuple[Int32Array, Int32Array]:
    """Climb from each op outwards as long as the names pass.

    For example, from the innermost of three nested ops, where names that start with "aten" pass::

        MulBackward0 > aten::mul > aten::copy_      outermost: aten::mul    around: MulBackward0

    Returns:
        For each op the outermost one that is reached (-1 if the name of the op itself does not pass), and the one
        around that (-1 if there is none; the op itself if its name does not pass).
    """
    ops = trace.ops
    passes = match_op_names(trace, through)
    outermost, around = np.full(len(op), NONE, np.int32), op.copy()
    while True:
        rows = np.flatnonzero((around >= 0) & passes[ops.name[around]]) if len(ops) else np.zeros(0, np.int64)
        if not len(rows):
            return outermost, around
        outermost[rows] = around[rows]
        around[rows] = ops.parent[around[rows]]


def launch_instants(trace: Trace) -> tuple[Int64Array, Int32Array]:
    """When and on which thread each GPU item was launched: by its call, else by its op; NONE where neither is known."""
    gpu, calls, ops = trace.gpu, trace.calls, trace.ops
    by_call = gpu.call >= 0
    start_ns = np.where(by_call, np.append(calls.start_ns, NONE)[gpu.call], np.append(ops.start_ns, NONE)[gpu.op])
    thread = np.where(by_call, np.append(calls.thread, 0)[gpu.call], np.append(ops.thread, 0)[gpu.op])
    return start_ns.astype(np.int64), thread.astype(np.int32)
