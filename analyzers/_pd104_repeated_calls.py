"""Modules and ops that a step calls again and again, in place of once for all, in programs on the CPU alone."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from pathlib import PurePath

import numpy as np

from perfdoctor.analyzers._cpu_evidence import (
    FoundWork,
    project,
    rank_with_stacks,
    size_of_rows,
    sizes_of,
    time_of_both_passes,
    time_of_ops,
)
from perfdoctor.analyzers._pd104_busiest_line import MIN_LOOP_CALLS, calls_of_program
from perfdoctor.rules import (
    MATRIX_CATEGORIES,
    NONE,
    BoolArray,
    Int64Array,
    Rank,
    SourceLocation,
    classify_op,
    read_advice,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Fewer calls a step are the parts of a model that share a layer; so are fewer modules.
_MIN_CALLS = 16
_PRODUCT = r"^aten::(linear|addmm|mm)$"
_RECURRENT = r"(?i)^aten::(lstm|gru|rnn_tanh|rnn_relu)(_cell)?$"
# Of the calls of a module with a row each, and of those of the op that takes most of a loop's time, how many are alike:
# parameters of a model have many sizes.
_ALIKE = 0.9
# Measured by CPU time, forwards and backwards, with one thread (AMD EPYC, AVX-512, torch 2.13): of 64 modules of three
# layers with 0.3 million operations in each call 0.25 of the step remained in one batched product, of 32 with 5
# million all of it.
_MAX_FLOPS = 1_000_000
_CUTS = r"^aten::(slice|select|narrow)$"
_VIEWS = r"^aten::(slice|select|narrow|(un)?squeeze|view|reshape|as_strided|transpose|t|permute|contiguous)$"


def find_row_calls(rank: Rank) -> FoundWork | None:
    """The module that takes most time of those that get a single row each time; None without stacks and sizes."""
    shown = rank_with_stacks(rank, with_shapes=True)
    if shown is None:
        return None
    chosen = _choose_module(shown, _module_frames_of(shown))
    if chosen is None:
        return None
    name, number, inside = chosen
    module = shown.trace.strings[name].removeprefix(vocabulary.MODULE_FRAME_PREFIX).rpartition("_")[0]
    return FoundWork(
        f"{module} is called {shown.count_per_step(number):,} times {rank.per_unit}, with one row each",
        read_advice("rows one by one"),
        time_of_both_passes(rank, project(rank, shown, inside)),
        location=shown.places.line_of_ops(inside),
        subject="rows",
    )


def _module_frames_of(shown: Rank) -> Int64Array:
    """The calls of modules in the steps, rows of `trace.frames`."""
    trace, frames = shown.trace, shown.trace.frames
    return np.flatnonzero(trace.match_rows(frames, vocabulary.MODULE_FRAME) & (shown.steps.at(frames.start_ns) != NONE))


def _choose_module(rank: Rank, rows: np.ndarray) -> tuple[int, int, BoolArray] | None:
    """The name of the module whose calls (among rows of `trace.frames`) take longest, their number, the ops in them.

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
            return int(names[at]), int(count[at]), inside
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
    return kinds.most_common(1)[0][1] >= _ALIKE * kinds.total()


def _take_single_rows(rank: Rank, inside: BoolArray) -> bool:
    """Whether nearly all products among some ops are of one row."""
    trace = rank.trace
    rows = np.flatnonzero(inside & trace.match_rows(trace.ops, _PRODUCT))
    numbers = [math.prod(size[:-1]) for row in rows.tolist() if (size := size_of_rows(trace, row))]
    return bool(numbers) and numbers.count(1) >= _ALIKE * len(numbers)


def find_sibling_modules(rank: Rank) -> FoundWork | None:
    """The modules of one class that take most time of those called so; None without any, or without stacks and sizes.

    They are no chain where the loop cuts the input of each from one tensor, with no other op in between::

        slice  linear relu linear  slice  linear relu linear  ...
               net 0                      net 1
    """
    shown = rank_with_stacks(rank, with_shapes=True)
    if shown is None:
        return None
    trace, frames = shown.trace, shown.trace.frames
    of_class: dict[str, list[int]] = defaultdict(list)
    for row in _module_frames_of(shown).tolist():
        of_class[trace.strings[frames.name[row]].rpartition("_")[0]].append(row)
    found = []
    for name, of in of_class.items():
        calls = np.array(of, np.int64)
        number = shown.count_per_step(len(calls))
        if len(np.unique(frames.name[calls])) < _MIN_CALLS or number < _MIN_CALLS:
            continue
        inside = iv.contains(iv.union(frames.start_ns[calls], frames.end_ns[calls]), trace.ops.start_ns)
        cuts = _find_cuts(shown, calls, inside)
        if cuts is not None and _are_small(shown, inside, len(calls)):
            found.append((int(frames.dur_ns[calls].sum()), name, number, inside, cuts))
    if not found:
        return None
    _, name, number, inside, cuts = max(found, key=lambda each: each[:2])
    module = name.removeprefix(vocabulary.MODULE_FRAME_PREFIX)
    return FoundWork(
        f"Small modules of one class, {module}, are called one by one, {number:,} times {rank.per_unit}",
        read_advice("modules one by one"),
        time_of_both_passes(rank, project(rank, shown, inside)),
        location=shown.places.line_of_ops(cuts),
        subject="siblings",
    )


def _find_cuts(shown: Rank, calls: Int64Array, inside: BoolArray) -> Int64Array | None:
    """The ops that cut the inputs of calls of modules from one tensor; None where other ops stand between the calls."""
    trace, frames, ops = shown.trace, shown.trace.frames, shown.trace.ops
    calls = calls[np.argsort(frames.start_ns[calls], kind="stable")]
    steps = shown.steps.at(frames.start_ns[calls])
    same_step = steps[1:] == steps[:-1]
    between = iv.union(frames.end_ns[calls[:-1]][same_step], frames.start_ns[calls[1:]][same_step])
    rows = iv.contains(between, ops.start_ns) & ~inside
    cuts = np.flatnonzero(rows & trace.match_rows(ops, _CUTS))
    wholes = {sizes_of(trace.text(code))[:1] for code in ops.dims[cuts].tolist()}
    are_cuts = trace.match_rows(ops, _VIEWS)[rows].all() and len(cuts) >= same_step.sum() and len(wholes) == 1
    return cuts if are_cuts else None


def _are_small(shown: Rank, inside: BoolArray, calls: int) -> bool:
    """Whether the products of a call are so small that calling them takes as long as they do."""
    trace, flops = shown.trace, 0
    for row in np.flatnonzero(inside).tolist():
        rows, parent = size_of_rows(trace, row), int(trace.ops.parent[row])
        if rows and not (parent >= 0 and size_of_rows(trace, parent)):
            weight = next((size for size in reversed(sizes_of(trace.text(int(trace.ops.dims[row])))) if size[1:]), ())
            flops += 2 * math.prod(rows[:-1]) * math.prod(weight)
    return 0 < flops <= _MAX_FLOPS * calls


def find_op_loop(rank: Rank, min_share: float) -> FoundWork | None:
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
    number = shown.count_per_step(len(marked))
    return FoundWork(
        f"A loop calls {number:,} ops {rank.per_unit} on tensors of one size, at {location.short}",
        read_advice("one op for a loop"),
        time_of_ops(rank, project(rank, shown, marks)),
        location=location,
        subject="loop",
    )


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
