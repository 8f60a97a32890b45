"""Which line of the user's code calls most of the ops of a program on the CPU, and whether it loops."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation, find_locations
from perfdoctor.analysis.kernels.tensor_core_verdicts import MATRIX_CATEGORIES
from perfdoctor.gpu import classify_op
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import find_steps

# Looking a place up costs some us; of longer traces the first ops will do.
_MOST = 5_000


class Line(NamedTuple):
    """A line of the user's code.

    Attributes:
        place: Where it is.
        share: Of all ops those that it calls, 0 to 1.
        repeats: How often a step it calls the op that it calls most.
        alike: Of its ops those that repeat others of it, 0 to 1: with all of them done at once they are gone.
        layers: Whether it does matrix maths: layers, or steps in time, wait for each other.
    """

    place: SourceLocation
    share: float
    repeats: int
    alike: float
    layers: bool


def busiest_line(rank: Rank) -> Line | None:
    """The line that calls most of the outermost ops beside the optimizer's; None where no place is known.

    The line of the backward pass is none: what runs there was written elsewhere. From the evidence window when the
    analysed one has no places.
    """
    for trace in (rank.trace, rank.evidence_trace):
        found = None if trace is None else _busiest(trace)
        if found is not None:
            return found
    return None


def _busiest(trace: Trace) -> Line | None:
    ops, ranges = trace.ops, trace.ranges
    others = trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP) | trace.match_rows(ranges, vocabulary.ZERO_GRAD)
    other = iv.union(ranges.start_ns[others], ranges.end_ns[others])
    steps = find_steps(trace)
    window = steps.window if steps.count else iv.window(*trace.extent_ns)
    rows = np.flatnonzero(
        (ops.parent < 0) & iv.contains(window, ops.start_ns) & (iv.overlap(ops.start_ns, ops.end_ns, other) == 0)
    )[:_MOST]
    seen = set(np.searchsorted(steps.intervals[:, 0], ops.start_ns[rows], "right").tolist()) if steps.count else [0]
    names: dict[SourceLocation, Counter[int]] = defaultdict(Counter)
    for place, name in zip(
        find_locations(trace, ops.thread[rows], ops.start_ns[rows]), ops.name[rows].tolist(), strict=True
    ):
        if place is not None and not re.search(vocabulary.BACKWARD_OP, trace.strings[name]):
            names[place][name] += 1
    if not names:
        return None
    place, counts = max(names.items(), key=lambda item: (item[1].total(), str(item[0])))
    calls = counts.total()
    once = len(counts) * len(seen)
    return Line(
        place=place,
        share=calls / len(rows),
        repeats=counts.most_common(1)[0][1] // len(seen),
        alike=max(1 - once / calls, 0.0),
        layers=any(classify_op(trace.strings[name]) in MATRIX_CATEGORIES for name in counts),
    )
