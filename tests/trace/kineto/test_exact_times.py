"""Microseconds of the text to int64 nanoseconds, against fractions."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.trace.arrays import LIMIT_NS
from perfdoctor.trace.kineto.exact_times import parse_time, parse_times

EPOCH_US = 1_700_000_000_000_000
TEXTS = st.builds(
    lambda whole, digits, exponent: f"{whole}{'.' + digits if digits else ''}{exponent}",
    st.integers(-3 * EPOCH_US, 3 * EPOCH_US),
    st.text("0123456789", max_size=12),
    st.sampled_from(["", "", "e0", "E-3", "e+1", "e-20"]),
)


def half_up(text: str) -> int:
    """The definition."""
    return math.floor(Fraction(text) * 1000 + Fraction(1, 2))


@given(st.lists(st.one_of(TEXTS, st.integers(-EPOCH_US, EPOCH_US)), min_size=1))
def test_every_time_is_exact(values: list[str | int]) -> None:
    expected = [half_up(str(value)) for value in values]
    result, usable = parse_times(values)
    assert usable.tolist() == [abs(ns) < LIMIT_NS for ns in expected]
    assert result.tolist() == [ns if abs(ns) < LIMIT_NS else 0 for ns in expected]


@given(st.lists(st.tuples(st.integers(-EPOCH_US, EPOCH_US), st.integers(0, 999)), min_size=1))
def test_three_digits_are_kept_to_the_last_at_the_time_of_the_epoch(times: list[tuple[int, int]]) -> None:
    values = [f"{us}.{ns:03}" for us, ns in times]
    result, usable = parse_times(values)
    assert usable.all()
    assert result.tolist() == [int(f"{us}{ns:03}") for us, ns in times]


@given(st.decimals(-EPOCH_US, EPOCH_US, allow_nan=False, places=6), st.integers(-1000, 1000))
def test_a_shift_by_whole_nanoseconds_shifts_every_time_alike(us: Decimal, shift: int) -> None:
    before, after = parse_time(f"{us:f}"), parse_time(f"{us + Decimal(shift) / 1000:f}")
    assert before is not None
    assert after == before + shift


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (1, 1000),
        ("1.5", 1500),
        ("-0.5", -500),
        ("0.0005", 1),
        ("-0.0005", 0),
        ("1e-3", 1),
        ("1.2345E3", 1_234_500),
        (" 7 ", 7000),
        (0.25, 250),
        ("0e999999999", 0),
        ("1e-999999999", 0),
    ],
)
def test_usable_times(value: object, ns: int) -> None:
    assert parse_time(value) == ns
    assert parse_times([value])[0].tolist() == [ns]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        [],
        {},
        "",
        "x",
        "nan",
        "Infinity",
        "1e300",
        "1e999999999",
        "1e9999999999999999999",
        "1e-9999999999999999999",
        "1" * 100_000,
        "1" * 100_000 + "x",
        "1_000",
        "٣",
        math.nan,
        math.inf,
        1e300,
        2**62,
    ],
)
def test_unusable_times(value: object) -> None:
    assert parse_time(value) is None
    result, usable = parse_times([value, 1])
    assert usable.tolist() == [False, True]
    assert result.tolist() == [0, 1000]
