"""Many small modules of one class that a step calls one after the other, none of which needs another's result."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import project, rank_with_stacks, size_of_rows, sizes_of, time_of_both_passes
from perfdoctor.rules import NONE, BoolArray, Int64Array, Intervals, Rank, SourceLocation, vocabulary
from perfdoctor.rules import intervals as iv

# Fewer modules are the parts of a model.
_MIN_MODULES = 16
# Measured by CPU time, forwards and backwards, with one thread (AMD EPYC, AVX-512, torch 2.13): of 64 modules of three
# layers with 0.3 million operations in each call 0.25 of the step remained in one batched product, of 32 with 5
# million all of it.
_MAX_FLOPS = 1_000_000
_CUTS = r"^aten::(slice|select|narrow)$"
_VIEWS = r"^aten::(slice|select|narrow|(un)?squeeze|view|reshape|as_strided|transpose|t|permute|contiguous)$"


class SiblingModules(NamedTuple):
    """Modules of one class, each called by itself.

    Attributes:
        module: The class.
        calls_per_step: How many calls a step makes.
        time: When their ops and those of their backward pass run.
        location: The user's line that cuts their inputs.
    """

    module: str
    calls_per_step: int
    time: Intervals
    location: SourceLocation | None


def find_sibling_modules(rank: Rank) -> SiblingModules | None:
    """The modules of one class that take most time of those called so; None without any, or without stacks and sizes.

    They are no chain where the loop cuts the input of each from one tensor, with no other op in between::

        slice  linear relu linear  slice  linear relu linear  ...
               net 0                      net 1
    """
    shown = rank_with_stacks(rank, with_shapes=True)
    if shown is None:
        return None
    trace, frames = shown.trace, shown.trace.frames
    rows = np.flatnonzero(trace.match_rows(frames, vocabulary.MODULE_FRAME) & (shown.steps.at(frames.start_ns) != NONE))
    of_class: dict[str, list[int]] = defaultdict(list)
    for row in rows.tolist():
        of_class[trace.strings[frames.name[row]].rpartition("_")[0]].append(row)
    found = []
    for name, of in of_class.items():
        calls = np.array(of, np.int64)
        number = shown.count_per_step(len(calls))
        if len(np.unique(frames.name[calls])) < _MIN_MODULES or number < _MIN_MODULES:
            continue
        inside = iv.contains(iv.union(frames.start_ns[calls], frames.end_ns[calls]), trace.ops.start_ns)
        cuts = _find_cuts(shown, calls, inside)
        if cuts is not None and _are_small(shown, inside, len(calls)):
            found.append((int(frames.dur_ns[calls].sum()), name, number, inside, cuts))
    if not found:
        return None
    _, name, number, inside, cuts = max(found, key=lambda each: each[:2])
    forward = project(rank, shown, inside)
    time = time_of_both_passes(rank, forward)
    return SiblingModules(
        name.removeprefix(vocabulary.MODULE_FRAME_PREFIX), number, time, shown.places.line_of_ops(cuts)
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
