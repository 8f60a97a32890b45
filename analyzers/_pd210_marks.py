"""Needless work by the marks of a capture: repeated calls, unchanged results, operands of zeros, and rows in vain."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.analyzers._module_calls import module_calls_of
from perfdoctor.analyzers._pd210_calls import Call, Calls, Work
from perfdoctor.rules import (
    NONE,
    Int64Array,
    Intervals,
    Rank,
    SourceLocation,
    Trace,
    innermost_frame,
    user_frame,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Where nearly all is the same, the program gives its model one input on purpose, and draws or logs beside it.
_MAX_SHARE_OF_STEP = 0.95
_MOST = 0.9
_PARAMETRIZE = "torch/nn/utils/parametrize.py"
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


def find_repeated_calls(shaped: Rank, unchanged: Int64Array) -> dict[str, Work]:
    """The calls of a training that compute again what one before in the step has computed, by the function they are in.

    Those of a module that does nothing else are at its call; ops whose results no step changes are left out. A
    benchmark gives its model the same on purpose.
    """
    trace, ranges = shaped.trace, shaped.trace.ranges
    marked = _find_marked(shaped, vocabulary.REPEATED_MARK)
    again = np.setdiff1d(_rows_in(shaped, _time_of(trace, marked.calls)), unchanged)
    if not len(again) or not shaped.forward_ops.has_numbers:
        return {}
    whole = _find_whole_calls(shaped, again)
    at = np.searchsorted(ranges.start_ns[marked.calls], trace.ops.start_ns[again], "right") - 1
    frames = innermost_frame(trace, trace.ops.thread[again], trace.ops.start_ns[again])
    parts: dict[str, list[int]] = defaultdict(list)
    for number, (line, frame) in enumerate(zip(whole, frames.tolist(), strict=True)):
        kind = "repeated weight" if _is_parametrized(trace, frame) else "repeated ops"
        parts[f"repeat at {line}" if line else f"{kind} in {user_frame(trace, frame)}"].append(number)
    works = {}
    for key, numbers in parts.items():
        of_part = np.unique(at[numbers])
        work = _describe_marked(shaped, _Marked(marked.marks[of_part], marked.calls[of_part]), again[numbers])
        before = Counter(trace.strings[code] for code in ranges.name[marked.marks[of_part]].tolist())
        first = vocabulary.parse_repeated_mark(before.most_common(1)[0][0])
        works[key] = work._replace(location=whole[numbers[0]], first=None if first is None else SourceLocation(*first))
    return works


def _is_parametrized(trace: Trace, frame: int) -> bool:
    """Whether a frame makes a weight of others."""
    while frame != NONE:
        if _PARAMETRIZE in trace.strings[trace.frames.name[frame]]:
            return True
        frame = int(trace.frames.parent[frame])
    return False


def find_unchanged_results(shaped: Rank) -> dict[str, Work]:
    """The calls of a window whose results `perfdoctor run` saw unchanged."""
    trace, ops = shaped.trace, shaped.trace.ops
    marked = _find_marked(shaped, vocabulary.UNCHANGED_MARK)
    rows = _rows_in(shaped, _time_of(trace, marked.calls))
    whole_ns = ops.dur_ns[ops_of_program(trace, shaped.window)].sum()
    if not len(rows) or ops.dur_ns[rows].sum() > _MAX_SHARE_OF_STEP * whole_ns:
        return {}
    of_line: Counter[SourceLocation | None] = Counter()
    for line, dur_ns in zip(_find_whole_calls(shaped, rows), ops.dur_ns[rows].tolist(), strict=True):
        of_line[line] += dur_ns
    line, line_ns = of_line.most_common(1)[0]
    is_most = 2 * line_ns >= ops.dur_ns[rows].sum()
    return {"unchanged": _describe_marked(shaped, marked, rows)._replace(location=line if is_most else None)}


class _Marked(NamedTuple):
    """Marks in a window, and the ranges of the calls before them; rows of `trace.ranges`."""

    marks: Int64Array
    calls: Int64Array


def _find_marked(shaped: Rank, pattern: str) -> _Marked:
    trace, ranges = shaped.trace, shaped.trace.ranges
    marks = np.flatnonzero(trace.match_rows(ranges, pattern))
    marks = marks[iv.contains(shaped.window, ranges.start_ns[marks])]
    lines = np.flatnonzero(trace.match_rows(ranges, vocabulary.SOURCE_MARK)) if len(marks) else marks
    # A mark stands right behind the range of its line.
    lines = lines[np.argsort(ranges.end_ns[lines], kind="stable")]
    behind = np.searchsorted(ranges.end_ns[lines], ranges.start_ns[marks], "right")
    return _Marked(marks[behind > 0], lines[behind[behind > 0] - 1])


def _rows_in(shaped: Rank, time: Intervals) -> Int64Array:
    """The program's ops that begin in some time of a window, rows of `trace.ops`."""
    rows = ops_of_program(shaped.trace, shaped.window)
    return rows[iv.contains(time, shaped.trace.ops.start_ns[rows])]


def _describe_marked(shaped: Rank, marked: _Marked, found: Int64Array) -> Work:
    """What marked calls with some ops come to: how many a step, and those at the line with most of their time."""
    trace, ranges = shaped.trace, shaped.trace.ranges
    calls = np.unique(marked.calls)
    name, dur_ns = ranges.name[calls], ranges.end_ns[calls] - ranges.start_ns[calls]
    longest = calls[name == np.bincount(name, dur_ns).argmax()]
    place = found[iv.contains(_time_of(trace, longest), trace.ops.start_ns[found])]
    return Work(found, shaped.count_per_step(len(calls)), place if len(place) else None)


def _time_of(trace: Trace, rows: Int64Array) -> Intervals:
    return iv.union(trace.ranges.start_ns[rows], trace.ranges.end_ns[rows])


def _find_whole_calls(shaped: Rank, found: Int64Array) -> list[SourceLocation | None]:
    """For each of some ops the line of the module's call around it, of whose time they have nearly all; else None."""
    trace, rows = shaped.trace, ops_of_program(shaped.trace, shaped.window)
    calls = module_calls_of(trace)
    whole_ns, found_ns = np.zeros(len(calls.lines) + 1), np.zeros(len(calls.lines) + 1)  # NONE finds the last
    np.add.at(whole_ns, calls.around(trace, rows), trace.ops.dur_ns[rows])
    around = calls.around(trace, found)
    np.add.at(found_ns, around, trace.ops.dur_ns[found])
    lines = [line if found_ns[at] >= _MOST * whole_ns[at] else None for at, line in enumerate(calls.lines)]
    return [[*lines, None][at] for at in around.tolist()]


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
