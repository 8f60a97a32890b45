"""How titles name counts: no step has 4.67 of anything."""

from __future__ import annotations

import pytest

from perfdoctor.rank import Rank
from perfdoctor.rules import format_frequency, format_per_step
from perfdoctor.testing import TraceBuilder


def rank_of(steps: int) -> Rank:
    trace = TraceBuilder()
    for number in range(steps):
        trace.step(100 * number, 100)
    return Rank(trace.kernel("ampere_sgemm_128x64_nn", 0, 50, launch_us=0).trace())


@pytest.mark.parametrize(
    ("count", "steps", "times", "number"),
    [
        (14, 3, "about 5 times a step", "about 5 a step"),
        (12, 3, "4 times a step", "4 a step"),
        (3, 3, "once a step", "1 a step"),
        (20, 10, "twice a step", "2 a step"),
        (15, 10, "1 to 2 times a step", "1 to 2 a step"),
        (1, 3, "once in 3 steps", "1 in 3 steps"),
        (7, 10, "7 times in 10 steps", "7 in 10 steps"),
        (5000, 1, "5,000 times a step", "5,000 a step"),
        (11, 0, "11 times", "11 in all"),
        (1, 0, "once", "1 in all"),
    ],
)
def test_counts_are_whole(count: int, steps: int, times: str, number: str) -> None:
    rank = rank_of(steps)
    assert format_frequency(rank, count) == times
    assert format_per_step(rank, count) == number
