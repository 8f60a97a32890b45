"""Results that are the same in each step: PD210 finds them by the marks of a capture."""

from __future__ import annotations

from collections import Counter

import numpy as np

from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.analyzers._module_calls import module_calls_of
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import BoolArray, Int64Array, Rank, SourceLocation, Trace, vocabulary
from perfdoctor.rules import intervals as iv

# What is made once is gone from the step; at worst what reads it waits for memory longer.
_UNCHANGED = WorkKind("unchanged", "{:,} results are the same in each step, and are computed anew", (0.0, 0.05, 0.3))
# Where nearly all is the same, the program gives its model one input on purpose, and draws or logs beside it.
_MAX_SHARE_OF_STEP = 0.95
_MOST = 0.9


def find_unchanged_results(shaped: Rank) -> dict[WorkKind, Work]:
    """The calls of a window whose results `perfdoctor run` saw unchanged, without those of repeated calls."""
    trace, ranges, ops = shaped.trace, shaped.trace.ranges, shaped.trace.ops
    marks = np.flatnonzero(trace.match_rows(ranges, vocabulary.UNCHANGED_MARK))
    marks = marks[iv.contains(shaped.window, ranges.start_ns[marks])]
    lines = np.flatnonzero(trace.match_rows(ranges, vocabulary.SOURCE_MARK))
    if not len(marks) or not len(lines):
        return {}
    # A mark stands right behind the range of its line.
    lines = lines[np.argsort(ranges.end_ns[lines], kind="stable")]
    behind = np.searchsorted(ranges.end_ns[lines], ranges.start_ns[marks], "right")
    marked = lines[np.unique(behind[behind > 0] - 1)]
    repeated = np.flatnonzero(trace.match_rows(ranges, vocabulary.REPEATED_CALL_MARK))
    time = iv.subtract(
        iv.union(ranges.start_ns[marked], ranges.end_ns[marked]),
        iv.union(ranges.start_ns[repeated], ranges.end_ns[repeated]),
    )
    rows = ops_of_program(trace, shaped.window)
    is_unchanged: BoolArray = iv.contains(time, ops.start_ns[rows])
    if not is_unchanged.any() or ops.dur_ns[rows[is_unchanged]].sum() > _MAX_SHARE_OF_STEP * ops.dur_ns[rows].sum():
        return {}
    location = _find_whole_call(trace, rows, is_unchanged)
    name, dur_ns = ranges.name[marked], ranges.end_ns[marked] - ranges.start_ns[marked]
    longest = marked[name == np.bincount(name, dur_ns).argmax()]
    at_longest = iv.contains(iv.union(ranges.start_ns[longest], ranges.end_ns[longest]), ops.start_ns[rows])
    place = rows[is_unchanged & at_longest]
    number = shaped.count_per_step(len(marked))
    return {_UNCHANGED: Work(rows[is_unchanged], number, place if len(place) else None, location=location)}


def _find_whole_call(trace: Trace, rows: Int64Array, is_unchanged: BoolArray) -> SourceLocation | None:
    """The line of modules' calls that have half of it and more, and in which nearly all is unchanged; None without."""
    calls = module_calls_of(trace)
    number, dur_ns = calls.around(trace, rows), trace.ops.dur_ns[rows]
    inside = number >= 0
    whole_ns, unchanged_ns = (
        np.bincount(number[chosen], dur_ns[chosen], len(calls.lines)) for chosen in (inside, inside & is_unchanged)
    )
    by_line: Counter[SourceLocation | None] = Counter()
    for call in np.flatnonzero((unchanged_ns > 0) & (unchanged_ns >= _MOST * whole_ns)).tolist():
        by_line[calls.lines[call]] += unchanged_ns[call]
    line, line_ns = max(by_line.items(), key=lambda item: item[1], default=(None, 0))
    return line if 2 * line_ns >= dur_ns[is_unchanged].sum() else None
