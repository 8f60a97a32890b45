"""Drift in the step times of an hour: healthy programs are quiet, planted drifts are found where they begin."""

from __future__ import annotations

import time

import numpy as np
import pytest
from long_runs import drifting_runs, healthy_runs

from perfdoctor.run_watch.change_points import MIN_STEPS, find_drift

HEALTHY, DRIFTING = healthy_runs(), drifting_runs()
# Reports speak of drift from this growth on (PD010).
MIN_GROWTH = 0.08


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_hour_is_quiet(name: str) -> None:
    drift = find_drift(HEALTHY[name])
    assert drift is None or drift.rise < MIN_GROWTH / 2 * drift.before


@pytest.mark.parametrize("name", DRIFTING)
def test_a_drift_is_found_where_it_begins(name: str) -> None:
    steps, kind, began, factor = DRIFTING[name]
    drift = find_drift(steps)
    assert drift is not None
    assert drift.kind == kind
    # A ramp begins within its noise: it is seen once it has risen.
    assert abs(drift.began - began) <= (0.001 if kind == "jump" else 0.08) * len(steps)
    assert drift.after / drift.before == pytest.approx(factor, rel=0.08)


@pytest.mark.parametrize("seed", range(40))
def test_noise_of_a_short_run_is_quiet(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drift = find_drift(10 * rng.lognormal(0, 0.2, MIN_STEPS + 20 * seed))
    assert drift is None or drift.rise < MIN_GROWTH * drift.before


def test_too_few_steps_say_nothing() -> None:
    steps = np.linspace(1, 3, MIN_STEPS)
    assert find_drift(steps) is not None
    assert find_drift(steps[:-1]) is None
    assert find_drift(steps[:0]) is None


def test_equal_steps_are_quiet() -> None:
    assert find_drift(np.full(5_000, 7)) is None


def test_two_hundred_thousand_steps_take_milliseconds() -> None:
    steps = HEALTHY["200,000 steps"]
    start_ns = time.process_time_ns()
    find_drift(steps)
    assert len(steps) == 200_000
    assert time.process_time_ns() - start_ns < 500_000_000
