"""The statistics of trials: intervals that cover what they say, verdicts that noise alone does not give."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.report.trial_result import SAME_WITHIN
from perfdoctor.trials.trial_statistics import (
    COVERAGE,
    MIN_NOISE,
    chance_of_ranks,
    count_left_out,
    count_missing_pairs,
    estimate_ratio,
    judge_ratios,
    measure_noise,
    same_within,
)

RATIOS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12)
NOISE = st.floats(MIN_NOISE, 0.5)
OPPOSITE = {"faster": "slower", "slower": "faster"}


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
    assert noisier in ("same", "undecided", judge_ratios(ratios, noise, len(ratios), final=True))


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
        ([1.0, 1.01, 0.99], None),  # three of four by chance alone
        ([1.0, 1.01, 0.99, 1.02], "same"),
        ([1.0, 1.01, 0.99, 1.07], None),  # it may be 7 % slower
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
    assert judge_ratios([0.9], 0.05, 1) == "undecided"


def test_six_pairs_that_are_all_faster_are_faster_however_loud_the_machine_is():
    """0.60 to 0.91 was called the same, because plain runs differed by as much."""
    assert judge_ratios([0.60, 0.91, 0.77, 0.68, 0.85, 0.78], 0.35, 6) == "faster"
    assert judge_ratios([0.60, 0.91, 0.77, 0.68, 0.85], 0.35, 5) == "undecided"
    assert judge_ratios([0.60, 0.91, 0.77, 0.68, 0.85, 1.10], 0.35, 6) == "undecided"


@given(RATIOS, NOISE)
def test_what_is_called_the_same_lies_within_what_is_said(ratios, noise):
    if judge_ratios(ratios, noise, len(ratios), final=True) == "same":
        assert same_within(ratios) <= SAME_WITHIN
        inside = [1 / (1 + same_within(ratios)) - 1e-9 <= ratio <= 1 + same_within(ratios) + 1e-9 for ratio in ratios]
        assert sum(inside) >= len(ratios) - 2 * count_left_out(len(ratios), 0.95)


@pytest.mark.parametrize(
    ("ratios", "chance"),
    # From the tables of the signed rank test: 2 * P(W <= w) for n = 6 and w = 0, 1, 2, and n = 8, w = 3.
    [
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], 2 / 64),
        ([1.05, 0.8, 0.7, 0.6, 0.5, 0.4], 4 / 64),
        ([0.95, 1.2, 0.7, 0.6, 0.5, 0.4], 6 / 64),
        ([0.95, 0.8, 1.5, 0.6, 0.5, 0.4, 0.3, 0.2], 10 / 256),
        ([1.0, 1.0], 1.0),
    ],
)
def test_the_chance_of_ranks_is_that_of_the_tables(ratios, chance):
    assert chance_of_ranks(ratios) == pytest.approx(chance)
    assert chance_of_ranks([1 / ratio for ratio in ratios]) == pytest.approx(chance)


@given(RATIOS)
def test_more_pairs_are_missing_where_they_spread_more(ratios):
    assert count_missing_pairs(ratios) >= max(6 - len(ratios), 1)
    middle = statistics.median(ratios)
    spread = [middle * (ratio / middle) ** 2 for ratio in ratios]
    if len(ratios) % 2:
        assert count_missing_pairs(spread) >= count_missing_pairs(ratios)


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


def verdicts_of(effect: float, noise: float, seed: int, count: int = 400, bursts: float = 0.0) -> Counter[str]:
    """Verdicts of simulated trials, each of up to six pairs, of a change of which the truth is known."""
    source = random.Random(seed)

    def run() -> float:
        disturbed = 1 + source.expovariate(2) if source.random() < bursts else 1.0
        return math.exp(source.gauss(0, noise)) * disturbed

    verdicts: Counter[str] = Counter()
    for _ in range(count):
        plain, ratios, verdict = [run(), run()], list[float](), None
        while verdict is None:
            plain.append(run())
            ratios.append(effect * run() / plain[-1])
            verdict = judge_ratios(ratios, measure_noise(plain), 6)
        verdicts[verdict] += 1
    return verdicts


@pytest.mark.parametrize("bursts", [0.0, 0.2])
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.05, 0.1, 0.2])
def test_noise_alone_is_hardly_ever_called_faster_or_slower(noise, bursts):
    found = verdicts_of(1.0, noise, 7, bursts=bursts)
    assert (found["faster"] + found["slower"]) / found.total() < 0.08


@pytest.mark.parametrize("bursts", [0.0, 0.2])
@pytest.mark.parametrize("noise", [0.003, 0.02, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("effect", [0.5, 0.77, 0.9, 0.94, 1.06, 1.3])
def test_what_is_not_the_same_is_hardly_ever_called_so_and_never_the_opposite(effect, noise, bursts):
    found = verdicts_of(effect, noise, 9, bursts=bursts)
    assert found["same"] / found.total() < 0.04
    assert found["slower" if effect < 1 else "faster"] / found.total() < 0.04


@pytest.mark.parametrize(
    ("effect", "noise", "found_share"), [(0.85, 0.02, 0.99), (0.77, 0.1, 0.8), (0.5, 0.2, 0.95), (0.94, 0.02, 0.85)]
)
def test_an_effect_of_three_times_the_noise_is_nearly_always_found(effect, noise, found_share):
    found = verdicts_of(effect, noise, 8)
    assert found["faster"] / found.total() > found_share


def test_a_quiet_machine_tells_the_same_in_four_pairs():
    assert verdicts_of(1.0, 0.003, 3)["same"] / 400 > 0.98
