"""Microseconds as a trace writes them become int64 nanoseconds, exactly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal, localcontext

import numpy as np

from perfdoctor.trace.arrays import LIMIT_NS, BoolArray, Int64Array

# Regular expressions as texts: compiling them takes 1.5 ms, which only irregular events need.
_PLAIN_TIMES = r"(?:-?[0-9]{1,16}(?:\.[0-9]{1,3})?\n)+"
# There is one way to match each digit, so long ones take no longer; larger exponents are too large for Decimal.
_ANY_NUMBER = r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?\s*"
_HALF = Decimal("0.5")


def parse_times(values: Sequence[object]) -> tuple[Int64Array, BoolArray]:
    """Microseconds (int, or decimal text) as int64 nanoseconds, and for each value whether it is usable.

    Digits below a nanosecond are rounded half up, towards plus infinity for negative times too: so a shift by whole
    nanoseconds shifts every time alike. Null, NaN, infinities and times beyond 146 years are not usable; their value is
    0.
    """
    try:
        result = _parse_plain(values)
    except (ValueError, OverflowError):
        exact = [parse_time(value) for value in values]
        usable = np.array([value is not None for value in exact], bool)
        return np.array([value or 0 for value in exact], np.int64), usable
    usable = (result < LIMIT_NS) & (result > -LIMIT_NS)
    return np.where(usable, result, 0), usable


def _parse_plain(values: Sequence[object]) -> Int64Array:
    """The common case at once: integers, and texts with up to three digits after the point.

    Raises:
        ValueError: some value is something else.
        OverflowError: some value does not fit.
    """
    kinds = set(map(type, values))
    if not kinds <= {int, str}:
        raise ValueError
    if kinds <= {int}:
        whole = np.array(values, np.int64)
        if len(whole) and (int(whole.max()) > LIMIT_NS // 1000 or int(whole.min()) < -LIMIT_NS // 1000):
            raise OverflowError
        return whole * 1000
    texts = [str(value) for value in values] if int in kinds else values
    if not re.fullmatch(_PLAIN_TIMES, "\n".join(texts) + "\n"):  # type: ignore[arg-type]
        raise ValueError
    parts = [text.partition(".") for text in texts]  # type: ignore[attr-defined]
    return np.array([int(whole + (fraction + "000")[:3]) for whole, _, fraction in parts], np.int64)


def parse_time(value: object) -> int | None:
    """One time in microseconds, in any notation, as nanoseconds; None when it is not usable."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = value if isinstance(value, str) else repr(value)
    if not re.fullmatch(_ANY_NUMBER, text):
        return None
    with localcontext() as context:
        # Exact whatever the number of digits; a huge exponent must not be written out.
        context.prec = max(len(text), 1) + 40
        number = Decimal(text.strip())
        if number.is_zero() or number.adjusted() < -10:
            return 0
        if number.adjusted() > 20:
            return None
        result = int((number * 1000 + _HALF).to_integral_value(ROUND_FLOOR))
    return result if -LIMIT_NS < result < LIMIT_NS else None
