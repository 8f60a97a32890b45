"""Interval arithmetic on int64 nanoseconds.

A set of intervals is an int64 array of shape (n, 2), half-open ``[start, end)``, sorted, disjoint, not touching, none
empty. All functions here return such sets and expect them; `union` makes one from any starts and ends. They are
vectorised and take O(n log n).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import BoolArray, Int64Array

Intervals: TypeAlias = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), np.int64)
EMPTY.flags.writeable = False


def union(starts: Int64Array, ends: Int64Array) -> Intervals:
    """The instants covered by at least one of some intervals, which may overlap and stand in any order.

    Intervals that are empty or end before they start cover nothing.
    """
    covers = ends > starts
    if not covers.all():
        starts, ends = starts[covers], ends[covers]
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    last_end = np.maximum.accumulate(ends)
    breaks = np.flatnonzero(starts[1:] > last_end[:-1])
    joined = np.empty((len(breaks) + 1, 2), np.int64)
    joined[0, 0], joined[-1, 1] = starts[0], last_end[-1]
    joined[1:, 0], joined[:-1, 1] = starts[breaks + 1], last_end[breaks]
    return joined


def union_of(sets: Iterable[Intervals]) -> Intervals:
    """The union of several sets."""
    filled = [each for each in sets if len(each)]
    if len(filled) < 2:
        return filled[0] if filled else EMPTY
    every = np.concatenate(filled)
    return union(every[:, 0], every[:, 1])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The instants that lie in both sets."""
    if len(b) < len(a):
        a, b = b, a  # the fewer are looked up among the more
    if len(a) < 2:
        return clip(b, int(a[0, 0]), int(a[0, 1])) if len(a) else EMPTY
    return intersect_rows(a, b)[0]


def intersect_rows(a: Intervals, b: Intervals) -> tuple[Intervals, Int64Array, Int64Array]:
    """What each interval of `a` has in common with each of `b`, and their rows in `a` and in `b`.

    Unlike those of a set, the intervals of either list may touch, so that each keeps its own row::

        a 0-10 10-20    b 5-15    ->    5-10 (row 0 of a, 0 of b), 10-15 (1, 0)
    """
    # Each interval of `a` overlaps the intervals ``[low, high)`` of `b`.
    low = np.searchsorted(b[:, 1], a[:, 0], side="right")
    high = np.searchsorted(b[:, 0], a[:, 1], side="left")
    count = np.maximum(high - low, 0)
    if not count.any():
        return EMPTY, np.empty(0, np.int64), np.empty(0, np.int64)
    # One row for each pair, which is cut to what both have.
    until = np.cumsum(count)
    partner = np.arange(until[-1]) + np.repeat(low - (until - count), count)
    row = np.repeat(np.arange(len(a)), count)
    both: Intervals = b.take(partner, axis=0)
    np.maximum(both[:, 0], a[row, 0], out=both[:, 0])
    np.minimum(both[:, 1], a[row, 1], out=both[:, 1])
    return both, row, partner


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The instants of `a` that do not lie in `b`."""
    if not len(a) or not len(b):
        return a
    return intersect(a, gaps(b, int(min(a[0, 0], b[0, 0])), int(max(a[-1, 1], b[-1, 1]))))


def gaps(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The instants of ``[start_ns, end_ns)`` that do not lie in `a`."""
    if end_ns <= start_ns:
        return EMPTY
    a = _overlapping(a, start_ns, end_ns)
    between = np.empty((len(a) + 1, 2), np.int64)
    between[0, 0], between[-1, 1] = start_ns, end_ns
    between[1:, 0], between[:-1, 1] = a[:, 1], a[:, 0]
    # Between two intervals there is always a gap; before the first and after the last there need not be one.
    return between[int(between[0, 1] <= start_ns) : len(between) - int(between[-1, 0] >= end_ns)]


def clip(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The part of `a` within ``[start_ns, end_ns)``."""
    if end_ns <= start_ns:
        return EMPTY
    inside = _overlapping(a, start_ns, end_ns).copy()
    if len(inside):
        inside[0, 0], inside[-1, 1] = max(start_ns, int(inside[0, 0])), min(end_ns, int(inside[-1, 1]))
    return inside


def _overlapping(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The intervals of `a` that overlap ``[start_ns, end_ns)``, uncut."""
    return a[np.searchsorted(a[:, 1], start_ns, side="right") : np.searchsorted(a[:, 0], end_ns, side="left")]


def window(start_ns: int, end_ns: int) -> Intervals:
    """The one interval ``[start_ns, end_ns)`` as a set; empty when it has no length."""
    return np.array([[start_ns, end_ns]], np.int64) if end_ns > start_ns else EMPTY


def total(a: Intervals) -> int:
    """The length of a set in nanoseconds."""
    return int((a[:, 1] - a[:, 0]).sum())


def shorten(a: Intervals, total_ns: int) -> Intervals:
    """The intervals, each cut at its end to the same share, so that they have at most this length together."""
    whole_ns = total(a)
    if whole_ns <= total_ns:
        return a
    # Rounded are the sums: rounding each length would lose up to a nanosecond an interval.
    ends_ns = np.cumsum(a[:, 1] - a[:, 0])
    kept_ns: Int64Array = np.append(0, np.round(ends_ns * (total_ns / whole_ns))).astype(np.int64)
    return union(a[:, 0], a[:, 0] + kept_ns[1:] - kept_ns[:-1])


def overlap(starts: Int64Array, ends: Int64Array, a: Intervals) -> Int64Array:
    """For each interval of a list (any order, overlaps allowed) the nanoseconds of it that lie in the set `a`."""
    if not len(a):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))

    def covered_until(t: Int64Array) -> Int64Array:
        begun = np.searchsorted(a[:, 0], t, side="right")
        last = np.maximum(begun, 1) - 1
        inside = np.minimum(t, a[last, 1]) - a[last, 0]
        return np.where(begun > 0, before[last] + inside, 0)

    result: Int64Array = np.maximum(covered_until(ends) - covered_until(starts), 0)
    return result


def contains(a: Intervals, t: Int64Array) -> BoolArray:
    """For each instant whether it lies in the set."""
    # Behind a start and before the next end an odd number of starts and ends lies at or before an instant.
    inside: BoolArray = np.searchsorted(a.ravel(), t, side="right") % 2 == 1
    return inside


def partition(within: Intervals, layers: Iterable[Intervals]) -> list[Intervals]:
    """Assign every instant of `within` to the first layer that covers it.

    Returns:
        One set for each layer, and a last one for the instants that no layer covers. The sets are disjoint, and their
        lengths add up to `total(within)` exactly: so the account adds up.
    """
    parts: list[Intervals] = []
    rest = within
    for layer in layers:
        parts.append(intersect(rest, layer))
        rest = subtract(rest, layer)
    parts.append(rest)
    return parts
