"""Nesting against a stack, one event after the other."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from left_out_library import without_library

from perfdoctor.trace.tables.nesting import innermost, outermost, own_durations, parents

pytestmark = pytest.mark.usefixtures("each_way")


Row: TypeAlias = tuple[int, int, int]

OVERLAPPING = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15), st.integers(0, 2)), max_size=14).map(
    lambda rows: [(start, start + length, lane) for start, length, lane in rows]
)


@st.composite
def nested(draw: st.DrawFn) -> list[Row]:
    """Properly nested events of two threads, in any order, siblings touching or not."""
    rows: list[Row] = []

    def fill(start: int, end: int, lane: int, depth: int) -> None:
        at = start
        while at < end and depth < 4 and draw(st.booleans()):
            begin = draw(st.integers(at, end - 1))
            stop = draw(st.integers(begin + 1, end))
            rows.append((begin, stop, lane))
            fill(begin, stop, lane, depth + 1)
            at = stop

    for lane in (0, 1):
        fill(0, 40, lane, 0)
    return draw(st.permutations(rows))


def columns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2].astype(np.int32)


def by_stack(rows: list[Row]) -> list[int]:
    """The parent of each row: the top of its thread's stack when it begins."""
    result = [-1] * len(rows)
    stacks: dict[int, list[int]] = {}
    for i in sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1], i)):
        start, _, lane = rows[i]
        stack = stacks.setdefault(lane, [])
        while stack and max(rows[stack[-1]][1], rows[stack[-1]][0] + 1) <= start:
            stack.pop()
        result[i] = stack[-1] if stack else -1
        stack.append(i)
    return result


@given(nested())
def test_parents_are_those_of_a_stack(rows: list[Row]) -> None:
    assert parents(*columns(rows)).tolist() == by_stack(rows)


@given(OVERLAPPING)
def test_a_parent_of_overlapping_events_is_on_the_same_thread_and_contains_the_start(rows: list[Row]) -> None:
    for row, parent in enumerate(parents(*columns(rows)).tolist()):
        if parent >= 0:
            assert rows[parent][2] == rows[row][2]
            assert rows[parent][0] <= rows[row][0] < max(rows[parent][1], rows[parent][0] + 1)


@given(OVERLAPPING)
def test_no_event_is_its_own_ancestor(rows: list[Row]) -> None:
    parent = parents(*columns(rows))
    for row in range(len(rows)):
        seen, at = set(), row
        while at >= 0:
            assert at not in seen
            seen.add(at)
            at = int(parent[at])


@given(nested(), st.lists(st.tuples(st.integers(-2, 42), st.integers(0, 2)), max_size=10))
def test_innermost_is_the_smallest_event_that_contains_the_instant(
    rows: list[Row], asked: list[tuple[int, int]]
) -> None:
    at = np.array([t for t, _ in asked], np.int64)
    lanes = np.array([lane for _, lane in asked], np.int32)
    found = innermost(*columns(rows), at, lanes).tolist()
    for (t, lane), row in zip(asked, found, strict=True):
        around = [r for r in rows if r[2] == lane and r[0] <= t < r[1]]
        if row < 0:
            assert not around
        else:
            assert rows[row] == min(around, key=lambda r: r[1] - r[0])


@given(OVERLAPPING, st.lists(st.tuples(st.integers(-2, 42), st.integers(0, 3)), max_size=10))
def test_both_ways_find_the_same_among_events_that_overlap(rows: list[Row], asked: list[tuple[int, int]]) -> None:
    at, lanes = np.array([t for t, _ in asked], np.int64), np.array([lane for _, lane in asked], np.int32)
    found = parents(*columns(rows)), innermost(*columns(rows), at, lanes)
    with without_library():
        searched = parents(*columns(rows)), innermost(*columns(rows), at, lanes)
    for one, other in zip(found, searched, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


def test_threads_may_have_any_numbers() -> None:
    start, end, _ = columns([(0, 10, 0), (2, 8, 0), (3, 4, 0)])
    for lane in (-1, 1 << 30):
        assert parents(start, end, np.array([lane, lane, 7], np.int32)).tolist() == [-1, 0, -1]


@given(nested())
def test_outermost_climbs_to_the_top(rows: list[Row]) -> None:
    parent = parents(*columns(rows))
    top = outermost(parent, np.arange(len(rows), dtype=np.int32))
    for row, found in enumerate(top.tolist()):
        at = row
        while parent[at] >= 0:
            at = int(parent[at])
        assert found == at


def test_outermost_climbs_only_over_rows_to_keep() -> None:
    parent = np.array([-1, 0, 1, 2], np.int32)
    keep = np.array([False, True, True, True])
    assert outermost(parent, np.array([3, -1], np.int32), keep).tolist() == [1, -1]


def test_an_event_without_length_has_a_parent_but_contains_no_instant() -> None:
    start, end, lane = columns([(0, 10, 0), (5, 5, 0)])
    assert parents(start, end, lane).tolist() == [-1, 0]
    assert innermost(start, end, lane, np.array([5], np.int64), np.zeros(1, np.int32)).tolist() == [0]


def test_events_that_all_overlap_take_no_quadratic_time() -> None:
    # A walk from event to event would make 2.5e9 visits here and never return within a test.
    count = 50_000
    start = np.arange(count, dtype=np.int64)
    parent = parents(start, start + count, np.zeros(count, np.int32))
    assert parent.tolist() == list(range(-1, count - 1))


def test_own_durations_leave_out_what_is_right_inside():
    parent = np.array([-1, 0, 1, 0, -1], np.int32)
    dur_ns = np.array([100, 40, 30, 10, 7])
    assert own_durations(parent, dur_ns).tolist() == [50, 10, 30, 10, 7]


def test_own_durations_add_up_to_those_of_outermost_events():
    parent = np.array([-1, 0, 1, -1, 3, 3], np.int32)
    dur_ns = np.array([2**52 + 1, 2**51, 2**50 - 1, 9, 4, 5])
    assert own_durations(parent, dur_ns).sum() == dur_ns[parent < 0].sum()
