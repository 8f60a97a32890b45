"""A few slow steps among many: which they are, what they cost on average, what they hold more of than the others."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.model import Ranges
from perfdoctor.trace.tables.steps import Steps

# Marks of steps and lines lie around or beside what a step does.
_MARKS = f"{vocabulary.PROFILER_STEP}|{vocabulary.SOURCE_MARK}"


class SlowSteps(NamedTuple):
    """Which steps are slow, the length of the usual one, and by how much all slow ones exceed it together."""

    rows: Int64Array
    usual_ns: int
    excess_ns: int

    def every(self, number: Int64Array) -> int | None:
        """The distance between slow steps where it is always the same; None for fewer than three, or neighbours.

        Slow steps one after the other are a slow while, not something that is done every so many steps.
        """
        gaps = set(np.diff(number[self.rows]).tolist())
        return gaps.pop() if len(self.rows) > 2 and len(gaps) == 1 and gaps != {1} else None


def slow_steps(dur_ns: Int64Array, factor: float, most_share: float) -> SlowSteps | None:
    """The steps longer than `factor` times the median; None where there are none or more than `most_share` of them.

    With so many slow ones no mean hides them, and the median says little.
    """
    if not len(dur_ns):
        return None
    usual = int(np.median(dur_ns))
    rows = np.flatnonzero(dur_ns > factor * usual)
    if not len(rows) or len(rows) > most_share * len(dur_ns):
        return None
    return SlowSteps(rows, usual, int((dur_ns[rows] - usual).sum()))


def growth(dur_ns: Int64Array) -> float:
    """How many times as long the last quarter of the steps takes as the first, by their medians.

    1.0 unless steps keep growing from half to half of the run as well: a jump is no growth.
    """
    quarters = [float(np.median(part)) for part in np.array_split(dur_ns, 4) if len(part)]
    rises = len(quarters) == 4 and all(b > a for a, b in pairwise(quarters))
    return quarters[-1] / max(quarters[0], 1.0) if rises else 1.0


def held_more_of(run: Rank, slow: BoolArray) -> tuple[str, int]:
    """The detail of the account of which slow steps hold most more than the usual ones, and how much more each, in ns.

    `slow` is for each step of the run; the usual ones are represented by the median of each detail.
    """
    steps = run.steps.intervals
    more = {}
    for name, part in run.account.parts.items():
        spent = iv.overlap(steps[:, 0], steps[:, 1], part)
        more[name] = int(spent[slow].mean() - np.median(spent[~slow]))
    name = max(more, key=lambda key: (more[key], key))
    return name, more[name]


def did_more_of(run: Rank, slow: BoolArray) -> tuple[str, int] | None:
    """The outermost op or annotation that slow steps spent most more time in than the others, and how much more each.

    None where the trace has neither, or nothing took longer.
    """
    trace, steps, ranges = run.trace, run.steps, run.trace.ranges
    told = ~trace.match_rows(ranges, _MARKS)
    found = [
        _more(trace.ops.name, trace.ops.start_ns, trace.ops.dur_ns, trace.ops.parent < 0, steps, slow),
        _more(ranges.name, ranges.start_ns, ranges.dur_ns, told & _outermost(ranges, told), steps, slow),
    ]
    # Of the two the annotation, where it says about as much: the user gave it its name.
    (op, op_ns), (annotation, annotation_ns) = found
    code, more_ns = (annotation, annotation_ns) if annotation_ns >= 0.8 * op_ns else (op, op_ns)
    return (trace.strings[code], more_ns) if more_ns > 0 else None


def _outermost(ranges: Ranges, told: BoolArray) -> BoolArray:
    """Whether no other told range of the thread lies around a range."""
    rows = np.flatnonzero(told)
    order = rows[np.lexsort((-ranges.end_ns[rows], ranges.start_ns[rows], ranges.thread[rows]))]
    thread, end = ranges.thread[order].astype(np.int64), ranges.end_ns[order]
    outer = np.zeros(len(ranges), bool)
    for lane in set(thread.tolist()):
        mine = order[thread == lane]
        reach = np.maximum.accumulate(end[thread == lane])
        outer[mine] = np.concatenate(([True], ranges.start_ns[mine[1:]] >= reach[:-1]))
    return outer


def _more(
    name: Int32Array, start_ns: Int64Array, dur_ns: Int64Array, keep: BoolArray, steps: Steps, slow: BoolArray
) -> tuple[int, int]:
    """The name of which slow steps hold most more, by time a step, and how much; (-1, 0) for none."""
    rows = np.flatnonzero(keep)
    step = steps.at(start_ns[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    if not len(rows):
        return -1, 0
    codes, which = np.unique(name[rows], return_inverse=True)
    sums = [
        np.bincount(which[mine], weights=dur_ns[rows[mine]], minlength=len(codes)) / max(int(of.sum()), 1)
        for mine, of in ((slow[step], slow), (~slow[step], ~slow))
    ]
    best = int(np.argmax(sums[0] - sums[1]))
    return int(codes[best]), int((sums[0] - sums[1])[best])
