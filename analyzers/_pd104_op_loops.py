"""Loops at one line that call the same ops on tensors of one size again and again, in programs on the CPU alone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import project, rank_with_stacks, time_of_ops
from perfdoctor.analyzers._pd104_busiest_line import MIN_LOOP_CALLS, calls_of_program
from perfdoctor.rules import MATRIX_CATEGORIES, Int64Array, Intervals, Rank, SourceLocation, classify_op, vocabulary

# Of the calls of the op that takes most of the loop's time, how many have one size: parameters of a model have many.
_ALIKE = 0.9


class OpLoop(NamedTuple):
    """A line that calls ops again and again.

    Attributes:
        location: The line.
        calls_per_step: How many ops it calls.
        time: When they run.
    """

    location: SourceLocation
    calls_per_step: int
    time: Intervals


def find_op_loop(rank: Rank, min_share: float) -> OpLoop | None:
    """The line whose repeated ops take most of a step; None where none takes `min_share` (0 to 1), or without stacks.

    Layers of a model call their ops again and again as well: each in a call of its own of their function.
    """
    shown = rank_with_stacks(rank, with_shapes=True) if len(_find_repeated(rank, min_share)) else None
    if shown is None:
        return None
    window, repeated = shown.places.lined, _find_repeated(shown, min_share)
    ops = window.trace.ops
    at_lines = [(place, np.intersect1d(window.ops_at(place), repeated)) for place in window.places]
    spent = [
        (int(ops.dur_ns[rows].sum()), place.short, place, rows) for place, rows in at_lines if place.kind == "line"
    ]
    _, _, place, marked = max(spent, key=lambda each: each[:2], default=(0, "", None, repeated[:0]))
    location = None if place is None else place.location
    if location is None or not len(marked) or not _is_loop(shown, location, marked):
        return None
    marks = np.zeros(len(ops), bool)
    marks[marked] = True
    return OpLoop(location, shown.count_per_step(len(marked)), time_of_ops(rank, project(rank, shown, marks)))


def _find_repeated(rank: Rank, min_share: float) -> Int64Array:
    """The ops of the forward pass that a step calls often, without matrix work; none where they take too little."""
    trace, ops = rank.trace, rank.trace.ops
    rows = calls_of_program(rank).rows
    rows = rows[~trace.match_rows(ops, vocabulary.BACKWARD_OP)[rows]]
    names, name, count = np.unique(ops.name[rows], return_inverse=True, return_counts=True)
    is_often = np.array(
        [
            rank.count_per_step(number) >= MIN_LOOP_CALLS and classify_op(trace.strings[code]) not in MATRIX_CATEGORIES
            for code, number in zip(names.tolist(), count.tolist(), strict=True)
        ],
        bool,
    )
    rows = rows[is_often[name]] if len(rows) else rows
    return rows if int(ops.dur_ns[rows].sum()) >= min_share * rank.window_ns else rows[:0]


def _is_loop(shown: Rank, location: SourceLocation, rows: Int64Array) -> bool:
    """Whether the ops of a line repeat on one size within few calls of its function."""
    trace, ops = shown.trace, shown.trace.ops
    name = np.unique(ops.name[rows], return_inverse=True)[1]
    main = rows[name == np.bincount(name, ops.dur_ns[rows]).argmax()]
    sizes = Counter(ops.dims[main].tolist())
    function = rf"{re.escape(PurePath(location.file).name)}\(\d+\): {re.escape(location.function or '')}$"
    frames = trace.frames.start_ns[trace.match_rows(trace.frames, function)]
    calls = int((shown.steps.at(frames) >= 0).sum()) if shown.steps.count else len(frames)
    is_often = shown.count_per_step(len(main)) >= MIN_LOOP_CALLS
    return is_often and sizes.most_common(1)[0][1] >= _ALIKE * len(main) and 0 < calls * MIN_LOOP_CALLS <= len(main)
