"""Sliding windows that are cut out and reduced: PD210 finds them by recorded sizes."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._cpu_evidence import arguments_of
from perfdoctor.analyzers._pd210_calls import Call, Calls
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import Rank

# Measured by CPU time with one thread (torch 2.13), forward and backward pass: means of windows of 5, 25 and 96 values
# of 32 sequences of 192 steps of 64 numbers against avg_pool1d 0.83, 0.17 and 0.05, of 25 values of 64 by 360 by 7
# numbers 0.75; maxima against max_pool1d 0.02 to 0.32. Sums gained little: 0.4 to 1.5.
_WINDOWS = WorkKind(
    "windows",
    "unfold cuts windows of {:,} values that are reduced: each value is read, and gets a gradient, as often",
    (0.02, 0.3, 0.85),
)
_REDUCTIONS = frozenset({"mean", "amax", "max"})
_MIN_WINDOW, _MAX_DISTANCE = 8, 4


def find_sliding_windows(shaped: Rank, calls: Calls) -> dict[WorkKind, Work]:
    """Means and maxima of windows that `unfold` cuts, among the calls of a window with recorded sizes."""
    pairs = [
        pair
        for at in calls.named("unfold")
        for pair in _find_reduction(shaped, calls[at], calls[at + 1 : at + _MAX_DISTANCE])
    ]
    if not pairs:
        return {}
    rows = np.array([call.row for pair in pairs for call in pair], np.int64)
    return {_WINDOWS: Work(rows, max(call.sizes[0][-1] for _, call in pairs), rows[1::2])}


def _find_reduction(shaped: Rank, unfold: Call, after: list[Call]) -> list[tuple[Call, Call]]:
    """The call that cuts windows and the one that reduces each of them to a number, if they are such calls."""
    trace = shaped.trace
    _, _, size, step = (arguments_of(trace, unfold.row) + [None] * 4)[:4]
    if size is None or size < _MIN_WINDOW or step != 1 or not unfold.sizes:
        return []
    dims = len(unfold.sizes[0])
    last = {f'"{before}{dim}{behind}"' for dim in (-1, dims) for before, behind in (("", ""), ("[", "]"))}
    for call in after:
        whole = call.sizes[0] if call.sizes else ()
        if call.name in _REDUCTIONS and len(whole) == dims + 1 and whole[-1] == size:
            concrete = trace.text(int(trace.ops.concrete[call.row])) or ""
            return [(unfold, call)] if any(each in concrete for each in last) else []
    return []
