"""Needless work by the marks of a capture: repeated calls, unchanged results, operands of zeros, and rows in vain."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np

from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.analyzers._module_calls import lines_of_module_calls, module_calls_of
from perfdoctor.analyzers._pd210_calls import Call, Calls, Work
from perfdoctor.rules import (
    NONE,
    BoolArray,
    Int64Array,
    Intervals,
    Rank,
    SourceLocation,
    Trace,
    most_common_location,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Where nearly all is the same, the program gives its model one input on purpose, and draws or logs beside it.
_MAX_SHARE_OF_STEP = 0.95
_MOST = 0.9
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "linear"})
# What remains for each part of the numbers that is not 0; see `zero_operands` in the recorder for what was measured.
_BEST, _EXPECTED, _WORST = 10, 30, 60
# How many calls lie between the first op on the scores and the product.
_MAX_DISTANCE = 12
# Measured by CPU time with one thread (torch 2.13), forward and backward pass: what remains of layers that compute
# distinct rows (a half to a fiftieth; MLPs of 64 to 512 numbers, a GRU) and repeat their results is that share and 0.02
# to 0.18 of all; of layers that compute the rows with a gradient (a tenth to a half; heads, MLPs, a CNN) that share and
# up to 0.04.
_GATHERING = (0.05, 0.2)


def find_repeated_calls(shaped: Rank) -> dict[str, Work]:
    """The calls of a training that `perfdoctor run` saw repeated; a benchmark gives its model the same on purpose."""
    trace, ranges = shaped.trace, shaped.trace.ranges
    marks = np.flatnonzero(trace.match_rows(ranges, vocabulary.REPEATED_CALL_MARK))
    number = shaped.count_per_step(int((shaped.steps.at(ranges.start_ns[marks]) >= 0).sum()))
    if not number or not shaped.forward_ops.has_numbers:
        return {}
    rows = ops_of_program(trace, shaped.window)
    rows = rows[iv.contains(_time_of(trace, marks), trace.ops.start_ns[rows])]
    line = most_common_location(lines_of_module_calls(trace, rows))
    return {"repeat": Work(rows, number, location=line)} if len(rows) else {}


def find_unchanged_results(shaped: Rank) -> dict[str, Work]:
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
    rows = ops_of_program(trace, shaped.window)
    time = iv.subtract(_time_of(trace, marked), _time_of(trace, repeated))
    is_unchanged: BoolArray = iv.contains(time, ops.start_ns[rows])
    if not is_unchanged.any() or ops.dur_ns[rows[is_unchanged]].sum() > _MAX_SHARE_OF_STEP * ops.dur_ns[rows].sum():
        return {}
    location = _find_whole_call(trace, rows, is_unchanged)
    name, dur_ns = ranges.name[marked], ranges.end_ns[marked] - ranges.start_ns[marked]
    longest = marked[name == np.bincount(name, dur_ns).argmax()]
    place = rows[is_unchanged & iv.contains(_time_of(trace, longest), ops.start_ns[rows])]
    number = shaped.count_per_step(len(marked))
    return {"unchanged": Work(rows[is_unchanged], number, place if len(place) else None, location=location)}


def _time_of(trace: Trace, rows: Int64Array) -> Intervals:
    return iv.union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])


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


def find_zero_operands(calls: Calls) -> dict[str, Work]:
    """The products with an operand that is nearly all zeros; of scores that are masked what makes them, too."""
    trace, ranges = calls.rank.trace, calls.rank.trace.ranges
    marks = np.flatnonzero(trace.match_rows(ranges, vocabulary.ZEROS_MARK))
    rows: dict[str, set[int]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    shares: dict[str, list[float]] = defaultdict(list)
    # A mark stands behind its product.
    places = np.searchsorted(trace.ops.start_ns[calls.rows], ranges.start_ns[marks]) - 1
    for at, code in zip(places.tolist(), ranges.name[marks].tolist(), strict=True):
        found, call = re.match(vocabulary.ZEROS_MARK, trace.strings[code]), None if at < 0 else calls[at]
        if found is None or call is None or call.name not in _PRODUCTS or len(call.sizes) < 2:
            continue
        size = call.sizes[int(found["operand"])]
        kind, before = "zeros", list[Call]()
        if found["kind"] == "masked_zeros":
            kind, before = "masked", [each for each in calls[max(at - _MAX_DISTANCE, 0) : at] if size in each.sizes]
        rows[kind].update(each.row for each in (*before, call))
        most[kind] = max(most[kind], int(np.prod(size)))
        shares[kind].append(1 - int(found["zeros"]) / 1000)
    works = {}
    for kind, found_rows in rows.items():
        share = float(np.mean(shares[kind]))
        best, expected, worst = (min(each * share, 1.0) for each in (_BEST, _EXPECTED, _WORST))
        works[kind] = Work(np.array(sorted(found_rows), np.int64), most[kind], remaining=(best, expected, worst))
    return works


def find_needed_rows(rank: Rank, shaped: Rank) -> dict[str, Work]:
    """The ops inside of calls that computed rows in vain, and the share of rows that remains."""
    trace, ranges = shaped.trace, shaped.trace.ranges
    marks = np.flatnonzero(trace.match_rows(ranges, vocabulary.ROWS_MARK))
    parsed = [vocabulary.parse_rows_mark(trace.strings[code]) for code in ranges.name[marks].tolist()]
    calls = {number: (mark, line) for mark, (number, line) in zip(marks.tolist(), filter(None, parsed), strict=True)}
    ops, works = ops_of_program(trace, shaped.window), {}
    start_ns, dur_ns = trace.ops.start_ns[ops], trace.ops.dur_ns[ops]
    for name, kind in {"equal": "equal rows", "used": "unused rows"}.items():
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
        line = calls[int(number[0] if name == "equal" else largest)][1]
        remaining = (share, min(share + _GATHERING[0], 1.0), min(share + _GATHERING[1], 1.0))
        works[kind] = Work(ops[inside], round(100 * (1 - share)), None, remaining, SourceLocation(*line))
    return works
