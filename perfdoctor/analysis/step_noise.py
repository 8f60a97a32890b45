"""Whether a step became longer or shorter beyond the noise: robust intervals for differences of step times.

Three ways, by what there is. All give an interval in which the difference lies with a confidence of 95 %, or as near to
that as the number of steps allows:

- One recording a side: the interval of Moses for the Hodges-Lehmann shift, from the ranks of the steps (Hollander,
  Wolfe, Chicken, Nonparametric Statistical Methods, 3rd ed., 4.2 and 4.3). A few slow steps do not move it. Steps that
  resemble their neighbours say less: it is widened by the effective sample size of an AR(1) series,
  n (1 - r) / (1 + r) (Wilks, Resampling hypothesis tests for autocorrelated fields, 1997). Two recordings of one
  unchanged program differ although the steps of each hardly do (layout of memory, clocks, placement of processes;
  Mytkowicz and others, Producing wrong data without doing anything obviously wrong, 2009), which one recording cannot
  show: `BETWEEN_RECORDINGS` of the step is added on both sides.
- Several recordings: Student's t on the medians of the recordings, with one relative variation for both sides, so that
  what differs between recordings is measured and not assumed (Kalibera and Jones, Rigorous benchmarking in reasonable
  time, 2013: repeat at the highest level that varies).
- A report without its steps: the normal interval of two medians, from their number and variation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import FloatArray
from perfdoctor.value_limits import Share, Signed

Verdict: TypeAlias = Literal["faster", "slower", "same", "unknown"]

CONFIDENCE = 0.95
# Fewer steps on a side cannot be judged: three a side give a confidence of 0.9.
_MIN_STEPS = 3
BETWEEN_RECORDINGS = 0.02
"""By how much of a step two recordings of one program may differ: assumed where each side has only one recording."""
# Of more steps an even sample is taken: the pairs of 400 and 400 are sorted in 10 ms.
_MAX_STEPS = 400
# Up to this number of pairs the distribution of the ranks is exact.
_MAX_EXACT_PAIRS = 400
_MIN_STEPS_FOR_AUTOCORRELATION = 8
_MAX_AUTOCORRELATION = 0.9
_NORMAL_975 = 1.959964
# How much more a median varies than a mean, for normal samples: sqrt(pi / 2).
_MEDIAN_FACTOR = 1.2533
# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; the normal one from 31 on is 2 % too small at most.
_STUDENT_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@frozen_dataclass
class StepSample:
    """The steps of one recording.

    Attributes:
        step_ns: The length of each step; empty where only what follows is known.
        median_ns: Their median; None where there are no steps.
        count: Their number.
        variation: Standard deviation over mean; None where not known.
    """

    step_ns: tuple[float, ...]
    median_ns: float | None
    count: int
    variation: float | None = None


@frozen_dataclass
class Interval:
    """Where a difference lies, in ns, with a confidence from 0 to 1."""

    low_ns: float
    high_ns: float
    confidence: float


@frozen_dataclass
class StepDifference:
    """The median step before and after; all times in ns, None where not known.

    Attributes:
        before_ns, after_ns: The median step of each side; of several recordings the median of their medians.
        difference_ns: After less before.
        low_ns, high_ns: Between these the difference lies, with the noise.
        confidence: How sure that is, from 0 to 1.
        visible_ns: The smallest difference that would have been beyond the noise.
        verdict: "faster" or "slower" beyond the noise, "same" within it, "unknown" where there is no interval.
        basis: How the interval is known, in words.
    """

    before_ns: int | None
    after_ns: int | None
    difference_ns: Signed | None = None
    low_ns: Signed | None = None
    high_ns: Signed | None = None
    confidence: Share | None = None
    visible_ns: int | None = None
    verdict: Verdict = "unknown"
    basis: str = ""

    @property
    def relative(self) -> float | None:
        """The difference as a share of the step before; negative where it became faster."""
        return None if self.difference_ns is None or not self.before_ns else self.difference_ns / self.before_ns


def compare_steps(before: Sequence[StepSample], after: Sequence[StepSample]) -> StepDifference:
    """The median step of two sides, each of one or more recordings, and whether they differ beyond the noise."""
    before_ns, after_ns = _median_of_medians(before), _median_of_medians(after)
    if before_ns is None or after_ns is None:
        return StepDifference(_whole(before_ns), _whole(after_ns), basis="not every recording has steps")
    difference_ns = after_ns - before_ns
    interval, basis = _find_interval(before, after, before_ns, difference_ns)
    if interval is None:
        return StepDifference(round(before_ns), round(after_ns), round(after_ns) - round(before_ns), basis=basis)
    # The interval of the shift hardly ever leaves the difference of the medians out; then it is widened to it.
    low_ns, high_ns = min(interval.low_ns, difference_ns), max(interval.high_ns, difference_ns)
    return StepDifference(
        before_ns=round(before_ns),
        after_ns=round(after_ns),
        difference_ns=round(after_ns) - round(before_ns),
        low_ns=round(low_ns),
        high_ns=round(high_ns),
        confidence=round(interval.confidence, 3),
        visible_ns=round((high_ns - low_ns) / 2),
        verdict="slower" if low_ns > 0 else "faster" if high_ns < 0 else "same",
        basis=basis,
    )


def _whole(ns: float | None) -> int | None:
    return None if ns is None else round(ns)


def _median_of_medians(side: Sequence[StepSample]) -> float | None:
    medians = [sample.median_ns for sample in side]
    return None if not medians or None in medians else float(np.median([ns for ns in medians if ns is not None]))


def _find_interval(
    before: Sequence[StepSample], after: Sequence[StepSample], before_ns: float, difference_ns: float
) -> tuple[Interval | None, str]:
    """The interval of the difference and how it is known; None with the reason where there is none."""
    if len(before) + len(after) > 2:
        return _compare_recordings(before, after, before_ns, difference_ns)
    one, other = before[0], after[0]
    margin_ns = BETWEEN_RECORDINGS * before_ns
    added = f"and {BETWEEN_RECORDINGS:.0%} for what differs between two recordings of one program"
    if not one.step_ns or not other.step_ns:
        return _compare_summaries(one, other, margin_ns, difference_ns, added)
    interval = rank_interval(one.step_ns, other.step_ns)
    counts = f"{len(one.step_ns)} and {len(other.step_ns)} steps"
    if interval is None or not is_judgeable(one.step_ns, other.step_ns):
        advice = "record more (perfdoctor run --base 20), or several recordings a side"
        return None, f"{counts} are too few to know the noise: {advice}"
    widened = Interval(interval.low_ns - margin_ns, interval.high_ns + margin_ns, interval.confidence)
    return widened, f"ranks of {counts}, {added}"


def _compare_summaries(
    one: StepSample, other: StepSample, margin_ns: float, difference_ns: float, added: str
) -> tuple[Interval | None, str]:
    if one.variation is None or other.variation is None or min(one.count, other.count) < 3:
        return None, "the steps are not in the report: give the trace or the capture folder instead"
    variance = sum(
        (_MEDIAN_FACTOR * sample.variation * sample.median_ns) ** 2 / sample.count
        for sample in (one, other)
        if sample.variation is not None and sample.median_ns is not None
    )
    half_ns = _NORMAL_975 * math.sqrt(variance) + margin_ns
    basis = f"number and variation of {one.count} and {other.count} steps, {added}"
    return Interval(difference_ns - half_ns, difference_ns + half_ns, CONFIDENCE), basis


def _compare_recordings(
    before: Sequence[StepSample], after: Sequence[StepSample], before_ns: float, difference_ns: float
) -> tuple[Interval | None, str]:
    """By the medians of recordings: one relative variation for both sides, as both are of one machine."""
    squares, freedom = 0.0, 0
    for side in (before, after):
        logs = [math.log(max(sample.median_ns or 1.0, 1.0)) for sample in side]
        squares += float(np.sum((np.array(logs) - np.mean(logs)) ** 2))
        freedom += len(logs) - 1
    spread = math.sqrt(squares / freedom)
    quantile = _STUDENT_975[freedom - 1] if freedom <= len(_STUDENT_975) else _NORMAL_975 * 1.02
    half_ns = quantile * spread * before_ns * math.sqrt(1 / len(before) + 1 / len(after))
    basis = f"{len(before)} and {len(after)} recordings, whose medians vary by {spread:.1%}"
    return Interval(difference_ns - half_ns, difference_ns + half_ns, CONFIDENCE), basis


def is_judgeable(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether both sides have enough values for an interval that says something."""
    return min(len(before), len(after)) >= _MIN_STEPS


def rank_interval(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """In which interval `after` is larger than `before`, by ranks; None where a side has no values.

    With a confidence of 95 %, or of what so few values can give.
    """
    one, other = _thin_out(np.asarray(before, np.float64)), _thin_out(np.asarray(after, np.float64))
    if not len(one) or not len(other):
        return None
    differences = np.sort((other[:, None] - one[None, :]).ravel())
    rank, confidence = _rank_of_interval(len(one), len(other))
    low, high = float(differences[rank - 1]), float(differences[len(differences) - rank])
    widening = max(_widening(one), _widening(other))
    middle = float(np.median(differences))
    return Interval(middle - widening * (middle - low), middle + widening * (high - middle), confidence)


def _thin_out(values: FloatArray) -> FloatArray:
    if len(values) <= _MAX_STEPS:
        return values
    thinned: FloatArray = values[np.linspace(0, len(values) - 1, _MAX_STEPS).astype(np.int64)]
    return thinned


def _widening(values: FloatArray) -> float:
    """By how much steps that resemble their neighbours widen an interval: by the ranks' correlation at lag 1."""
    if len(values) < _MIN_STEPS_FOR_AUTOCORRELATION:
        return 1.0
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") - (len(values) - 1) / 2
    correlation = float((ranks[1:] * ranks[:-1]).sum() / max(float((ranks**2).sum()), 1e-9))
    correlation = min(max(correlation, 0.0), _MAX_AUTOCORRELATION)
    return math.sqrt((1 + correlation) / (1 - correlation))


@lru_cache(maxsize=256)
def _rank_of_interval(count: int, others: int) -> tuple[int, float]:
    """Which of the sorted pairwise differences bounds the interval, counted from 1, and the confidence that it gives.

    By the distribution of the Mann-Whitney statistic: exact for few values, else its normal approximation.
    """
    pairs = count * others
    if pairs > _MAX_EXACT_PAIRS:
        rank = pairs / 2 - _NORMAL_975 * math.sqrt(pairs * (count + others + 1) / 12)
        return max(round(rank), 1), CONFIDENCE
    below, rank = np.cumsum(_mann_whitney_counts(count, others)) / math.comb(count + others, count), 1
    while 2 * below[rank] <= 1 - CONFIDENCE + 1e-12:
        rank += 1
    return rank, float(1 - 2 * below[rank - 1])


def _mann_whitney_counts(count: int, others: int) -> FloatArray:
    """In how many orders of `count` and `others` values the statistic is 0, 1, ...: a Gaussian binomial coefficient."""
    counts = np.zeros(count * others + 1)
    counts[0] = 1
    for size in range(1, count + 1):
        # Times (1 - q^(others + size)), over (1 - q^size).
        shift = others + size
        if shift < len(counts):
            counts[shift:] -= counts[:-shift].copy()
        for position in range(size, len(counts)):
            counts[position] += counts[position - size]
    return counts
