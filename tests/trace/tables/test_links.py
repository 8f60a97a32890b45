"""Links between tables against a search one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.tables.links import find_first, find_latest, make_rank_keys

SMALL = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 9)), max_size=12)


def two(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(SMALL, SMALL)
def test_the_latest_before_is_the_last_that_has_begun_or_else_the_first(
    asked: list[tuple[int, int]], calls: list[tuple[int, int]]
) -> None:
    found = find_latest(*two(asked), *two(calls)).tolist()
    for (key, start), row in zip(asked, found, strict=True):
        same = [i for i, call in enumerate(calls) if call[0] == key and key >= 0]
        begun = [i for i in same if calls[i][1] <= start]
        if not same:
            assert row == -1
        else:
            expected = max(calls[i][1] for i in begun) if begun else min(calls[i][1] for i in same)
            assert (row in same, calls[row][1]) == (True, expected)


@given(SMALL, SMALL)
def test_the_first_with_a_key_is_the_first_row_that_has_it(
    asked: list[tuple[int, int]], rows: list[tuple[int, int]]
) -> None:
    keys = [key for key, _ in rows]
    expected = [keys.index(key) if key >= 0 and key in keys else -1 for key, _ in asked]
    assert find_first(two(asked)[0], two(rows)[0]).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 5)), max_size=8),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 5)), max_size=8),
)
def test_keys_are_equal_where_rank_and_id_are(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    keys = np.concatenate(make_rank_keys(*two(first), other=two(second))).tolist()
    pairs = first + second
    for (one, key), (other, other_key) in zip(
        zip(pairs, keys, strict=True), reversed(list(zip(pairs, keys, strict=True))), strict=True
    ):
        assert (key == other_key) == (one == other or (one[1] <= 0 and other[1] <= 0))
        assert (key == -1) == (one[1] <= 0)


def test_one_id_for_everything_takes_no_quadratic_time() -> None:
    count = 100_000
    starts = np.arange(count, dtype=np.int64)
    same = np.ones(count, np.int64)
    assert find_latest(same, starts, same, starts).tolist() == list(range(count))
