"""Values in the forms that columns hold: a number or a text is read at one address and stored at another."""

from __future__ import annotations

from perfdoctor.trace.scanner.intern_words import find, hashed, interned, put
from perfdoctor.trace.scanner.intrinsics import byte, compiled, load, store
from perfdoctor.trace.scanner.json_grammar import (
    CLOSE_LIST,
    COMMA,
    DIGITS,
    MINUS,
    OPEN,
    OPEN_LIST,
    POINT,
    ZERO,
    digits_end,
    nest_end,
    plain_end,
    spaces_end,
    string_end,
    value_end,
)
from perfdoctor.trace.scanner.layout import LIMIT_US

_FACTOR = 1 << 31  # the largest of two numbers whose product surely fits


@compiled
def number_at(p: int) -> tuple[int, int]:
    """Where the digits at p end, and their number, which only up to `DIGITS` of them means something."""
    number = 0
    digit = byte(p) - ZERO
    while 0 <= digit <= 9:
        number = 10 * number + digit
        p += 1
        digit = byte(p) - ZERO
    return p, number


@compiled
def store_time(p: int, at: int) -> int:
    """Store the microseconds at p as nanoseconds: digits below are rounded half up, as `times` does."""
    negative = byte(p) == MINUS
    p += negative
    q, ns = number_at(p)
    # More digits may not fit into the number, so they are counted before it is looked at.
    if q == p or q - p > 16 or ns >= LIMIT_US or (q - p > 1 and byte(p) == ZERO):
        return -p
    ns *= 1000
    if byte(q) == POINT:
        p, q = q, digits_end(q + 1)
        if q < 0 or (negative and q - p > 4):
            return -max(p, -q)
        for place, unit in enumerate((100, 10, 1)):
            if p + 1 + place < q:
                ns += unit * (byte(p + 1 + place) - ZERO)
        ns += q - p > 4 and byte(p + 4) >= ZERO + 5
    store(at, -ns if negative else ns)
    return q


@compiled
def store_integer(p: int, at: int) -> int:
    """Store the integer at p."""
    negative = byte(p) == MINUS
    p += negative
    q, number = number_at(p)
    if q == p or q - p > DIGITS or ((negative or q - p > 1) and byte(p) == ZERO):
        return -p
    store(at, -number if negative else number)
    return q


@compiled
def store_product(p: int, at: int) -> int:
    """Store the product of the list of positive integers whose bracket is at p."""
    product = 1
    c = COMMA
    while c == COMMA:
        if product >= _FACTOR:
            return -p
        p = store_integer(spaces_end(p + 1), at)
        if p < 0:
            return p
        factor = load(at)
        if not 0 < factor < _FACTOR:
            return -p
        product *= factor
        p = spaces_end(p)
        c = byte(p)
    store(at, product)
    return p + 1 if c == CLOSE_LIST else -p


@compiled
def store_word(p: int, end: int, at: int, base: int, table: int) -> int:
    """Store the id of the string at p, counted from `base`."""
    close = string_end(p + 1, end)
    if close < 0:
        return close
    number = interned(p + 1, close, table)
    if number < 0:
        return number
    store(at, base + number)
    return close + 1


@compiled
def store_text(p: int, end: int, at: int, table: int) -> int:
    """Store the id of the JSON text at p. Only new texts are checked byte for byte."""
    c = byte(p)
    q = nest_end(p, end) if c in (OPEN, OPEN_LIST) else plain_end(p, end)
    if q < 0:
        return q
    mixed = hashed(p, q)
    number = find(p, q, mixed, table)
    if number < 0:
        checked = value_end(p, end)
        if checked != q:
            return min(checked, -p)
        number = put(p, q, mixed, -number - 1, table)
        if number < 0:
            return number
    store(at, number)
    return q
