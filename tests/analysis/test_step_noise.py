"""Intervals of differences: they hold the true difference as often as they say, and few slow steps do not move them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.step_noise import BETWEEN_RECORDINGS, StepSample, compare_steps, rank_interval


def sample(values: object) -> StepSample:
    steps = tuple(float(value) for value in values)  # type: ignore[attr-defined]
    spread = float(np.std(steps) / np.mean(steps)) if len(steps) > 1 else None
    return StepSample(steps, float(np.median(steps)), len(steps), spread)


@pytest.mark.parametrize(
    ("count", "confidence"), [(3, 0.9), (4, 0.9714), (5, 0.9683), (6, 0.9589), (10, 0.9567), (20, 0.9509)]
)
def test_confidences_are_those_of_the_tables(count: int, confidence: float) -> None:
    """Hollander, Wolfe, Chicken, table A.6: the Mann-Whitney statistic of so many values a side."""
    interval = rank_interval(range(count), range(count))
    assert interval is not None
    assert interval.confidence == pytest.approx(confidence, abs=1e-4)


def test_the_interval_holds_the_true_shift_nearly_always() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        before, after = generator.lognormal(0, 0.3, 12), generator.lognormal(0, 0.3, 12) + 0.5
        interval = rank_interval(before.tolist(), after.tolist())
        assert interval is not None
        covered += interval.low_ns <= 0.5 <= interval.high_ns
    assert 0.92 <= covered / 300 <= 0.995


def test_a_program_against_itself_is_the_same_nearly_always() -> None:
    """Steps that resemble their neighbours, as of a clock that drifts, and two recordings that differ by 1 %."""
    generator = np.random.default_rng(1)
    verdicts = []
    for _ in range(200):
        sides = []
        for _ in range(2):
            noise = generator.normal(0, 0.02, 40)
            for step in range(1, 40):
                noise[step] += 0.7 * noise[step - 1]
            sides.append(1e6 * (1 + noise) * (1 + generator.normal(0, 0.007)))
        verdicts.append(compare_steps([sample(sides[0])], [sample(sides[1])]).verdict)
    assert verdicts.count("same") >= 190


def test_a_few_slow_steps_do_not_move_it() -> None:
    steady = [100.0 + number % 3 for number in range(12)]
    disturbed = [*steady[:-2], 900.0, 2000.0]
    assert compare_steps([sample(steady)], [sample(disturbed)]).verdict == "same"
    slower = [value + 30 for value in disturbed]
    found = compare_steps([sample(steady)], [sample(slower)])
    assert found.verdict == "slower"
    assert found.difference_ns == pytest.approx(30, abs=2)


def test_one_recording_a_side_cannot_tell_what_differs_between_recordings() -> None:
    small = 0.9 * BETWEEN_RECORDINGS
    steps, slower = [1e6] * 20, [1e6 * (1 + small)] * 20
    assert compare_steps([sample(steps)], [sample(slower)]).verdict == "same"
    assert compare_steps([sample(steps)], [sample([1e6 * (1 + 2 * small)] * 20)]).verdict == "slower"


def test_several_recordings_narrow_the_noise_where_they_agree() -> None:
    before = [sample([1e6 + offset] * 8) for offset in (0, 900, -700)]
    after = [sample([1.01e6 + offset] * 8) for offset in (500, -400, 0)]
    assert compare_steps(before[:1], after[:1]).verdict == "same"
    found = compare_steps(before, after)
    assert found.verdict == "slower"
    assert found.visible_ns is not None
    assert found.visible_ns < 0.003 * 1e6


def test_several_recordings_widen_it_where_they_differ() -> None:
    before = [sample([1e6 * factor] * 8) for factor in (1.0, 1.06, 0.95)]
    after = [sample([1.04e6 * factor] * 8) for factor in (1.0, 0.94, 1.05)]
    assert compare_steps(before[:1], after[:1]).verdict == "slower"
    assert compare_steps(before, after).verdict == "same"


@pytest.mark.parametrize("counts", [(1, 20), (2, 2), (2, 3)])
def test_too_few_steps_are_not_judged(counts: tuple[int, int]) -> None:
    found = compare_steps([sample([1e6] * counts[0])], [sample([2e6] * counts[1])])
    assert found.verdict == "unknown"
    assert found.low_ns is None
    assert "too few" in found.basis
    assert found.difference_ns == 1_000_000


def test_a_side_without_steps_is_not_judged() -> None:
    found = compare_steps([StepSample((), None, 0)], [sample([1e6] * 5)])
    assert (found.before_ns, found.after_ns, found.difference_ns, found.verdict) == (None, 1_000_000, None, "unknown")


def test_a_report_is_judged_by_the_variation_of_its_steps() -> None:
    report = StepSample((), 1e6, 25, 0.02)
    assert compare_steps([report], [sample([1.01e6] * 25)]).verdict == "same"
    assert compare_steps([report], [sample([1.1e6 + 1e4 * (n % 5) for n in range(25)])]).verdict == "slower"
    assert compare_steps([StepSample((), 1e6, 25, None)], [sample([2e6] * 25)]).verdict == "unknown"


values = st.lists(st.floats(1.0, 1e9), min_size=1, max_size=30)


@given(values, values, st.floats(0.0, 1e9))
def test_the_interval_moves_with_the_values(before: list[float], after: list[float], by: float) -> None:
    one, other = rank_interval(before, after), rank_interval(before, [value + by for value in after])
    assert one is not None
    assert other is not None
    assert other.low_ns == pytest.approx(one.low_ns + by, abs=1e-3)
    assert other.high_ns == pytest.approx(one.high_ns + by, abs=1e-3)
    assert one.low_ns <= one.high_ns


@given(values, values)
def test_the_difference_lies_in_its_interval_and_turns_with_the_sides(before: list[float], after: list[float]) -> None:
    found, turned = compare_steps([sample(before)], [sample(after)]), compare_steps([sample(after)], [sample(before)])
    assert found.difference_ns is not None
    assert turned.difference_ns == -found.difference_ns
    if found.low_ns is not None and found.high_ns is not None:
        assert found.low_ns <= found.difference_ns + 1
        assert found.high_ns >= found.difference_ns - 1
        assert (found.verdict == "slower") == (found.low_ns > 0)
