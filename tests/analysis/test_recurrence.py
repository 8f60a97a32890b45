"""What comes back from step to step, and what happens once."""

from __future__ import annotations

import numpy as np
import pytest

from perfdoctor.analysis.timeline.recurrence import Recurrence, count_recurrence, median_step_ns, split_one_offs
from perfdoctor.trace.tables.steps import NO_STEPS, Steps


def steps_of(count: int) -> Steps:
    """Steps of 1000 ns, one after the other."""
    starts = np.arange(count, dtype=np.int64) * 1000
    return Steps(np.column_stack((starts, starts + 1000)), "annotated")


def pauses(*lengths: tuple[int, ...]) -> np.ndarray:
    """For each step the lengths of its pauses, which begin every 100 ns."""
    rows = [
        (1000 * step + 100 * at, 1000 * step + 100 * at + length)
        for step, each in enumerate(lengths)
        for at, length in enumerate(each)
    ]
    return np.array(rows, np.int64).reshape(-1, 2)


@pytest.mark.parametrize(
    ("lengths", "expected", "median_ns"),
    [
        (((10,), (30,), (20,)), Recurrence(3, 3, 20, 30), 20),
        (((10, 5), (), ()), Recurrence(1, 3, 15, 15), 0),
        (((), (), ()), Recurrence(0, 3, 0, 0), 0),
        (((8,), (6,), ()), Recurrence(2, 3, 7, 8), 6),
    ],
)
def test_recurrence_counts_steps(lengths: tuple[tuple[int, ...], ...], expected: Recurrence, median_ns: int) -> None:
    steps = steps_of(len(lengths))
    assert count_recurrence(pauses(*lengths), steps) == expected
    assert median_step_ns(pauses(*lengths), steps) == median_ns


def test_without_steps_nothing_is_counted() -> None:
    time = pauses((10, 20))
    assert count_recurrence(time, NO_STEPS) is None
    assert median_step_ns(time, NO_STEPS) == 30
    assert not len(split_one_offs(time, NO_STEPS).once)


@pytest.mark.parametrize(
    ("lengths", "once"),
    [
        (((90, 5), (5,), (5,), (5,)), [90]),  # stands out of what recurs
        (((), (), (90,), ()), [90]),  # the only one
        (((90,), ()), [90]),  # one of two steps
        (((90,), (80,), (), (), (), ()), [90, 80]),  # two
        (((90,), (80,), (70,), (), (), (), (), ()), [90, 80, 70]),  # in the first half only
        (((9,), (5,), (5,), (5,)), []),  # within twice the usual
        (((90,), (), (90,), (), (90,), ()), []),  # every other step
        (((90,), (80,), ()), []),  # most of the steps
        (((40, 30, 20), (50,), (50,), (50,)), []),  # the longest stand out, the steps do not
        (((40, 40, 40, 40), (40,), (40,), (40,)), [40, 40, 40]),  # more of the usual
        (((90,),), []),  # one step does not tell
        (((50,), (50,), (50,), (50,)), []),
    ],
)
def test_what_stands_out_of_few_steps_happens_once(lengths: tuple[tuple[int, ...], ...], once: list[int]) -> None:
    time, steps = pauses(*lengths), steps_of(len(lengths))
    found = split_one_offs(time, steps)
    assert (found.once[:, 1] - found.once[:, 0]).tolist() == once
    assert sorted(np.concatenate(found).tolist()) == time.tolist()


def test_time_outside_of_the_steps_recurs() -> None:
    outside = np.array([[5000, 5400]], np.int64)
    assert split_one_offs(outside, steps_of(3)).once.tolist() == []
