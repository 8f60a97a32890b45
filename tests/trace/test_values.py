"""Values of arguments as JSON texts, one by one and all at once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.values import json_text, json_texts

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["\n", ",\n,", "null", "\ud800", '"']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(ANYTHING, max_size=6))
def test_texts_all_at_once_are_those_of_each_value(values: list[Any]) -> None:
    assert json_texts(values) == [json_text(value) for value in values]


def test_no_depth_makes_a_difference() -> None:
    value: list[Any] = []
    for _ in range(300):
        assert json_texts([1, value]) == [json_text(1), json_text(value)]
        value = [value]
