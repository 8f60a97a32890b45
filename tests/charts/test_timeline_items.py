"""Joining items that are too short to be seen: no more than asked, none lost, none of a visible length joined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.charts.lanes import depth_of, side_lanes
from perfdoctor.charts.timeline_items import Items, concatenate, join_short_items
from perfdoctor.trace.arrays import Int64Array

SPAN_NS = 6_400_000  # a pixel at four times the size is 1 us


def items(start: list[int], length: list[int], *, track: int = 0, category: int = 0, depth: int = 0) -> Items:
    starts = np.array(start, np.int64)
    count = len(starts)

    def same(value: int, kind: type[np.signedinteger]) -> np.ndarray:
        return np.full(count, value, kind)

    return Items(
        same(track, np.int32),
        starts,
        starts + np.array(length, np.int64),
        np.arange(count, dtype=np.int32),
        same(category, np.int8),
        same(depth, np.int8),
        np.arange(count, dtype=np.int32),
        same(1, np.int32),
    )


def test_few_items_stay_as_they_are_in_the_order_of_tracks_and_starts() -> None:
    both = concatenate([items([50, 10], [5, 5], track=1), items([3], [1])])
    joined = join_short_items(both, SPAN_NS)
    assert joined.track.tolist() == [0, 1, 1]
    assert joined.start_ns.tolist() == [3, 10, 50]
    assert joined.merged.tolist() == [1, 1, 1]


def test_neighbours_within_a_pixel_become_one_with_the_name_of_the_longest() -> None:
    made = items([0, 100, 300, 500_000], [50, 150, 100, 100])
    joined = join_short_items(made, SPAN_NS, max_items=2)
    assert joined.start_ns.tolist() == [0, 500_000]
    assert joined.end_ns.tolist() == [400, 500_100]
    assert joined.name.tolist() == [1, 3]
    assert joined.merged.tolist() == [3, 1]
    assert joined.row.tolist() == [-1, 3]


def test_an_item_longer_than_a_pixel_is_never_joined() -> None:
    made = items([0, 10, 2_000, 2_010], [5, 1_900, 5, 5])
    joined = join_short_items(made, SPAN_NS, max_items=3)
    assert joined.start_ns.tolist() == [0, 10, 2_000]
    assert joined.merged.tolist() == [1, 1, 2]


def test_items_of_different_tracks_or_depths_are_not_joined() -> None:
    made = concatenate([items([0, 2], [1, 1]), items([1, 3], [1, 1], depth=1), items([0, 2], [1, 1], track=1)])
    joined = join_short_items(made, SPAN_NS, max_items=3)
    assert joined.merged.tolist() == [2, 2, 2]
    assert set(zip(joined.track.tolist(), joined.depth.tolist(), strict=True)) == {(0, 0), (0, 1), (1, 0)}


@given(st.integers(0, 2**32), st.integers(2, 400))
def test_whatever_the_items_as_few_as_asked_remain_and_their_counts_add_up(seed: int, max_items: int) -> None:
    random = np.random.default_rng(seed)
    gaps, lengths = random.exponential(3_000, (2, 500)).astype(np.int64)
    start = np.cumsum(gaps + lengths) - lengths
    made = items(start.tolist(), lengths.tolist())
    span_ns = int(made.end_ns[-1])
    joined = join_short_items(made, span_ns, max_items)
    assert len(joined) <= max_items
    assert joined.merged.sum() == len(made)
    assert (joined.start_ns[1:] >= joined.end_ns[:-1]).all()
    assert (joined.start_ns[0], joined.end_ns[-1]) == (made.start_ns[0], made.end_ns[-1])


def test_a_hundred_thousand_are_kept_of_a_million_and_none_of_a_pixel_is_lost() -> None:
    length = np.full(1_000_000, 4)
    length[::10_000] = 2_000
    start = np.cumsum(length + 2) - length
    joined = join_short_items(items(start.tolist(), length.tolist()), SPAN_NS)
    assert len(joined) <= 100_000
    assert int((joined.merged == 1).sum()) >= 100
    assert set(start[::10_000].tolist()) <= set(joined.start_ns[joined.merged == 1].tolist())
    assert joined.merged.sum() == 1_000_000


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        ([], []),
        ([(0, 5), (5, 9), (9, 9), (9, 12)], [0, 0, 0, 0]),
        ([(0, 10), (5, 20), (12, 13), (14, 30)], [0, 1, 0, 0]),
        ([(0, 10), (1, 10), (2, 10), (10, 11)], [0, 1, 2, 0]),
    ],
)
def test_what_overlaps_on_a_stream_lies_in_lanes(spans: list[tuple[int, int]], lanes: list[int]) -> None:
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    assert side_lanes(start, end).tolist() == lanes


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=40))
def test_no_two_items_of_a_lane_overlap(spans: list[tuple[int, int]]) -> None:
    start, length = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    lane = side_lanes(start, start + length)
    for number in set(lane.tolist()) - {15}:
        of_lane = lane == number
        assert (start[of_lane][1:] >= (start + length)[of_lane][:-1]).all()


@given(st.lists(st.integers(-1, 200), max_size=200))
def test_depth_counts_the_rows_around(numbers: list[int]) -> None:
    parent = np.array([min(number, row - 1) for row, number in enumerate(numbers)], np.int32)
    depth: list[int] = []
    for up in parent.tolist():
        depth.append(0 if up < 0 else depth[up] + 1)
    found: Int64Array = depth_of(parent)
    assert found.tolist() == depth
