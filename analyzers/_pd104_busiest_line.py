"""At which line or loop of the user's code calling ops takes most time, in a program on the CPU."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import sizes_of
from perfdoctor.analyzers._cpu_ops import cpu_zeroing_of, framework_time, ops_of_program
from perfdoctor.rules import (
    MATRIX_CATEGORIES,
    BoolArray,
    Int64Array,
    Intervals,
    Rank,
    SourceLocation,
    Trace,
    classify_op,
    nesting,
    user_frame,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_ARITHMETIC = r"^aten::r?(add|sub|mul|div)_?$"
# A line that calls one of its ops less often in a step is in no loop over rows.
MIN_LOOP_CALLS = 32
# A function that is called in one loop alone has one caller, by so many calls.
_MAX_CALLERS, _MOST_CALLERS = 64, 0.9


class ProgramCalls(NamedTuple):
    """What a program calls one by one: an op that runs many others is one call, and its time is its own.

    For example, an embedding with max_norm calls `norm` for each row, and a packed sequence a cell for each step in
    time. What loads a batch is the loader's.

    Attributes:
        rows: The outermost ops in the steps, but for those, for optimizers and loading; rows of `trace.ops`.
        time: When Python and the dispatcher take time for them, see `framework_time`.
    """

    rows: Int64Array
    time: Intervals


def calls_of_program(rank: Rank) -> ProgramCalls:
    """The ops that a program calls, and the time that calling takes."""
    trace, ops = rank.trace, rank.trace.ops
    runs_many = match_ops_that_run_many(rank)
    of_others = iv.union_of((iv.union(ops.start_ns[runs_many], ops.end_ns[runs_many]), rank.loader_waits.intervals))
    rows = ops_of_program(trace, rank.window)
    calling = framework_time(trace, rank.account.parts, cpu_zeroing_of(trace, rank.window))
    return ProgramCalls(rows[~iv.contains(of_others, ops.start_ns[rows])], iv.subtract(calling, of_others))


def match_ops_that_run_many(rank: Rank) -> BoolArray:
    """For each op whether it is an outermost one with many ops inside, or a part of the backward pass of such a one."""
    ops = rank.trace.ops
    root = nesting.outermost(ops.parent, np.arange(len(ops), dtype=np.int32))
    runs_many: BoolArray = (np.bincount(root, minlength=len(ops)) > MIN_LOOP_CALLS) & (ops.parent < 0)
    forward = rank.forward_ops.forward
    return runs_many | ((forward >= 0) & runs_many[root[forward]] if len(ops) else runs_many)


class BusiestLine(NamedTuple):
    """A line of the user's code whose calls of ops take much time; of the lines of one loop the dearest, for all.

    For example, `for row in x: y += row * w` with 40 rows, in a step of 100 ops alike in length::

        location    share  calls_per_step  repeated_share  has_matrix_ops
        train.py:3  0.8    40              78 / 80         False

    Attributes:
        location: Where it is.
        share: The share (0 to 1) of the time of calling ops that its calls take.
        calls_per_step: How often a step it calls the op that it calls most.
        repeated_share: The share of its ops that repeat another one of the step, 0 to 1: they are gone when one op does
            the work of all that are alike.
        has_matrix_ops: Whether it does matrix maths. Then it loops over layers or steps in time, which wait for each
            other.
        takes_single_numbers: Whether its arithmetic takes tensors of one number each; unknown inputs count as more.
        helper: The function that the loop calls each time, where that calls the ops.
    """

    location: SourceLocation
    share: float
    calls_per_step: int
    repeated_share: float
    has_matrix_ops: bool
    takes_single_numbers: bool
    helper: str | None = None


def find_busiest_line(rank: Rank) -> BusiestLine | None:
    """The line whose calls of ops, forward and backward, take most of the time of calling them; None without lines."""
    account, window, steps = rank.places, rank.places.lined, rank.places.lined.step_count
    ops, strings = window.trace.ops, window.trace.strings
    spent = account.places_of(account.timed.pieces.within(calls_of_program(rank).time))
    ns_at, rows_at = Counter[SourceLocation](), {}
    counts_at: dict[SourceLocation, Counter[int]] = {}
    whole_ns = 0  # without lines that call no op: `find_python_time` tells of them
    for place, ns in spent:
        called = window.ops_at(place)
        called = called[~window.trace.match_rows(ops, vocabulary.BACKWARD_OP)[called]]
        whole_ns += ns if len(called) or place.kind != "line" else 0
        if place.kind == "line" and place.location is not None and len(called):
            ns_at[place.location], rows_at[place.location] = ns, called
            counts_at[place.location] = Counter(ops.name[called].tolist())
    if not counts_at:
        return None
    loops = _group_by_loop(window.trace, counts_at, steps)
    lines, at, helper = max(loops, key=lambda loop: (sum(ns_at[line] for line in loop.lines), str(loop.lines[0])))
    calls = sum(counts_at[line].total() for line in lines)
    kinds = [name for line in lines for name in counts_at[line]]
    return BusiestLine(
        location=at or max(lines, key=lambda line: (ns_at[line], str(line))),
        share=sum(ns_at[line] for line in lines) / max(whole_ns, 1),
        calls_per_step=max(counts_at[line].most_common(1)[0][1] for line in lines) // steps,
        repeated_share=max(1 - len(kinds) * steps / calls, 0.0),
        has_matrix_ops=any(classify_op(strings[name]) in MATRIX_CATEGORIES for name in kinds),
        takes_single_numbers=_take_single_numbers(window.trace, np.concatenate([rows_at[line] for line in lines])),
        helper=helper,
    )


def _take_single_numbers(trace: Trace, rows: Int64Array) -> bool:
    """Whether the arithmetic among some ops takes single numbers, such as `x[t] * y[t]` of two vectors."""
    ops = trace.ops
    rows = rows[trace.match_rows(ops, _ARITHMETIC)[rows]]
    sizes = [sizes_of(trace.text(code)) for code in ops.dims[rows].tolist()]
    return bool(sizes) and all(known and all(math.prod(size) == 1 for size in known) for known in sizes)


class _Loop(NamedTuple):
    """Lines of one loop; where a function that it calls calls the ops the line of the loop, and that function."""

    lines: list[SourceLocation]
    location: SourceLocation | None = None
    helper: str | None = None


def _group_by_loop(trace: Trace, counts_by_line: dict[SourceLocation, Counter[int]], step_count: int) -> list[_Loop]:
    """The lines of each loop, and each other line by itself.

    Lines of one function are one loop where each calls an op often in a step, while the function itself is called
    seldom: without recorded calls of functions nobody knows that. Where it is called often, too, by one other function,
    the loop is there.
    """
    groups: dict[tuple[str, str | None, bool], list[SourceLocation]] = defaultdict(list)
    for line, counts in counts_by_line.items():
        is_repeated = counts.most_common(1)[0][1] >= MIN_LOOP_CALLS * step_count
        groups[PurePath(line.file).name, line.function, is_repeated].append(line)
    loops: dict[tuple[str, str | None, bool], _Loop] = {}
    for key, lines in groups.items():
        outer = find_outer_loop(trace, lines[0], step_count) if key[2] else None
        if outer is not None:
            owner = (PurePath(outer.file).name, outer.function, True)
            before = loops.get(owner, _Loop(list(groups.get(owner, ()))))
            loops[owner] = _Loop([*before.lines, *lines], outer, lines[0].function)
    joined = {line for loop in loops.values() for line in loop.lines}
    found = list(loops.values())
    for (_, function, is_repeated), lines in groups.items():
        left = [line for line in lines if line not in joined]
        calls = len(_frames_of(trace, left[0])) if is_repeated and function and len(left) > 1 else 0
        is_one_loop = 0 < calls < MIN_LOOP_CALLS * step_count
        found += [_Loop(left)] if is_one_loop else [_Loop([line]) for line in left]
    return found


def find_outer_loop(trace: Trace, line: SourceLocation, step_count: int) -> SourceLocation | None:
    """The line of the loop that calls the function of a line; None where it is called seldom, or from several places.

    The line of its function's definition where no mark tells the line.
    """
    rows, at_least = _frames_of(trace, line), MIN_LOOP_CALLS * step_count
    if line.function is None or len(rows) < at_least:
        return None
    sample = rows[:: max(len(rows) // _MAX_CALLERS, 1)]
    callers = Counter(user_frame(trace, int(parent)) for parent in trace.frames.parent[sample].tolist())
    [(caller, count)] = callers.most_common(1)
    is_called_often = caller is not None and len(_frames_of(trace, caller)) >= at_least
    if caller is None or is_called_often or count < _MOST_CALLERS * len(sample):
        return None
    ranges = trace.ranges
    pattern = rf"^@(.*[/\\])?{re.escape(PurePath(caller.file).name)}:\d+ {re.escape(caller.function or '')}$"
    names = ranges.name[trace.match_rows(ranges, pattern)].tolist()
    for code, number in Counter(names).most_common(1):
        mark = vocabulary.parse_source_mark(trace.strings[code])
        if mark is not None and number >= at_least:
            return SourceLocation(*mark)
    return caller


def _frames_of(trace: Trace, line: SourceLocation) -> Int64Array:
    """The recorded calls of the function of a line, rows of `trace.frames`."""
    name = rf"(^|[/\\]){re.escape(PurePath(line.file).name)}\(\d+\): {re.escape(line.function or '')}$"
    return np.flatnonzero(trace.match_rows(trace.frames, name))
