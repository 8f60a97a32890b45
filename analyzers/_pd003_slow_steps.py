"""A few slow steps among many: which they are, what they cost, and what they contain more of than the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    BoolArray,
    FloatArray,
    Int64Array,
    Ops,
    Ranges,
    Rank,
    Steps,
    frozen_dataclass,
    nesting,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Marks of steps and lines lie around or beside what a step does.
_MARKS = f"{vocabulary.PROFILER_STEP}|{vocabulary.SOURCE_MARK}|{vocabulary.OWN_MARK}"
# An annotation names the excess, as its name is the user's, where it has at least this share of the largest op's.
_ANNOTATION_SHARE = 0.8


@frozen_dataclass(eq=False)
class SlowSteps:
    """The slow ones of some steps.

    Attributes:
        rows: Which of the steps they are.
        median_ns: Length of the median step.
        excess_ns: By how much all slow steps together exceed the median.
    """

    rows: Int64Array
    median_ns: int
    excess_ns: int

    def __len__(self) -> int:
        return len(self.rows)

    def spacing(self, number: Int64Array) -> int | None:
        """The distance from one slow step to the next where it is always the same, given the numbers of all steps.

        None for fewer than three slow steps, and for neighbours: a slow while is not done every so many steps.
        """
        distances = set(np.diff(number[self.rows]).tolist())
        return distances.pop() if len(self) > 2 and len(distances) == 1 and distances != {1} else None


def find_slow_steps(dur_ns: Int64Array, factor: float, max_share: float) -> SlowSteps | None:
    """The steps longer than `factor` times the median; None where there are none or more than `max_share` of them.

    With so many slow ones no mean hides them, and the median says little.
    """
    if not len(dur_ns):
        return None
    median_ns = int(np.median(dur_ns))
    rows = np.flatnonzero(dur_ns > factor * median_ns)
    if not len(rows) or len(rows) > max_share * len(dur_ns):
        return None
    return SlowSteps(rows, median_ns, int((dur_ns[rows] - median_ns).sum()))


def measure_growth(dur_ns: Int64Array) -> float:
    """How many times as long the last quarter of the steps takes as the first, by their medians.

    1.0 unless the median rises from each quarter to the next: a jump is no growth.
    """
    quarters = [float(np.median(part)) for part in np.array_split(dur_ns, 4) if len(part)]
    rises = len(quarters) == 4 and all(later > earlier for earlier, later in pairwise(quarters))
    return quarters[-1] / max(quarters[0], 1.0) if rises else 1.0


def find_largest_part_excess(rank: Rank, is_slow: BoolArray) -> tuple[str, int]:
    """The part of the account that takes most more time in slow steps than in others, and the difference in ns.

    Args:
        rank: The rank.
        is_slow: For each of its steps whether it is slow. Their mean is compared with the median of the others.
    """
    steps = rank.steps.intervals
    excess_ns = {}
    for name, part in rank.account.parts.items():
        spent_ns = iv.overlap(steps[:, 0], steps[:, 1], part)
        excess_ns[name] = int(spent_ns[is_slow].mean() - np.median(spent_ns[~is_slow]))
    name = max(excess_ns, key=lambda key: (excess_ns[key], key))
    return name, excess_ns[name]


class Activity(NamedTuple):
    """An op or annotation that takes more time in slow steps than in others.

    Attributes:
        name: Its name.
        excess_ns: The difference of the means per step.
        calls, usual_calls: How often it runs in a slow step and in another one, in the mean.
        is_annotation: Whether it is an annotation, whose name is the user's.
    """

    name: str
    excess_ns: int
    calls: float
    usual_calls: float
    is_annotation: bool


def find_largest_activity_excess(rank: Rank, is_slow: BoolArray) -> Activity | None:
    """The outermost op or annotation that takes most more time in slow steps than in others.

    None where the trace has neither, or nothing takes longer.
    """
    trace, steps, ranges = rank.trace, rank.steps, rank.trace.ranges
    op = _find_largest_excess(trace.ops, trace.ops.parent < 0, steps, is_slow, trace.strings)
    annotations = _find_outermost(ranges, ~trace.match_rows(ranges, _MARKS))
    annotation = _find_largest_excess(ranges, annotations, steps, is_slow, trace.strings)
    op_ns = 0 if op is None else op.excess_ns
    if annotation is not None and annotation.excess_ns >= _ANNOTATION_SHARE * op_ns:
        return annotation._replace(is_annotation=True)
    return op


class MoreOps(NamedTuple):
    """How many ops the program calls in a slow step and in another one, in the mean.

    Attributes:
        calls, usual_calls: All ops outside of backward passes.
        backward_calls, usual_backward_calls: The nodes of backward passes.
    """

    calls: float
    usual_calls: float
    backward_calls: float
    usual_backward_calls: float


def count_ops(rank: Rank, is_slow: BoolArray) -> MoreOps:
    """How many ops there are in slow steps and in others."""
    trace, ops = rank.trace, rank.trace.ops
    step, in_backward = rank.steps.at(ops.start_ns), rank.forward_ops.in_backward
    node = trace.match_rows(ops, vocabulary.BACKWARD_NODE)
    counts = []
    for rows in ((ops.parent < 0) & ~in_backward & ~node, node):
        number = np.bincount(step[rows & (step >= 0)], minlength=rank.steps.count)
        counts += [float(number[is_slow].mean()), float(number[~is_slow].mean())]
    return MoreOps(*counts)


def _find_outermost(ranges: Ranges, counted: BoolArray) -> BoolArray:
    """For each range whether it counts and lies in no other range of its thread that counts."""
    rows = np.flatnonzero(counted)
    parent = nesting.parents(ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows])
    outermost = np.zeros(len(ranges), bool)
    outermost[rows[parent < 0]] = True
    return outermost


def _find_largest_excess(
    table: Ops | Ranges, counted: BoolArray, steps: Steps, is_slow: BoolArray, strings: Sequence[str]
) -> Activity | None:
    """The name that takes most more time in slow steps than in others; None where none takes more.

    Of names with the same difference it is the first by the alphabet: codes are in the order of the file.
    """
    rows = np.flatnonzero(counted)
    step = steps.at(table.start_ns[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    if not len(rows):
        return None
    codes, which = np.unique(table.name[rows], return_inverse=True)
    names = [strings[code] for code in codes.tolist()]

    def per_step(chosen: BoolArray, amounts: Int64Array) -> FloatArray:
        inside = chosen[step]
        totals = np.bincount(which[inside], weights=amounts[inside], minlength=len(codes))
        return totals / max(int(chosen.sum()), 1)

    dur_ns, ones = table.dur_ns[rows], np.ones(len(rows), np.int64)
    excess_ns = per_step(is_slow, dur_ns) - per_step(~is_slow, dur_ns)
    largest_ns = excess_ns.max()
    if largest_ns <= 0:
        return None
    best = min(np.flatnonzero(excess_ns == largest_ns).tolist(), key=names.__getitem__)
    calls, usual_calls = (float(per_step(chosen, ones)[best]) for chosen in (is_slow, ~is_slow))
    return Activity(names[best], int(largest_ns), calls, usual_calls, is_annotation=False)
