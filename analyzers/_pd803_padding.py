"""Graphs of a serving engine that are captured for many more requests than they decode."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import BoolArray, Int64Array, Rank, count_rows_of_passes
from perfdoctor.rules import intervals as iv

_MIN_PASSES = 3
# Captured sizes of engines lie by a factor of two apart at most, so that less is usual.
_MIN_PADDING = 2


class Padding(NamedTuple):
    """The padded passes, and what their padding costs at most.

    Attributes:
        rows: Their numbers in `Rank.engine_passes`.
        saved_ns: For each of them the GPU's time above that of a smaller graph.
        tokens: What most of them decode.
        captured: For how many their graph is captured.
    """

    rows: Int64Array
    saved_ns: Int64Array
    tokens: int
    captured: int


def find_padding(rank: Rank, graphed: BoolArray) -> Padding | None:
    """The passes in graphs that compute twice as many rows as they decode tokens, or more; None without any.

    A graph of the right size takes at least as long as the largest recorded one that is smaller: none, no price.
    """
    passes = rank.engine_passes
    if passes is None:
        return None
    tokens = np.array([each.tokens or 0 if each.kind == "decode" else 0 for each in passes.passes])
    rows = np.where(graphed & (tokens > 0), count_rows_of_passes(rank.trace, passes), 0)
    inside, busy_ns = iv.overlap(passes.windows[:, 0], passes.windows[:, 1], rank.window) > 0, passes.busy_ns
    typical_ns = {size: int(np.median(busy_ns[rows == size])) for size in set(rows[rows > 0].tolist())}
    padded, saved_ns = [], []
    for each in np.flatnonzero(inside & (rows > 0) & (rows >= _MIN_PADDING * tokens)).tolist():
        smaller = max((size for size in typical_ns if size <= tokens[each]), default=None)
        if smaller is not None:
            padded.append(each)
            saved_ns.append(max(min(int(busy_ns[each]), typical_ns[int(rows[each])]) - typical_ns[smaller], 0))
    if len(padded) < _MIN_PASSES:
        return None
    (most, captured), _ = Counter(zip(tokens[padded].tolist(), rows[padded].tolist(), strict=True)).most_common(1)[0]
    return Padding(np.array(padded), np.array(saved_ns), most, captured)
