"""The order of rows in a table."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.tables.time_order import is_in_time_order, time_order

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 4)), max_size=12)


@given(ROWS, st.randoms(use_true_random=False))
def test_rows_stand_by_start_then_longest_first_then_by_place(rows, choose) -> None:  # type: ignore[no-untyped-def]
    places = list(range(len(rows)))
    choose.shuffle(places)
    start, length = np.array(rows, np.int64).reshape(-1, 2).T
    for place in (None, np.array(places, np.int64)):
        where = places if place is not None else list(range(len(rows)))
        expected = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1], where[i]))
        order = time_order(start, length, place)
        assert (list(range(len(rows))) if order is None else order.tolist()) == expected
        assert is_in_time_order(start[expected], length[expected])


def test_what_stands_so_already_is_not_moved() -> None:
    start, length = np.array([1, 1, 2]), np.array([5, 5, 9])
    assert time_order(start, length) is None
    assert time_order(start, length, np.array([3, 4, 7])) is None
    assert not is_in_time_order(start[::-1], length[::-1])
