"""The distinct values of columns, as numpy has them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.tables.distinct import distinct, occurring


@given(st.lists(st.integers(-(1 << 62), 1 << 62)))
def test_distinct_values_come_in_order(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(st.lists(st.integers(-1, 20)))
def test_codes_that_occur_come_in_order_and_none_is_no_code(codes: list[int]) -> None:
    assert occurring(np.array(codes, np.int32)).tolist() == sorted(set(codes) - {-1})
