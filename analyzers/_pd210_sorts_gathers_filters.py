"""Sorts of which the first few are used, layers of gathered rows, long filters: PD210 finds them by recorded sizes."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._cpu_evidence import arguments_of
from perfdoctor.analyzers._pd210_calls import Call, Calls
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import Int64Array, Trace

# Measured by CPU time with one thread (torch 2.13). Rows of 1,000 to 1,000,000 numbers sorted for the first 5 to 1,000
# of each against topk: 0.03 to 0.13, for an eighth of them 0.25.
_SORTED = WorkKind("sort", "Rows of {:,} numbers are sorted, and the first few of each are used", (0.03, 0.1, 0.25))
_MIN_SORTED, _MIN_UNUSED = 1_000, 8
# The layer and the gather, forward and backward pass, against the layer before the gather: 0.23, 0.31, 0.35 and 0.47 of
# it for a twelfth, a tenth, a quarter and a half of the rows.
_GATHERED = WorkKind(
    "gather", "A linear layer computes {:,} gathered rows, most of them several times", (0.0, 0.0, 0.0)
)
_MIN_REPEATS, _MAX_REST = 2, 0.25
# Filters of 256, 512, 1,000 and 2,000 taps over 16,000 to 48,000 samples against a product of Fourier transforms: 0.37,
# 0.34, 0.12 and 0.06; of 128 taps 0.66, of 64 nothing is gained.
_FILTERED = WorkKind(
    "filter", "A convolution with a filter of {:,} taps multiplies each sample with each tap", (0.05, 0.25, 0.5)
)
_MIN_TAPS = 256
# How many calls lie between a sort and the cut of its result, or a gather and the layer, at most.
_MAX_DISTANCE = 6


def find_sorts_gathers_filters(trace: Trace, calls: Calls) -> dict[WorkKind, Work]:
    """Such calls by kind, among the calls of a window with recorded sizes."""
    sorts: list[Call] = []
    filters: list[Call] = []
    gathers: list[tuple[Call, Call]] = []
    for at in calls.named("sort", "argsort", "index", "index_select", "conv1d"):
        call, after = calls[at], calls[at + 1 : at + 1 + _MAX_DISTANCE]
        size, *others = call.sizes or ((),)
        if call.name in ("sort", "argsort") and _uses_first_few(trace, call, after):
            sorts.append(call)
        elif call.name in ("index", "index_select") and len(size) == 2:
            gathers += [(call, each) for each in after if _computes_gathered(size, each)][:1]
        elif call.name == "conv1d" and others and others[0][1] == 1 and others[0][2] >= _MIN_TAPS:
            filters.append(call)
    found = {}
    if sorts:
        found[_SORTED] = Work(_rows_of(sorts), max(call.sizes[0][_dim_of(trace, call)] for call in sorts))
    if filters:
        found[_FILTERED] = Work(_rows_of(filters), max(call.sizes[1][2] for call in filters))
    if gathers:
        rows = max(layer.sizes[0][0] for _, layer in gathers)
        share = max(gather.sizes[0][0] / layer.sizes[0][0] for gather, layer in gathers)
        remaining = (share, min(share + _MAX_REST / 2, 1.0), min(share + _MAX_REST, 1.0))
        layers = _rows_of([layer for _, layer in gathers])
        found[_GATHERED] = Work(_rows_of([call for pair in gathers for call in pair]), rows, layers, remaining)
    return found


def _rows_of(calls: list[Call]) -> Int64Array:
    return np.array([call.row for call in calls], np.int64)


def _uses_first_few(trace: Trace, sort: Call, after: list[Call]) -> bool:
    """Whether the first call that takes something of the size of what was sorted cuts few of each row off."""
    size, dim = sort.sizes[0], _dim_of(trace, sort)
    user = next((call for call in after if size in call.sizes), None)
    if not size or size[dim] < _MIN_SORTED or user is None or user.name != "slice":
        return False
    values = arguments_of(trace, user.row)
    if len(values) < 4 or values[1] is None or values[1] % len(size) != dim % len(size):
        return False
    start, stop, _ = slice(values[2], values[3]).indices(size[dim])
    return stop - start <= size[dim] / _MIN_UNUSED


def _computes_gathered(size: tuple[int, ...], layer: Call) -> bool:
    """Whether a linear layer computes many more rows than a table of this size has, of as many numbers each."""
    rows = layer.sizes[0] if layer.name == "linear" and layer.sizes else ()
    return len(rows) == 2 and rows[1] == size[1] and rows[0] >= _MIN_REPEATS * size[0]


def _dim_of(trace: Trace, sort: Call) -> int:
    """The dimension that a sort sorts: its second argument, the last one where it is left out."""
    values = arguments_of(trace, sort.row)
    return values[1] if len(values) > 1 and values[1] is not None else -1
