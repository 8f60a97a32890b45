"""Which event lies in which, by a stack for each thread: one pass over events in the order of time."""

from __future__ import annotations

from perfdoctor.trace.scanner.intrinsics import compiled, four, load, put_four
from perfdoctor.trace.scanner.layout import NEST

(
    _AT_START, _AT_END, _AT_LANE, _AT_COUNT, _AT_PARENT, _AT_TOP, _AT_ASKED, _AT_ASKED_LANE, _AT_QUESTIONS, _AT_FOUND,
) = range(0, 8 * len(NEST), 8)  # fmt: skip
_SIGN = 1 << 31


@compiled
def nest(t: int) -> int:
    """Find the parent of each event, and the innermost event at each instant that is asked for.

    The column of parents holds the stacks: below an event lies its parent, and an event that has ended never comes
    back. So there is no other memory, and nothing is looked at twice.

    Args:
        t: Address of int64 numbers in the order of `layout.NEST`.
    """
    row = 0
    for question in range(load(t + _AT_QUESTIONS)):
        now = load(load(t + _AT_ASKED) + 8 * question)
        while row < load(t + _AT_COUNT) and load(load(t + _AT_START) + 8 * row) <= now:
            row = _begun(row, t)
        top = load(t + _AT_TOP) + 4 * four(load(t + _AT_ASKED_LANE) + 4 * question)
        around = _open(_row(top), now, 0, t)
        put_four(top, around)
        put_four(load(t + _AT_FOUND) + 4 * question, around)
    while row < load(t + _AT_COUNT):
        row = _begun(row, t)
    return 0


@compiled
def _begun(row: int, t: int) -> int:
    """Put an event on the stack of its thread; the next row."""
    start = load(load(t + _AT_START) + 8 * row)
    top = load(t + _AT_TOP) + 4 * four(load(t + _AT_LANE) + 4 * row)
    # An event without length still lies in its parent, and so does what begins with it.
    put_four(load(t + _AT_PARENT) + 4 * row, _open(_row(top), start, 1, t))
    put_four(top, row)
    return row + 1


@compiled
def _open(row: int, now: int, least: int, t: int) -> int:
    """The first row from this one down the stack that has not ended; `least` is the shortest length that counts."""
    while row >= 0:
        start, end = load(load(t + _AT_START) + 8 * row), load(load(t + _AT_END) + 8 * row)
        if max(end, start + least) > now:
            break
        row = _row(load(t + _AT_PARENT) + 4 * row)
    return row


@compiled
def _row(address: int) -> int:
    """The row at an address, or -1."""
    return (four(address) ^ _SIGN) - _SIGN
