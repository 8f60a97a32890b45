"""Values of arguments as JSON texts, one by one and all at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfdoctor.trace.kineto.argument_values import to_json, to_json_list

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["\n", ",\n,", "null", "\ud800", '"']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@example([float("inf"), float("nan"), -1.5])
@given(st.lists(ANYTHING, max_size=6))
def test_texts_all_at_once_are_those_of_each_value(values: list[Any]) -> None:
    assert to_json_list(values) == [to_json(value) for value in values]


@pytest.mark.parametrize("value", [None, float("inf"), float("-inf"), float("nan")])
def test_what_json_has_no_text_for_is_unknown(value: float | None) -> None:
    assert to_json(value) is None


@pytest.mark.parametrize(("value", "text"), [("null", '"null"'), (0, "0"), ([None], "[null]"), ("", '""')])
def test_what_only_looks_like_it_is_kept(value: object, text: str) -> None:
    assert to_json(value) == text


def test_no_depth_makes_a_difference() -> None:
    value: list[Any] = []
    for _ in range(300):
        assert to_json_list([1, value]) == [to_json(1), to_json(value)]
        value = [value]
