"""Whether what a program holds at the ends of its steps grows over the whole run, and by how much in each step.

Stretches of steps without the profiler are looked at by themselves, since a window leaves memory of its own behind::

    base        windows       after
    . . . .                 / . . . . .     a step of the profiler between two stretches is no growth
    . . . . / / / / / . . . . . . . . .     a cache that fills and stops: quiet
    / / / / / / / / / / / / / / / / / /     growth

The slope is Sen's: the median of the slopes of all pairs of one stretch, with the interval that Kendall's statistic
gives it (Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau", 1968; its variance added up over the
stretches as over the seasons of Hirsch and Slack, 1984). Neither a copy that is freed again nor one step in four that
keeps something moves it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import FloatArray, Int64Array

MIN_GROWTH_BYTES = 32 << 20
"""The least growth over the steps that were seen: the heap of a program that keeps nothing moves by a few MB."""
_MIN_STEPS, _MIN_OF_STRETCH = 8, 3
# Of a stretch so many levels, each the median of as many steps: 2,016 pairs.
_MAX_LEVELS = 64
# Of a normal distribution 95 % lie within so many standard deviations.
_DEVIATIONS = 1.96
# What still grows at the end does so at half of the rate at least: caches fill up, and heaps grow ever more slowly.
_MIN_LATE_SHARE = 0.5


class GrowthOfRun(NamedTuple):
    """How memory develops over the steps of a run.

    Attributes:
        step_bytes: Growth in a step.
        low_bytes, high_bytes: The interval of 95 % of that.
        seen_steps: From the first to the last step that was seen.
        grows: Whether it is growth: certain, of some size, and still going on at the end.
    """

    step_bytes: float
    low_bytes: float
    high_bytes: float
    seen_steps: int
    grows: bool


def find_memory_growth(number: Int64Array, held_bytes: Int64Array) -> GrowthOfRun | None:
    """How the bytes kept at the ends of steps develop; None where too few steps were seen to tell.

    `number`: that of each step, rising; where it jumps, steps with the profiler lie in between. `held_bytes`: -1 where
    nobody looked.
    """
    stretch, is_known = np.cumsum(np.diff(number, prepend=number[:1]) > 1), held_bytes >= 0
    number, held_bytes, stretch = number[is_known], held_bytes[is_known], stretch[is_known]
    cuts = np.flatnonzero(np.diff(stretch)) + 1
    stretches = [
        _level_out(at, kept)
        for at, kept in zip(np.split(number, cuts), np.split(held_bytes, cuts), strict=True)
        if len(at) >= _MIN_OF_STRETCH
    ]
    if len(number) < _MIN_STEPS or not stretches:
        return None
    slope, low, high = _fit_slope(stretches)
    seen_steps = int(number[-1] - number[0])
    rise = float(stretches[-1][1][-1] - stretches[0][1][0])
    goes_on = rise >= _MIN_LATE_SHARE * slope * seen_steps and _goes_on(stretches[-1], slope)
    return GrowthOfRun(slope, low, high, seen_steps, low * seen_steps >= MIN_GROWTH_BYTES and goes_on)


def _level_out(number: Int64Array, held_bytes: Int64Array) -> tuple[FloatArray, FloatArray]:
    """The levels of a stretch, and the steps that each stands for."""
    count = min(len(number), _MAX_LEVELS)
    parts = zip(np.array_split(number, count), np.array_split(held_bytes, count), strict=True)
    levels = [(at.mean(), np.median(kept)) for at, kept in parts]
    at, level = np.array(levels, np.float64).T
    return at, level


def _fit_slope(stretches: list[tuple[FloatArray, FloatArray]]) -> tuple[float, float, float]:
    """The slope of all stretches together, and its interval."""
    slopes, variance = [], 0.0
    for at, level in stretches:
        slopes.append(_slopes(at, level))
        variance += len(at) * (len(at) - 1) * (2 * len(at) + 5) / 18
    ordered = np.sort(np.concatenate(slopes))
    margin = _DEVIATIONS * math.sqrt(variance) / 2
    last = len(ordered) - 1
    low, high = (round(min(max(last / 2 + each, 0), last)) for each in (-margin, margin))
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])


def _goes_on(stretch: tuple[FloatArray, FloatArray], slope: float) -> bool:
    """Whether the last third of a stretch rises as fast as all steps and as its first third, or half of that at least.

    Of a short stretch all of it counts, since what is kept in every fourth step leaves a few steps level. True where it
    is too short to tell.
    """
    at, level = stretch
    if len(at) < _MIN_STEPS:
        return True
    part = len(at) // 3 if len(at) >= 3 * _MIN_STEPS else len(at)
    late = np.median(_slopes(at[-part:], level[-part:]))
    return bool(late >= _MIN_LATE_SHARE * max(slope, np.median(_slopes(at[:part], level[:part]))))


def _slopes(at: FloatArray, level: FloatArray) -> FloatArray:
    """The slope of each pair of levels."""
    first, second = np.triu_indices(len(at), 1)
    slopes: FloatArray = (level[second] - level[first]) / (at[second] - at[first])
    return slopes
