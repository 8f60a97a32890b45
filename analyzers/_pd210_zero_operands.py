"""Products with matrices that are zero nearly everywhere: PD210 finds them by the marks of a capture."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from perfdoctor.analyzers._pd210_calls import Call, Calls
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import Rank, vocabulary

_FIXED = WorkKind("zeros", "Products with a matrix of {:,} numbers, nearly all of them zeros", (0.0, 0.0, 0.0))
_MASKED = WorkKind(
    "masked", "Scores of {:,} pairs are computed, nearly all of which a mask makes zeros", (0.0, 0.0, 0.0)
)
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "linear"})
# What remains for each part of the numbers that is not 0; see `zero_operands` in the recorder for what was measured.
_BEST, _EXPECTED, _WORST = 10, 30, 60
# How many calls lie between the first op on the scores and the product.
_MAX_DISTANCE = 12


def find_zero_operands(shaped: Rank, calls: Calls) -> dict[WorkKind, Work]:
    """The products that a capture has marked; of scores that are masked what makes them, too."""
    trace, ranges, start_ns = shaped.trace, shaped.trace.ranges, shaped.trace.ops.start_ns[calls.rows]
    marks = np.flatnonzero(trace.match_rows(ranges, vocabulary.ZEROS_MARK))
    rows: dict[WorkKind, set[int]] = defaultdict(set)
    most: dict[WorkKind, int] = defaultdict(int)
    shares: dict[WorkKind, list[float]] = defaultdict(list)
    # A mark stands behind its product.
    places = np.searchsorted(start_ns, ranges.start_ns[marks]) - 1
    for at, code in zip(places.tolist(), ranges.name[marks].tolist(), strict=True):
        found, call = re.match(vocabulary.ZEROS_MARK, trace.strings[code]), None if at < 0 else calls[at]
        if found is None or call is None or call.name not in _PRODUCTS or len(call.sizes) < 2:
            continue
        size = call.sizes[int(found["operand"])]
        kind, before = _FIXED, list[Call]()
        if found["kind"] == "masked_zeros":
            kind, before = _MASKED, [each for each in calls[max(at - _MAX_DISTANCE, 0) : at] if size in each.sizes]
        rows[kind].update(each.row for each in (*before, call))
        most[kind] = max(most[kind], int(np.prod(size)))
        shares[kind].append(1 - int(found["zeros"]) / 1000)
    works = {}
    for kind, found_rows in rows.items():
        share = float(np.mean(shares[kind]))
        best, expected, worst = (min(each * share, 1.0) for each in (_BEST, _EXPECTED, _WORST))
        works[kind] = Work(np.array(sorted(found_rows), np.int64), most[kind], remaining=(best, expected, worst))
    return works
