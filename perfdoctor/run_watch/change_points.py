r"""Whether a series of step times drifts: it rises for good, at once or slowly, by more than what repeats in it.

The steps are cut into up to 64 blocks in their order, and each block has one level: its mean without the shortest and
the longest fifth (Tukey and McLaughlin, 1963), which neither a rare evaluation nor a heavy tail moves, and which does
not jump where steps of two shapes alternate, as a median does. Epochs, evaluations and a neighbour that is busy for a
minute come back to the level of before; a drift does not::

    epochs       /| /| /| /|      nearly every level after any block was seen before it: quiet
    warm-up      \_________       lower over time: quiet
    a minute     ____/\____       fewer than a tenth of the levels: quiet
    drift        ____/-----       nine tenths of the levels after are above nine tenths of those before

So a block divides the run where the 10 % quantile of the levels after it lies above the 90 % quantile of those before
it: an order of ranks, as in Mann and Whitney's test, whose two sides may overlap by a tenth. Among these blocks the one
that leaves the smallest absolute deviations from a median on each side is the change (Bai, Least absolute deviation
estimation of a shift, 1995). Of 3,000 runs with log-normal steps around one level (sigma 0.2) one in 3,000 has a change
where it has 240 steps, none where it has 640. Sorting the steps of the blocks takes longest: O(n log n).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from perfdoctor.trace.arrays import BoolArray, FloatArray, Int64Array

MIN_STEPS = 240
"""Fewer steps do not make 24 blocks of ten: of 100 steps noise alone looks like a drift in one of 40 runs."""
_MAX_BLOCKS = 64
_BLOCK_STEPS = 10
# Each side of a change has this share of the blocks, and never fewer than so many.
_MIN_SIDE_SHARE = 1 / 8
_MIN_SIDE_BLOCKS = 4
# Levels of each side that may lie among those of the other one.
_OVERLAP = 0.1
# Cut off at both ends of a block.
_TRIMMED = 0.2
# A program warms up in its first blocks; more than a third is no warm-up.
_MAX_WARM_SHARE = 1 / 3
# The rise, in standard deviations of a level around its side: those of independent levels lie within 3.
_MIN_NOISE_FACTOR = 3.0
# From median absolute deviations to standard deviations, for normal values.
_MAD_TO_DEVIATION = 1.4826


class Drift(NamedTuple):
    """A rise for good.

    Attributes:
        began: The row of the first value that belongs to it.
        kind: "jump" where it rises at once, "ramp" where it goes on rising.
        before: The level before it, in the unit of the values.
        after: The level at the end.
        noise: Standard deviation of a level around the rise.
    """

    began: int
    kind: Literal["jump", "ramp"]
    before: float
    after: float
    noise: float

    @property
    def rise(self) -> float:
        """By how much it rises, in the unit of the values."""
        return self.after - self.before


def find_drift(values: FloatArray | Int64Array) -> Drift | None:
    """The rise of a series of values, such as durations; None where it does not rise by more than its noise.

    The values are in the order of the steps. What occurs in a few steps only has to be spread over those before it.
    """
    if len(values) < MIN_STEPS:
        return None
    starts, levels = _find_levels(values)
    warm = _count_warm_blocks(levels)
    levels = levels[warm:]
    change = _find_change(levels)
    if change is None:
        return None
    jump = _fit_jump(levels, change)
    ramp, hinge = _fit_ramp(levels, change)
    is_ramp = float(np.abs(levels - ramp).sum()) < float(np.abs(levels - jump).sum())
    began = hinge if is_ramp else change
    noise = _MAD_TO_DEVIATION * float(np.median(np.abs(levels - (ramp if is_ramp else jump))))
    before, after = (float(ramp[0]), float(ramp[-1])) if is_ramp else (float(jump[0]), float(jump[-1]))
    if after - before <= _MIN_NOISE_FACTOR * noise:
        return None
    first = int(starts[warm + began])
    if not is_ramp:
        first = _refine(values, first, int(starts[1]), (before + after) / 2)
    return Drift(first, "ramp" if is_ramp else "jump", before, after, noise)


def levels_by_step(values: FloatArray | Int64Array) -> FloatArray:
    """The level around each value, between the levels of blocks by straight lines; there are `MIN_STEPS` values."""
    starts, levels = _find_levels(values)
    result: FloatArray = np.interp(np.arange(len(values)), (starts[:-1] + starts[1:]) / 2, levels)
    return result


def _find_levels(values: FloatArray | Int64Array) -> tuple[Int64Array, FloatArray]:
    """Where the blocks begin, with the end of the last one, and their levels."""
    count = min(len(values) // _BLOCK_STEPS, _MAX_BLOCKS)
    starts = np.arange(count + 1) * len(values) // count
    blocks = [values[first:end] for first, end in pairwise(starts.tolist())]
    return starts, np.array([_trimmed_mean(block) for block in blocks])


def _trimmed_mean(block: FloatArray | Int64Array) -> float:
    cut = int(_TRIMMED * len(block))
    return float(np.sort(block)[cut : len(block) - cut].mean())


def _count_warm_blocks(levels: FloatArray) -> int:
    """How many of the first blocks are above the median of all: a program that warms up."""
    is_warm: BoolArray = levels[: int(_MAX_WARM_SHARE * len(levels))] > np.median(levels)
    return int(np.argmin(is_warm)) if len(is_warm) and not is_warm.all() else 0


def _find_change(levels: FloatArray) -> int | None:
    """The first block after the change; None where no block divides low levels from high ones."""
    side, errors = max(round(_MIN_SIDE_SHARE * len(levels)), _MIN_SIDE_BLOCKS), dict[int, float]()
    for at in range(side, len(levels) - side + 1):
        if np.quantile(levels[at:], _OVERLAP) > np.quantile(levels[:at], 1 - _OVERLAP):
            errors[at] = float(np.abs(levels - _fit_jump(levels, at)).sum())
    return min(errors, key=errors.__getitem__, default=None)


def _fit_jump(levels: FloatArray, change: int) -> FloatArray:
    """For each block the median of its side."""
    medians = [np.median(levels[:change]), np.median(levels[change:])]
    return np.repeat(medians, [change, len(levels) - change])


def _fit_ramp(levels: FloatArray, change: int) -> tuple[FloatArray, int]:
    """The best line that is level and rises from some block up to `change` on, and that block; by least squares."""
    at = np.arange(len(levels), dtype=np.float64)
    best: tuple[float, FloatArray, int] | None = None
    for hinge in range(change + 1):
        rising = np.maximum(at - hinge, 0)
        centred = rising - rising.mean()
        slope = float(centred @ levels) / max(float(centred @ centred), 1e-12)
        fit = levels.mean() + slope * centred
        error = float(np.square(levels - fit).sum())
        if best is None or error < best[0]:
            best = error, fit, hinge
    assert best is not None
    return best[1], best[2]


def _refine(values: FloatArray | Int64Array, first: int, around: int, middle: float) -> int:
    """The row within a block's length of `first` that divides values below `middle` from those above it best."""
    start, end = max(first - around, 0), min(first + around, len(values))
    near = values[start:end]
    excess = np.clip(near, *np.quantile(near, (0.1, 0.9))) - middle
    return start + int(np.argmin(np.concatenate(([0], np.cumsum(excess)))))
