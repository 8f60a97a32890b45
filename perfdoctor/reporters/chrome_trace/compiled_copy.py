"""Copies the events of a list from one place in memory to another, with other process ids, times and ids of arrows.

Only plain numbers are changed here; what is more than that stops the copying before its event, and is for Python.
"""

from __future__ import annotations

from perfdoctor.trace.scanner.intrinsics import byte, compiled, four, load, store
from perfdoctor.trace.scanner.json_grammar import (
    CLOSE,
    CLOSE_LIST,
    COMMA,
    DIGITS,
    OPEN,
    POINT,
    QUOTE,
    ZERO,
    digits_end,
    key_end,
    printed_end,
    spaces_end,
    value_end,
    value_of,
)

CONTROL = ("text", "stop", "out", "next", "moved", "changes", "offset_ns", "pid_shift", "id_shift", "copied")
"""The control block: where the text is and where it stops, where it goes; the number of the next element; the address
of the ascending numbers of those that Python wants, with a last one that none reaches; whether anything is changed,
and what is added to times, process ids and ids. After a call `text` and `out` say how far it came."""
MORE, CLOSED, ODD = -1, -2, -3
"""Why it stopped: at the end of the text, at the bracket that closes the list, at an element that is for Python."""

(
    _AT_TEXT, _AT_STOP, _AT_OUT, _AT_NEXT, _AT_MOVED, _AT_CHANGES, _AT_OFFSET, _AT_PID, _AT_ID, _AT_COPIED,
) = range(0, 8 * len(CONTROL), 8)  # fmt: skip
_NEAR = 16  # what fails this close to the end of the text may go on beyond it
_PH, _TS, _ID, _PI, _D, _META = 0x6870, 0x7374, 0x6469, 0x6970, 100, 77  # parts of keys and values, as numbers
_MOST_PID = 100_000_000
_MOST_DIGITS = 16  # of microseconds: with three more they fit into int64


@compiled
def _copy_until(p: int, t: int) -> int:
    """Copy what has not been copied of the text before p. Up to seven bytes more are written, and overwritten later."""
    begin, out = load(t + _AT_COPIED), load(t + _AT_OUT)
    for at in range(0, p - begin, 8):
        store(out + at, load(begin + at))
    store(t + _AT_OUT, out + (p - begin))
    store(t + _AT_COPIED, p)
    return p


@compiled
def _print(number: int, least: int, t: int) -> int:
    """Write a number that is not negative, with leading zeros up to `least` digits."""
    unit, count = 1, 1
    while count < least or number // unit >= 10:
        unit *= 10
        count += 1
    out = load(t + _AT_OUT)
    while unit > 0:
        store(out, ZERO + number // unit % 10)
        out += 1
        unit //= 10
    store(t + _AT_OUT, out)
    return 0


@compiled
def _whole(p: int, end: int) -> int:
    """The number whose digits are all that is between two addresses; -1 where that is something else."""
    if end - p > DIGITS or p == end:
        return -1
    number = 0
    for at in range(p, end):
        digit = byte(at) - ZERO
        if not 0 <= digit <= 9:
            return -1
        number = 10 * number + digit
    return number


@compiled
def _shift_number(p: int, end: int, by: int, limit: int, t: int) -> int:
    """Write the number at p plus `by`; ODD where it is no plain one below the limit."""
    number = _whole(p, end)
    if number < 0 or number >= limit:
        return ODD
    _copy_until(p, t)
    _print(number + by, 1, t)
    store(t + _AT_COPIED, end)
    return 0


@compiled
def _shift_time(p: int, end: int, t: int) -> int:
    """Write the microseconds at p plus the offset; digits below a nanosecond stay."""
    whole_end = digits_end(p)
    if whole_end < 0 or whole_end - p > _MOST_DIGITS:
        return ODD
    ns = 1000 * _whole(p, whole_end)
    at = whole_end
    if byte(at) == POINT:
        at += 1
        for unit in (100, 10, 1):
            digit = byte(at) - ZERO
            if 0 <= digit <= 9:
                ns += unit * digit
                at += 1
    rest = at
    while 0 <= byte(rest) - ZERO <= 9:
        rest += 1
    ns += load(t + _AT_OFFSET)
    if rest != end or ns < 0:
        return ODD
    _copy_until(p, t)
    _print(ns // 1000, 1, t)
    store(load(t + _AT_OUT), POINT)
    store(t + _AT_OUT, load(t + _AT_OUT) + 1)
    _print(ns % 1000, 3, t)
    store(t + _AT_COPIED, at)
    return 0


@compiled
def _change(key: int, length: int, p: int, end: int, t: int) -> int:
    """Write the value at p as it is to be, if it is one that changes; 0, or ODD."""
    letters = four(key)
    if length == 2 and letters & 0xFFFF == _TS:
        return _shift_time(p, end, t)
    if length == 2 and letters & 0xFFFF == _ID:
        return _shift_number(p, end, load(t + _AT_ID), 1 << 52, t)
    if length == 3 and letters & 0xFFFFFF == _PI | _D << 16:
        return _shift_number(p, end, load(t + _AT_PID), _MOST_PID, t)
    if length == 2 and letters & 0xFFFF == _PH:
        return ODD if byte(p) == QUOTE and byte(p + 1) == _META else 0
    # bind_id and id2 are ids too, and an escape may spell any of these.
    return ODD if length > 2 and (letters & 0xFFFFFF == _ID | 50 << 16 or letters == 0x646E6962) else 0


@compiled
def _value_end(p: int, end: int) -> int:
    """The end of the value at p."""
    q = value_end(p, end)
    if q > 0 or -q + _NEAR >= end:
        return q
    printed = printed_end(p)
    return printed if printed > 0 else q


@compiled
def _event(p: int, t: int) -> int:
    """Copy the event whose brace is at p, or leave that for later where nothing in it changes; returns its end."""
    stop, changes = load(t + _AT_STOP), load(t + _AT_CHANGES)
    p = spaces_end(p + 1)
    if byte(p) == CLOSE:
        return p + 1
    while True:
        close = key_end(p, stop)
        value = value_of(close) if close > 0 else close
        end = _value_end(value, stop) if value > 0 else value
        if end < 0:
            return end
        if changes and _change(p + 1, close - p - 1, value, end, t) == ODD:
            return ODD
        p = spaces_end(end)
        if byte(p) == CLOSE:
            return p + 1
        if byte(p) != COMMA:
            return -p
        p = spaces_end(p + 1)


@compiled
def _run(t: int) -> int:
    """Copy events until something stops it, which is returned."""
    p, stop = load(t + _AT_TEXT), load(t + _AT_STOP)
    while True:
        p = spaces_end(p)
        c = byte(p)
        if c == COMMA:
            p += 1
            continue
        stopped = CLOSED if c == CLOSE_LIST else ODD
        if c != OPEN or load(t + _AT_NEXT) == load(load(t + _AT_MOVED)):
            break
        copied, out = load(t + _AT_COPIED), load(t + _AT_OUT)
        end = _event(p, t)
        # What follows the number at the end of the text is not known, and neither is what follows an event.
        if end < 0 or end >= stop:
            store(t + _AT_COPIED, copied)
            store(t + _AT_OUT, out)
            stopped = MORE if end >= stop or (end < ODD and -end + _NEAR >= stop) else ODD
            break
        p = end
        store(t + _AT_NEXT, load(t + _AT_NEXT) + 1)
    if p >= stop:
        p, stopped = stop, MORE
    _copy_until(p, t)
    store(t + _AT_TEXT, p)
    return stopped


@compiled
def enter(control: int, _b: int, _c: int, _d: int, _e: int, _f: int) -> int:
    """The one function that is called from outside; `control` is the address of numbers in the order of `CONTROL`."""
    return _run(control)
