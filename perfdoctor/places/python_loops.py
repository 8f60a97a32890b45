"""The lines of one loop of Python are one place: none of them is dear by itself, and the loop is what is to be changed.

For example, a distance that a function computes number by number::

    10  for j, b in enumerate(y, 1):                                 3 %  ]
    11      cost = 0 if a == b else 1                                7 %  ] one place, wer.py:12, with 35 %
    12      row.append(min(last[j] + 1, row[-1] + 1, last[j - 1]))  25 %  ]
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.places.name_places import find_lines
from perfdoctor.places.pieces import Pieces
from perfdoctor.places.place import PlaceName
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# A line that calls functions so often in a step is in a loop (`MIN_LOOP_CALLS` of PD104).
_MIN_CALLS = 32
# A line with more of its time in ops than that is one by itself: what is to be changed there are the ops.
_MAX_SHARE_OF_OPS = 0.1


def join_loops(
    trace: Trace,
    joins: ForwardOps,
    pieces: Pieces,
    places: list[PlaceName],
    place: Int64Array,
    *,
    entry: Int64Array,
    steps: Intervals,
    step_count: int,
) -> Int64Array:
    """For each piece the number of its place, those of the lines of a loop at the dearest of them.

    Lines of a function are one loop where each calls functions often and hardly any op, and lines between them. `entry`
    are those of `find_entries`.
    """
    frames, rows = trace.frames, np.flatnonzero(entry == np.arange(len(entry)))
    rows = rows[iv.contains(steps, frames.start_ns[rows])]
    if len(rows) < _MIN_CALLS * step_count:
        return place
    names, code = find_lines(trace, joins, frames.start_ns[rows], frames.thread[rows], np.full(len(rows), NONE))
    called = dict(zip(names, np.bincount(code[code >= 0], minlength=len(names)).tolist(), strict=True))
    whole_ns, in_ops_ns = (
        np.bincount(place[some], pieces.time_ns[some], len(places))
        for some in (slice(None), np.append(~trace.match_rows(trace.ops, vocabulary.FUNCTION_OP), False)[pieces.op])
    )
    by_function: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for number, each in enumerate(places):
        if each.kind == "line" and each.line is not None and in_ops_ns[number] <= _MAX_SHARE_OF_OPS * whole_ns[number]:
            by_function[each.file, each.function].append(number)
    at = np.arange(len(places))
    for numbers in by_function.values():
        lines = {number: places[number].line or 0 for number in numbers}
        often = [lines[number] for number in numbers if called.get(places[number], 0) >= _MIN_CALLS * step_count]
        loop = [number for number in numbers if often and min(often) <= lines[number] <= max(often)]
        if len(loop) > 1:
            at[loop] = max(loop, key=lambda number: (whole_ns[number], -lines[number]))
    return at[place]
