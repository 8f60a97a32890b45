"""The statistics of trials: intervals that cover what they say, verdicts that noise alone does not give."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trials.trial_statistics import (
    COVERAGE,
    MIN_NOISE,
    count_left_out,
    estimate_ratio,
    judge_ratios,
    measure_noise,
)

RATIOS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12)
NOISE = st.floats(MIN_NOISE, 0.5)
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", None: None}


def miss_probability(count: int, left_out: int) -> float:
    return 2 * sum(math.comb(count, heads) for heads in range(left_out + 1)) / 2**count


@pytest.mark.parametrize("count", range(1, 40))
def test_the_interval_leaves_out_as_much_as_its_coverage_allows_and_no_more(count):
    left_out = count_left_out(count)
    if left_out:
        assert miss_probability(count, left_out) <= 1 - COVERAGE
    assert miss_probability(count, left_out + 1) > 1 - COVERAGE
    assert 2 * left_out < count


def test_the_interval_covers_the_median_as_often_as_it_says():
    source = random.Random(1)
    for count in (3, 6, 9):
        hits = 0
        for _ in range(2000):
            # A skewed distribution, median 1: the sign test asks for no shape.
            estimate = estimate_ratio([math.exp(source.expovariate(1) - math.log(2)) for _ in range(count)])
            hits += estimate.low <= 1 <= estimate.high
        expected = 1 - miss_probability(count, count_left_out(count))
        assert expected >= COVERAGE
        assert abs(hits / 2000 - expected) < 0.04


@given(RATIOS)
def test_the_median_lies_in_its_interval_and_the_order_of_pairs_does_not_matter(ratios):
    estimate = estimate_ratio(ratios)
    assert min(ratios) <= estimate.low <= estimate.median <= estimate.high <= max(ratios)
    assert estimate == estimate_ratio(sorted(ratios, reverse=True))
    assert estimate.pairs == len(ratios)


@given(RATIOS, NOISE)
def test_to_swap_plain_and_changed_swaps_the_verdict(ratios, noise):
    verdict = judge_ratios(ratios, noise, 12)
    # Halves of an even sample: the median of inverses is not the inverse median, so only decided ones are compared.
    swapped = judge_ratios([1 / ratio for ratio in ratios], noise, 12)
    if {verdict, swapped} & {"faster", "slower"}:
        assert swapped == OPPOSITE[verdict]


@given(RATIOS, NOISE, st.floats(0.001, 0.5))
def test_more_noise_never_makes_a_change_faster_or_slower(ratios, noise, more):
    noisier = judge_ratios(ratios, noise + more, len(ratios), final=True)
    assert noisier in ("same", judge_ratios(ratios, noise, len(ratios), final=True))


@given(RATIOS, NOISE)
def test_the_last_pair_decides(ratios, noise):
    assert judge_ratios(ratios, noise, len(ratios)) is not None
    assert judge_ratios(ratios, noise, 12, final=True) is not None


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.5], None),  # a single run may be anything
        ([0.95, 0.96], None),  # beyond the noise, and not clearly
        ([0.95, 0.96, 0.95], "faster"),
        ([0.5, 0.6], "faster"),
        ([2.0, 1.9], "slower"),
        ([1.05, 1.04, 1.06], "slower"),
        ([1.0, 1.01, 0.99], "same"),
        ([0.9, 1.0, 0.8], None),  # one pair says nothing happened, two say much: more pairs
        ([0.9, 1.5, 0.9, 0.91, 0.9, 0.92], "faster"),  # one run was disturbed
        ([0.9, 1.5, 0.9, 1.4, 0.9, 0.92], None),  # two were
    ],
)
def test_verdicts_with_two_percent_of_noise(ratios, verdict):
    assert judge_ratios(ratios, 0.02, 8) == verdict


def test_a_user_who_wants_one_pair_gets_a_verdict_of_one():
    assert judge_ratios([0.5], 0.02, 1) == "faster"
    assert judge_ratios([0.97], 0.02, 1) == "same"


def test_no_pairs_decide_nothing():
    assert judge_ratios([], 0.02, 3, final=True) is None


def test_the_noise_is_that_of_neighbours_and_not_of_a_drift():
    drifting = [100.0 * 1.02**number for number in range(20)]
    assert measure_noise(drifting) == pytest.approx(1.02**2 - 1, rel=1e-6)
    assert max(drifting) / min(drifting) > 1.4


@pytest.mark.parametrize("steps", [[], [100.0], [100.0, 100.0, 100.0]])
def test_the_noise_is_never_nothing(steps):
    assert measure_noise(steps) == MIN_NOISE


def test_one_disturbed_plain_run_does_not_set_the_noise():
    assert measure_noise([100, 101, 100, 101, 300, 101, 100, 101]) < 0.05


def test_noise_alone_is_hardly_ever_called_faster_or_slower():
    source = random.Random(7)
    wrong = 0
    for _ in range(500):
        plain = [math.exp(source.gauss(0, 0.03)) for _ in range(2)]
        ratios: list[float] = []
        verdict = None
        while verdict is None:
            plain.append(math.exp(source.gauss(0, 0.03)))
            ratios.append(math.exp(source.gauss(0, 0.03)) / plain[-1])
            verdict = judge_ratios(ratios, measure_noise(plain), 6)
        wrong += verdict != "same"
    assert wrong / 500 < 0.06


def test_an_effect_of_three_times_the_noise_is_nearly_always_found():
    source = random.Random(8)
    found = 0
    for _ in range(300):
        plain = [math.exp(source.gauss(0, 0.02)) for _ in range(2)]
        ratios: list[float] = []
        verdict = None
        while verdict is None:
            plain.append(math.exp(source.gauss(0, 0.02)))
            ratios.append(0.85 * math.exp(source.gauss(0, 0.02)) / plain[-1])
            verdict = judge_ratios(ratios, measure_noise(plain), 6)
        found += verdict == "faster"
        assert statistics.median(ratios) < 0.95
    assert found / 300 > 0.9
