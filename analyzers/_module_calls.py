"""The user's calls of models: as `perfdoctor run` marks them, else by Python's frames."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    NONE,
    BoolArray,
    Int32Array,
    Int64Array,
    SourceLocation,
    Trace,
    nesting,
    user_frame,
    vocabulary,
)


class ModuleCalls(NamedTuple):
    """The outermost calls of modules in a trace.

    Attributes:
        start_ns, end_ns, thread: When and where each of them ran.
        lines: The user's line that calls it; by frames the first line of its function. None where it is not known.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    thread: Int32Array
    lines: list[SourceLocation | None]

    def around(self, trace: Trace, ops: Int32Array | Int64Array) -> Int32Array:
        """For each op (rows of `trace.ops`) the number of the call around it, or NONE."""
        at_ns, thread = trace.ops.start_ns[ops], trace.ops.thread[ops]
        return nesting.innermost(self.start_ns, self.end_ns, self.thread, at_ns, thread)


def module_calls_of(trace: Trace) -> ModuleCalls:
    """The calls of modules that lie in no other; none where neither marks nor frames show them."""
    ranges, frames = trace.ranges, trace.frames
    marks: BoolArray = trace.match_rows(ranges, vocabulary.MODULE_CALL_MARK)
    if marks.any():
        rows = np.flatnonzero(marks)
        named = {code: _parse_mark(trace.strings[code]) for code in np.unique(ranges.name[rows]).tolist()}
        lines = [named[code] for code in ranges.name[rows].tolist()]
        return ModuleCalls(ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows], lines)
    rows = np.flatnonzero(trace.match_rows(frames, vocabulary.MODULE_FRAME))
    rows = rows[nesting.parents(frames.start_ns[rows], frames.end_ns[rows], frames.thread[rows]) == NONE]
    callers = [user_frame(trace, parent) for parent in frames.parent[rows].tolist()]
    return ModuleCalls(frames.start_ns[rows], frames.end_ns[rows], frames.thread[rows], callers)


def lines_of_module_calls(trace: Trace, ops: Int32Array | Int64Array) -> list[SourceLocation | None]:
    """The line of the outermost call of a module around each op (rows of `trace.ops`)."""
    calls = module_calls_of(trace)
    lines = [*calls.lines, None]  # NONE finds the last
    return [lines[number] for number in calls.around(trace, ops).tolist()]


def _parse_mark(name: str) -> SourceLocation | None:
    line = vocabulary.parse_module_call_mark(name)
    return None if line is None else SourceLocation(*line)
