"""The statistics of trials: pairs of neighbouring runs, an interval of their median, the noise, and the verdict.

Runs of a program differ by what else the machine does, by its clock and its caches, and this drifts. So a changed
run is compared with the plain run next to it and never with the average of all (pairing, as in Kalibera and Jones,
"Rigorous benchmarking in reasonable time", ISMM 2013). A pair gives the ratio of the two steps. Of the ratios the
median is taken, with the interval between two of its order statistics: its coverage holds whatever the distribution is
(the sign test; David and Nagaraja, "Order Statistics", 3rd edition, section 7.1).

A verdict needs power. A change is faster or slower where that interval lies beyond the noise of plain runs, or where
the signed ranks of six pairs or more leave no doubt (Wilcoxon, "Individual comparisons by ranking methods", 1945): a
loud machine needs more pairs, not a larger effect. It is the same where the interval lies within some percent of 1. All
else is undecided, and the spread of the pairs says how many more would do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from perfdoctor.report.trial_result import SAME_WITHIN, RatioRange, Verdict

# The interval of the median holds the true one at least this often. With up to five pairs it is the whole range.
COVERAGE = 0.75
# Shorter differences are never called faster or slower: address layout and clocks shift a program by that much from
# start to start (Mytkowicz and others, "Producing wrong data without doing anything obviously wrong!", ASPLOS 2009).
MIN_NOISE = 0.01
# Twice the median of normal deviations lies at 1.35 standard deviations: 1 pair in 11 passes it on one side by chance,
# and three pairs all do in 1 of 1,400 trials.
NOISE_FACTOR = 2.0
# Two pairs, or one, must pass a multiple of the noise: it was measured on few pairs, too.
FEW_PAIRS = 3
FEW_PAIRS_FACTOR = 3.0
# With six pairs on one side, chance gives such signed ranks in 1 of 32 trials; with fewer it never gets that rare.
RANKED_PAIRS = 6
MAX_CHANCE = 0.05
# Four pairs that lie within a range by chance, though their median lies outside of it, are 1 of 16; two are 1 of 4.
SAME_PAIRS = 4


def estimate_ratio(ratios: Sequence[float]) -> RatioRange:
    """The median of some ratios and the interval between two order statistics that covers it.

    Args:
        ratios: At least one, each above 0.
    """
    ordered = sorted(ratios)
    left_out = count_left_out(len(ordered))
    return RatioRange(statistics.median(ordered), ordered[left_out], ordered[-1 - left_out], len(ordered))


def count_left_out(count: int, coverage: float = COVERAGE) -> int:
    """How many values at each end of an ordered sample lie outside of the interval of its median.

    The interval from the k-th lowest to the k-th highest of n values misses the median with the probability that
    fewer than k of n coins show heads, or fewer than k show tails.

    Args:
        count: Size of the sample.
        coverage: How probable it is at least that the interval holds the median; too small a sample gives its whole
            range, with less.
    """
    left_out = 0
    while _miss_probability(count, left_out + 1) <= 1 - coverage:
        left_out += 1
    return left_out


def _miss_probability(count: int, left_out: int) -> float:
    """How probable it is that the median lies outside of the interval that leaves so many values out at each end."""
    return 2 * sum(math.comb(count, heads) for heads in range(left_out + 1)) / 2.0**count


def measure_noise(plain_steps_ns: Sequence[float]) -> float:
    """The noise floor: how far plain runs that follow one another differ, as a share of the step.

    Args:
        plain_steps_ns: The step of each plain run, in the order of the runs.

    Returns:
        `NOISE_FACTOR` times the median difference of neighbours, at least `MIN_NOISE`.
    """
    apart = [abs(math.log(after / before)) for before, after in pairwise(plain_steps_ns)]
    return max(math.expm1(NOISE_FACTOR * statistics.median(apart)), MIN_NOISE) if apart else MIN_NOISE


def judge_ratios(ratios: Sequence[float], noise: float, max_pairs: int, *, final: bool = False) -> Verdict | None:
    """Whether a change makes the step shorter, and whether that is decided.

    Args:
        ratios: The ratios of the pairs so far.
        noise: What `measure_noise` returned.
        max_pairs: After so many pairs, what is not decided is "undecided".
        final: No more pairs will come.

    Returns:
        "faster" or "slower" where the interval lies beyond the noise, or where the ranks of the pairs leave no doubt;
        "same" where nearly all pairs lie within `SAME_WITHIN` of 1; None where more pairs are needed, and "undecided"
        where none will come.
    """
    if not ratios or (len(ratios) < min(2, max_pairs) and not final):
        return None
    estimate, few = estimate_ratio(ratios), len(ratios) < FEW_PAIRS
    is_ranked = len(ratios) >= RANKED_PAIRS and chance_of_ranks(ratios) <= MAX_CHANCE
    limit = 1 + MIN_NOISE if is_ranked else (1 + noise) ** (FEW_PAIRS_FACTOR if few else 1.0)
    if estimate.high < 1 / limit:
        return "faster"
    if estimate.low > limit:
        return "slower"
    is_last = final or len(ratios) >= max_pairs
    if same_within(ratios) <= SAME_WITHIN and len(ratios) >= min(SAME_PAIRS, max_pairs):
        return "same"
    return "undecided" if is_last else None


def chance_of_ranks(ratios: Sequence[float]) -> float:
    """How probable it is that pairs without any effect lie as much on one side of 1 as these do, or more.

    By the signed ranks of the logarithms, exactly (two-sided); pairs of ratio 1 count for neither side.
    """
    apart = sorted((math.log(ratio) for ratio in ratios if ratio != 1), key=abs)
    below = sum(rank for rank, each in enumerate(apart, 1) if each < 0)
    smaller = min(below, len(apart) * (len(apart) + 1) // 2 - below)
    counts = [1]  # of sets of ranks, by their sum
    for rank in range(1, len(apart) + 1):
        counts = [
            (counts[total] if total < len(counts) else 0) + (counts[total - rank] if total >= rank else 0)
            for total in range(len(counts) + rank)
        ]
    return min(2 * sum(counts[: smaller + 1]) / 2.0 ** len(apart), 1.0)


def same_within(ratios: Sequence[float]) -> float:
    """How far from 1 the step with a change can be, as a share: by an interval that misses in 1 of 20 trials at most.

    Of up to five pairs it is the farthest one.
    """
    ordered = sorted(ratios)
    left_out = count_left_out(len(ordered), 1 - MAX_CHANCE)
    return max(ordered[-1 - left_out] - 1, 1 / ordered[left_out] - 1, 0.0)


def count_missing_pairs(ratios: Sequence[float]) -> int:
    """About how many more pairs would decide what these leave open: at least 1.

    The interval of the median shrinks with the root of the number of pairs, until it lies beyond the smallest effect
    that counts, or within that which is the same.
    """
    logs = [math.log(ratio) for ratio in ratios]
    middle, count = abs(statistics.median(logs)), len(logs)
    half_width = (max(logs) - min(logs)) / 2 if count > 1 else abs(logs[0])
    room = max(middle - math.log1p(MIN_NOISE), math.log1p(SAME_WITHIN) - middle)
    return max(math.ceil(count * (half_width / room) ** 2), RANKED_PAIRS, count + 1) - count
