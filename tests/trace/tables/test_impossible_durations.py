"""Durations that no GPU item can have: dropped by either reader; long ones that may be are kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse
from perfdoctor.trace.tables.impossible_durations import find_impossible

MS = 10**6
HOST = (0, 100 * MS)
WARNING = "left out because their duration is negative or longer than the trace: 1 GPU item"


def impossible(*items: tuple[int, int, int], host: tuple[int, int] | None = HOST) -> list[bool]:
    """For items of (start, duration, stream) in ms whether their duration is impossible."""
    start, duration, stream = np.array(items, np.int64).T
    return list(find_impossible(start * MS, duration * MS, (stream,), host).tolist())


@pytest.mark.parametrize(
    "items",
    [
        [(0, -1, 7)],
        [(0, 101, 7), (50, 1, 7)],  # the next one of its stream starts meanwhile
        [(90, 10_001, 7)],  # the last one, but a hundred times as long as all else
        [(0, 10**9, 7), (1, 10**9, 8)],  # each of two counts nothing for the other
        [(0, 10**9, 7), (0, 1, 8)],
    ],
)
def test_impossible_durations_are_found(items: list[tuple[int, int, int]]) -> None:
    found = impossible(*items)
    assert found == [duration < 0 or duration > 100 for _, duration, _ in items]


@pytest.mark.parametrize(
    "items",
    [
        [(0, 0, 7)],
        [(0, 100, 7), (50, 1, 7)],  # no longer than the trace
        [(90, 9_000, 7)],  # the CPU did not wait for the last one
        [(0, 101, 7), (50, 60, 8)],  # another stream
        [(0, 101, 7), (101, 1, 7)],  # one after the other
    ],
)
def test_what_may_have_lasted_so_long_is_kept(items: list[tuple[int, int, int]]) -> None:
    assert not any(impossible(*items))


def test_without_events_of_the_cpu_the_starts_of_the_items_are_the_extent() -> None:
    assert impossible((0, 10**6, 7), (20, 1, 7), (40, 1, 7), host=None) == [True, False, False]
    assert impossible((0, 1, 7), (20, 1, 7), (40, 500, 7), host=None) == [False, False, False]


def test_no_items_are_no_problem() -> None:
    none = np.empty(0, np.int64)
    assert find_impossible(none, none, (none,), None).tolist() == []


def steps_with_a_kernel(dur_us: float) -> TraceBuilder:
    b = TraceBuilder()
    for at in range(0, 40_000, 10_000):
        b.step(at, 10_000).op("aten::mm", at, 100).kernel("gemm", at + 200, 5000, launch_us=at + 50)
    b.op("aten::mm", 12_000, 100)
    b.kernel("broken", 16_000, dur_us, launch_us=12_050)
    return b


@pytest.mark.parametrize("dur_us", [-3, 1e12, 1.7e15])
def test_both_readers_drop_it_and_say_so(dur_us: float, assert_same: Callable[[Trace, Trace], None]) -> None:
    text = steps_with_a_kernel(dur_us).to_bytes()
    reference, compiled = parse(text, "x"), parse(text, "x", block=64)
    assert_same(reference, compiled)
    assert (len(reference.gpu), reference.dropped, reference.warnings) == (4, 1, (WARNING,))
    assert reference.gpu.call.tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("dur_us", [0, 3000, 40_000])
def test_both_readers_keep_what_is_possible(dur_us: float, assert_same: Callable[[Trace, Trace], None]) -> None:
    text = steps_with_a_kernel(dur_us).to_bytes()
    reference, compiled = parse(text, "x"), parse(text, "x", block=64)
    assert_same(reference, compiled)
    assert (len(reference.gpu), reference.dropped, reference.warnings) == (5, 0, ())
