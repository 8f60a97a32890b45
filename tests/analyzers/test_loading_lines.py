"""Which line of the user's data set is named where a loop waits for batches that it loads itself."""

from __future__ import annotations

import pytest

from perfdoctor.analyzers._loader_wait_parts import _find_busiest_line
from perfdoctor.rank import Rank
from perfdoctor.rules import loader_waits_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.vocabulary import SINGLE_PROCESS_LOADER, dataloader_next_name


def busiest_line(shares: list[float], wait_ms: float, step_ms: float) -> str | None:
    """The line that is named where lines 1, 2, ... of a data set take these shares of the wait."""
    trace, wait_us, step_us = TraceBuilder(device=None), 1000 * wait_ms, 1000 * step_ms
    for number in range(2):
        begin = number * step_us
        at = begin + wait_us / 100  # the loop's own line is there when it asks for a batch
        trace.step(begin, step_us).range("@train.py:20 main", begin, step_us)
        trace.range(dataloader_next_name(SINGLE_PROCESS_LOADER), begin, wait_us)
        for line, share in enumerate(shares, 1):
            trace.range(f"@data.py:{line} smooth", at, wait_us * share)
            at += wait_us * share
    built = trace.trace()
    found = _find_busiest_line(Rank(built), built, loader_waits_of(built))
    return None if found is None else found.short


@pytest.mark.parametrize(("shares", "wait_ms"), [([0.55, 0.4], 4), ([0.3, 0.25, 0.2, 0.2], 20)])
def test_a_line_with_much_of_the_waits_is_named_though_it_is_little_of_a_step(
    shares: list[float], wait_ms: float
) -> None:
    assert busiest_line(shares, wait_ms, 50) == "data.py:1"


@pytest.mark.parametrize(("shares", "wait_ms"), [([0.19] * 5, 40), ([0.55, 0.4], 0.8)])
def test_one_of_many_lines_and_one_that_is_hardly_seen_are_not_named(shares: list[float], wait_ms: float) -> None:
    assert busiest_line(shares, wait_ms, 50) is None
