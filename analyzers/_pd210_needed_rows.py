"""Rows that modules compute in vain, by the values that a capture looked at: PD210 finds the calls by their numbers."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import NONE, Rank, SourceLocation, vocabulary

_EQUAL = WorkKind(
    "equal rows", "Modules compute rows that are copies of others: {:,} % of the rows can be left out", (0.0, 0.0, 0.0)
)
_USED = WorkKind(
    "unused rows",
    "Layers compute rows whose results get no gradient: {:,} % of the rows can be left out",
    (0.0, 0.0, 0.0),
)
# Measured by CPU time with one thread (torch 2.13), forward and backward pass: what remains of layers that compute
# distinct rows (a half to a fiftieth; MLPs of 64 to 512 numbers, a GRU) and repeat their results is that share and 0.02
# to 0.18 of all; of layers that compute the rows with a gradient (a tenth to a half; heads, MLPs, a CNN) that share and
# up to 0.04.
_GATHERING = (0.05, 0.2)
_KINDS = {"equal": _EQUAL, "used": _USED}


def find_needed_rows(rank: Rank, shaped: Rank) -> dict[WorkKind, Work]:
    """The ops inside of calls that computed rows in vain, and the share of rows that remains."""
    trace, ranges = shaped.trace, shaped.trace.ranges
    marks = np.flatnonzero(trace.match_rows(ranges, vocabulary.ROWS_MARK))
    parsed = [vocabulary.parse_rows_mark(trace.strings[code]) for code in ranges.name[marks].tolist()]
    calls = {number: (mark, line) for mark, (number, line) in zip(marks.tolist(), filter(None, parsed), strict=True)}
    ops, works = ops_of_program(trace, shaped.window), {}
    start_ns, dur_ns = trace.ops.start_ns[ops], trace.ops.dur_ns[ops]
    for name, kind in _KINDS.items():
        needed, call_of = np.ones(len(ops)), np.full(len(ops), NONE, np.int64)
        for found in rank.facts.needed_rows:
            if found.kind != name or found.share is None or found.call not in calls:
                continue
            mark = calls[found.call][0]
            first, end = np.searchsorted(start_ns, (ranges.start_ns[mark], ranges.end_ns[mark]))
            less = np.arange(first, end)[needed[first:end] > found.share]
            needed[less], call_of[less] = found.share, found.call
        inside = call_of != NONE
        if not inside.any():
            continue
        share = float(np.average(needed[inside], weights=dur_ns[inside] + 1))
        number, each = np.unique(call_of[inside], return_inverse=True)
        largest = number[np.bincount(each, dur_ns[inside]).argmax()]
        # Copies are made before the first call that gets them.
        line = calls[int(number[0] if kind is _EQUAL else largest)][1]
        remaining = (share, min(share + _GATHERING[0], 1.0), min(share + _GATHERING[1], 1.0))
        works[kind] = Work(ops[inside], round(100 * (1 - share)), None, remaining, SourceLocation(*line))
    return works
