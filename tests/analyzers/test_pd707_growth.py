"""Growth of what a program holds over its steps: found with its slope, and caches, noise and windows are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from perfdoctor.analyzers._pd707_growth import find_memory_growth
from perfdoctor.trace.arrays import FloatArray, Int64Array

MB = 1_000_000


def noise(count: int, size: float, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(0, size, count)


def unprofiled(steps: int) -> Int64Array:
    """The steps of a run of which 6 before its window and all after it were without the profiler."""
    return np.concatenate((np.arange(20, 26), np.arange(min(39, steps - 3), steps)))


Curve: TypeAlias = Callable[[Int64Array], Any]
# By name: the bytes of each step in MB, by its number.
GROWING: dict[str, Curve] = {
    "a list": lambda at: 400 + 4.0 * at,
    "noisy": lambda at: 400 + 4.0 * at + noise(len(at), 3.0),
    "a copy in every fourth step": lambda at: 400 + 16.0 * (at // 4),
    "what the window leaves": lambda at: 400 + 4.0 * at + 250 * (at > 30),
    "what is freed again in each tenth": lambda at: 400 + 4.0 * at + 90 * (at % 10 == 9),
}


@pytest.mark.parametrize("steps", [45, 120, 3000])
@pytest.mark.parametrize("name", GROWING)
def test_growth_is_found_with_its_slope(name: str, steps: int) -> None:
    number = unprofiled(steps)
    growth = find_memory_growth(number, (GROWING[name](number) * MB).astype(np.int64))
    assert growth is not None
    # Twelve steps with three copies in them are not certain.
    assert growth.grows or (steps == 45 and "fourth" in name)
    assert growth.low_bytes <= 4.0 * MB * 1.01
    assert growth.high_bytes >= 4.0 * MB * 0.99
    assert growth.seen_steps == steps - 21
    if steps > 45:
        assert growth.step_bytes == pytest.approx(4.0 * MB, rel=0.05)


STEADY: dict[str, Curve] = {
    "level": lambda at: 400 + 0.0 * at,
    "noise": lambda at: 400 + noise(len(at), 8.0),
    "a cache that fills and stops": lambda at: 400 + 4.0 * np.minimum(at, 60),
    "a cache that fills half of the run": lambda at: 400 + 4.0 * np.minimum(at, at.max() / 2),
    "a cache that fills ever more slowly": lambda at: 400 + 40 * np.log1p(at),
    "an evaluation in each tenth": lambda at: 400 + 300 * (at % 10 == 9),
    "what the window leaves": lambda at: 400 + 250 * (at > 30),
    "a sawtooth": lambda at: 400 + 4.0 * (at % 40),
    "it shrinks": lambda at: 9000 - 2.0 * at,
    "a slow leak of the heap": lambda at: 400 + 0.002 * at,
}


@pytest.mark.parametrize("late_steps", [3, 8, 13])
def test_steps_without_a_copy_in_a_short_last_stretch(late_steps: int) -> None:
    number = np.concatenate((np.arange(20, 100), np.arange(106, 106 + late_steps)))
    copies = find_memory_growth(number, (400 + 16 * (number // 4)).astype(np.int64) * MB)
    assert copies is not None
    assert copies.grows
    cache = find_memory_growth(number, (400 + 4 * np.minimum(number, 60)).astype(np.int64) * MB)
    assert cache is not None
    assert not cache.grows


@pytest.mark.parametrize("steps", [400, 3000])
@pytest.mark.parametrize("name", STEADY)
def test_what_is_no_growth_is_quiet(name: str, steps: int) -> None:
    number = unprofiled(steps)
    growth = find_memory_growth(number, (STEADY[name](number) * MB).astype(np.int64))
    assert growth is not None
    assert not growth.grows, growth


def test_few_steps_tell_nothing() -> None:
    kept = np.arange(7) * 50 * MB
    assert find_memory_growth(np.arange(7), kept) is None
    assert find_memory_growth(np.arange(0, 40, 2), np.arange(20) * 50 * MB) is None  # never two in a row
    assert find_memory_growth(np.empty(0, np.int64), np.empty(0, np.int64)) is None


@pytest.mark.parametrize("seed", range(40))
def test_the_interval_holds_the_slope(seed: int) -> None:
    number = np.arange(60)
    growth = find_memory_growth(number, (2 * MB * number + noise(60, 5 * MB, seed)).astype(np.int64))
    assert growth is not None
    # 95 of 100 hold it, and none of these is further away than a tenth.
    assert growth.low_bytes - 0.2 * MB <= 2 * MB <= growth.high_bytes + 0.2 * MB


def test_steps_between_two_looks_are_left_out() -> None:
    number = unprofiled(400)
    kept = np.where(number % 7 == 0, 400 * MB + 4 * MB * number, -1)
    growth = find_memory_growth(number, kept)
    assert growth is not None
    assert growth.grows
    assert growth.step_bytes == pytest.approx(4 * MB)
    assert find_memory_growth(number, np.where(number < 25, 1, -1)) is None


def test_a_random_walk_of_the_heap_is_quiet() -> None:
    """Of 200 programs whose heap moves by up to 0.2 MB a step at random none is said to grow."""
    walks = [np.cumsum(noise(300, 0.2 * MB, seed)) + 400 * MB for seed in range(200)]
    found = [find_memory_growth(np.arange(300), walk.astype(np.int64)) for walk in walks]
    assert not [each for each in found if each is None or each.grows]


def test_two_hundred_thousand_steps_take_milliseconds() -> None:
    growth = find_memory_growth(np.arange(200_000), np.arange(200_000) * 1000)
    assert growth is not None
    assert growth.grows
    assert growth.step_bytes == pytest.approx(1000, rel=1e-3)
