"""Modules that a step calls again and again with a single row each, in place of once with all of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import project, rank_with_stacks, size_of_rows, time_of_both_passes
from perfdoctor.rules import NONE, BoolArray, Intervals, Rank, SourceLocation, vocabulary
from perfdoctor.rules import intervals as iv

# Fewer calls a step are the parts of a model that share a layer.
_MIN_CALLS = 16
_PRODUCT = r"^aten::(linear|addmm|mm)$"
_RECURRENT = r"(?i)^aten::(lstm|gru|rnn_tanh|rnn_relu)(_cell)?$"
_MOST = 0.9


class RowCalls(NamedTuple):
    """Calls of one module with a row each.

    Attributes:
        module: Its name in the recording, without its number.
        calls_per_step: How often a step calls it.
        time: When its ops and their backward pass run.
        location: The user's line that calls it.
    """

    module: str
    calls_per_step: int
    time: Intervals
    location: SourceLocation | None


def find_row_calls(rank: Rank) -> RowCalls | None:
    """The module that takes most time of those that a step calls so; None without any, or without stacks and sizes."""
    shown = rank_with_stacks(rank, with_shapes=True)
    if shown is None:
        return None
    trace, frames = shown.trace, shown.trace.frames
    rows = np.flatnonzero(trace.match_rows(frames, vocabulary.MODULE_FRAME) & (shown.steps.at(frames.start_ns) != NONE))
    chosen = _choose_module(shown, rows)
    if chosen is None:
        return None
    name, inside = chosen
    forward = project(rank, shown, inside)
    time = time_of_both_passes(rank, forward)
    module = trace.strings[name].removeprefix(vocabulary.MODULE_FRAME_PREFIX).rpartition("_")[0]
    number = shown.count_per_step(int((frames.name[rows] == name).sum()))
    return RowCalls(module, number, time, shown.places.line_of_ops(inside))


def _choose_module(rank: Rank, rows: np.ndarray) -> tuple[int, BoolArray] | None:
    """The name of the module whose calls (among rows of `trace.frames`) take longest, and which ops lie in them.

    A part of a module whose calls cannot be made at once cannot be called at once either.
    """
    frames, ops = rank.trace.frames, rank.trace.ops
    names, of, count = np.unique(frames.name[rows], return_inverse=True, return_counts=True)
    time_ns = np.bincount(of, frames.dur_ns[rows])
    in_turn = iv.EMPTY
    for at in np.argsort(-time_ns, kind="stable").tolist():
        calls = rows[of == at]
        start_ns, spans = frames.start_ns[calls], iv.union(frames.start_ns[calls], frames.end_ns[calls])
        if rank.count_per_step(int(count[at])) < _MIN_CALLS or iv.contains(in_turn, start_ns).any():
            continue
        inside = iv.contains(spans, ops.start_ns)
        if not _are_alike(rank, inside, start_ns):
            in_turn = iv.union_of((in_turn, spans))
        elif _take_single_rows(rank, inside):
            return int(names[at]), inside
    return None


def _are_alike(rank: Rank, inside: BoolArray, start_ns: np.ndarray) -> bool:
    """Whether nearly all calls run the same ops with the same sizes, and none is a recurrent cell.

    Where a sequence grows by the call before, as text does, sizes of keys and values grow, and cells hand a state on:
    such calls cannot be made at once.
    """
    trace, ops = rank.trace, rank.trace.ops
    rows = np.flatnonzero(inside)
    if trace.match_rows(ops, _RECURRENT)[rows].any():
        return False
    call = np.searchsorted(start_ns, ops.start_ns[rows], side="right")
    edges = np.flatnonzero(np.diff(call)) + 1
    work = np.stack((ops.name[rows], ops.dims[rows]), axis=1)
    kinds = Counter(part.tobytes() for part in np.split(work, edges))
    return kinds.most_common(1)[0][1] >= _MOST * kinds.total()


def _take_single_rows(rank: Rank, inside: BoolArray) -> bool:
    """Whether nearly all products among some ops are of one row."""
    trace = rank.trace
    rows = np.flatnonzero(inside & trace.match_rows(trace.ops, _PRODUCT))
    numbers = [math.prod(size[:-1]) for row in rows.tolist() if (size := size_of_rows(trace, row))]
    return bool(numbers) and numbers.count(1) >= _MOST * len(numbers)
