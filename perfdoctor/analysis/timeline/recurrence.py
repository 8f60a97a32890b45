"""How often something comes back: its time step by step, and which part of it happens once in the trace.

A pause of 300 ms in one of 10 steps is no 30 ms in each: no step to come repeats it. So what an amount costs a step is
its median over the steps, and what stands out of that in one step, or a few at the beginning, is a one-off::

    step            1     2     3     4
    pauses, ms    343+5   5     5     5      -> 5 recur in 4 of 4 steps, 343 happen once in this trace
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.steps import Steps

# A step that has so many times as much as the usual one has it from something else: steps of steady recordings lie
# within 1.2 of their median, the pauses in them within 2.
_STANDS_OUT = 2
RECURRING_STEPS = 3
"""What occurs in this many steps, in both halves of the trace, recurs."""


@frozen_dataclass
class Recurrence:
    """How often what a finding is about comes back.

    Attributes:
        steps: The number of steps in which it occurs.
        of: The number of analysed steps.
        median_ns: What it costs a step in which it occurs, in the median.
        max_ns: What it costs the step in which it costs most.
    """

    steps: int
    of: int
    median_ns: int
    max_ns: int

    def __post_init__(self) -> None:
        figures = (self.steps, self.of, self.median_ns, self.max_ns)
        if any(type(figure) is not int or figure < 0 or figure.bit_length() > 63 for figure in figures):
            raise ValueError(f"recurrence is counted in whole numbers from 0 on, not {figures}")
        if self.steps > self.of or self.median_ns > self.max_ns:
            raise ValueError(f"recurrence needs steps <= of and median <= max, not {figures}")


class OneOffs(NamedTuple):
    """Some time, split by whether it comes back.

    Attributes:
        recurring: What comes back from step to step.
        once: What happens in one step, or in a few at the beginning.
    """

    recurring: Intervals
    once: Intervals


def time_by_step(time: Intervals, steps: Steps) -> Int64Array:
    """How much of some time lies in each step, in ns."""
    return iv.overlap(steps.intervals[:, 0], steps.intervals[:, 1], time)


def count_recurrence(time: Intervals, steps: Steps, profiler_factor: float | None = None) -> Recurrence | None:
    """In how many steps some time occurs, and how much of it there without the profiler; None without steps."""
    if not steps.count:
        return None
    by_step_ns = time_by_step(time, steps)
    costs_ns = by_step_ns[by_step_ns > 0]
    median_ns = float(np.median(costs_ns)) if len(costs_ns) else 0.0
    largest_ns = float(costs_ns.max(initial=0))
    factor = profiler_factor or 1
    return Recurrence(len(costs_ns), steps.count, int(median_ns / factor), int(largest_ns / factor))


def median_step_ns(time: Intervals, steps: Steps) -> int:
    """How much of some time the median step has, 0 where most steps have none; without steps all of it."""
    return int(np.median(time_by_step(time, steps))) if steps.count else iv.total(time)


def split_one_offs(time: Intervals, steps: Steps) -> OneOffs:
    """Split intervals into those that come back and those that happen once.

    A step stands out if it has more than twice as much as the usual step: the one in the middle, of two the one that
    has less. Where one or two steps stand out, or steps of the first half of the trace alone, their longest intervals
    happen once: as many as have to go until no more than the usual is left. A trace of one step, or of none, does not
    tell: all of it counts as recurring. Each interval belongs to the step of its start.
    """
    step = steps.at(time[:, 0])
    inside = np.flatnonzero(step >= 0)
    if steps.count < 2 or not len(inside):
        return OneOffs(time, time[:0])
    length_ns = time[:, 1] - time[:, 0]
    by_step_ns = np.bincount(step[inside], weights=length_ns[inside], minlength=steps.count)
    usual_ns = np.sort(by_step_ns)[(steps.count - 1) // 2]
    outliers = np.flatnonzero(by_step_ns > _STANDS_OUT * usual_ns)
    once = np.zeros(len(time), bool)
    for outlier in outliers.tolist() if is_rare(outliers, steps.count) else ():
        rows = np.flatnonzero(step == outlier)
        rows = rows[np.argsort(-length_ns[rows], kind="stable")]
        left_ns = length_ns[rows].sum() - np.cumsum(length_ns[rows])
        once[rows[: int(np.argmax(left_ns <= usual_ns)) + 1]] = True
    return OneOffs(time[~once], time[once])


def is_rare(steps: Int64Array, count: int) -> bool:
    """Whether some of `count` steps are so few, or so early, that what they have in common does not come back.

    `steps` are the numbers of these steps, from 0 on, ascending.
    """
    few = len(steps) < RECURRING_STEPS or steps[-1] < count // 2
    return bool(0 < 2 * len(steps) <= count and few)
