"""Interval arithmetic against a model that knows nothing of it: sets of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

RAW = st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 12)), max_size=8)
SETS = RAW.map(lambda raw: build(raw))
INSTANTS = st.lists(st.integers(-5, 60), max_size=10)


def build(raw: list[tuple[int, int]]) -> Intervals:
    rows = np.array(raw, np.int64).reshape(-1, 2)
    return iv.union(rows[:, 0], rows[:, 0] + rows[:, 1])


def members(a: Intervals) -> set[int]:
    return {t for start, end in a.tolist() for t in range(start, end)}


def assert_is_set(a: Intervals) -> None:
    assert a.dtype == np.int64
    assert a.shape == (len(a), 2)
    assert (a[:, 1] > a[:, 0]).all()
    assert (a[1:, 0] > a[:-1, 1]).all()


@given(RAW)
def test_union_covers_what_any_of_them_covers(raw: list[tuple[int, int]]) -> None:
    result = build(raw)
    assert_is_set(result)
    assert members(result) == {t for start, length in raw for t in range(start, start + length)}


@given(st.lists(SETS, max_size=4))
def test_union_of_sets_is_the_union_of_their_members(sets: list[Intervals]) -> None:
    result = iv.union_of(sets)
    assert_is_set(result)
    assert members(result) == set().union(*map(members, sets))


@given(SETS, SETS)
def test_intersect_and_subtract_are_those_of_sets(a: Intervals, b: Intervals) -> None:
    common, rest = iv.intersect(a, b), iv.subtract(a, b)
    assert_is_set(common)
    assert_is_set(rest)
    assert members(common) == members(a) & members(b)
    assert members(rest) == members(a) - members(b)
    assert iv.total(common) + iv.total(rest) == iv.total(a)


@given(SETS, st.integers(-5, 60), st.integers(-5, 60))
def test_gaps_and_clip_share_out_the_window(a: Intervals, start: int, end: int) -> None:
    inside, outside = iv.clip(a, start, end), iv.gaps(a, start, end)
    assert_is_set(inside)
    assert_is_set(outside)
    assert members(inside) == members(a) & set(range(start, end))
    assert members(outside) == set(range(start, end)) - members(a)


@given(SETS, st.integers(0, 80))
def test_shortened_intervals_have_the_length_that_was_asked_for(a: Intervals, total_ns: int) -> None:
    shortened = iv.shorten(a, total_ns)
    assert_is_set(shortened)
    assert members(shortened) <= members(a)
    assert iv.total(shortened) == min(total_ns, iv.total(a))


@given(SETS, RAW)
def test_overlap_counts_the_instants_that_lie_in_the_set(a: Intervals, raw: list[tuple[int, int]]) -> None:
    rows = np.array([(start, start + max(length, 0)) for start, length in raw], np.int64).reshape(-1, 2)
    expected = [len(set(range(start, end)) & members(a)) for start, end in rows.tolist()]
    assert iv.overlap(rows[:, 0], rows[:, 1], a).tolist() == expected


@given(SETS, INSTANTS)
def test_contains_says_which_instants_are_members(a: Intervals, instants: list[int]) -> None:
    found = iv.contains(a, np.array(instants, np.int64))
    assert found.tolist() == [t in members(a) for t in instants]


@given(SETS, st.lists(SETS, max_size=5))
def test_partition_gives_each_instant_to_the_first_layer_and_adds_up(
    within: Intervals, layers: list[Intervals]
) -> None:
    parts = iv.partition(within, layers)
    assert len(parts) == len(layers) + 1
    left = members(within)
    for part, layer in zip(parts[:-1], layers, strict=True):
        assert members(part) == left & members(layer)
        left -= members(layer)
    assert members(parts[-1]) == left
    assert sum(map(iv.total, parts)) == iv.total(within)


@pytest.mark.parametrize(("start", "end", "rows"), [(3, 7, [[3, 7]]), (3, 3, []), (7, 3, [])])
def test_window_is_one_interval_or_none(start: int, end: int, rows: list[list[int]]) -> None:
    assert iv.window(start, end).tolist() == rows


def test_the_empty_set_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        iv.EMPTY[:] = 0
