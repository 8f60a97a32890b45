"""Interval arithmetic on int64 nanoseconds: the only place for it.

A set of intervals is an int64 array of shape (n, 2), half-open ``[start, end)``, sorted, disjoint, not touching, none
empty. Everything here returns such sets and expects them; `union` makes one from any starts and ends. All of it is
vectorised: O(n log n).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
Intervals: TypeAlias = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), np.int64)
EMPTY.flags.writeable = False


def union(starts: Int64Array, ends: Int64Array) -> Intervals:
    """The instants covered by at least one of the given intervals, in any order.

    Empty and negative ones cover nothing.
    """
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.empty(len(starts), bool)
    first[0] = True
    first[1:] = starts[1:] > reach[:-1]
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:], len(starts)) - 1
    return np.column_stack((starts[heads], reach[tails]))


def union_of(sets: Iterable[Intervals]) -> Intervals:
    """The union of several sets."""
    together = [s for s in sets if len(s)]
    if not together:
        return EMPTY
    if len(together) == 1:
        return together[0]
    rows = np.concatenate(together)
    return union(rows[:, 0], rows[:, 1])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The instants that lie in both sets."""
    if not len(a) or not len(b):
        return EMPTY
    low = np.searchsorted(b[:, 1], a[:, 0], side="right")
    high = np.searchsorted(b[:, 0], a[:, 1], side="left")
    count = np.maximum(high - low, 0)
    if not count.sum():
        return EMPTY
    rows = np.repeat(np.arange(len(a)), count)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    partner = low[rows] + within
    starts = np.maximum(a[rows, 0], b[partner, 0])
    ends = np.minimum(a[rows, 1], b[partner, 1])
    return np.column_stack((starts, ends))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The instants of `a` that do not lie in `b`."""
    if not len(a) or not len(b):
        return a
    return intersect(a, gaps(b, int(min(a[0, 0], b[0, 0])), int(max(a[-1, 1], b[-1, 1]))))


def gaps(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The instants of ``[start_ns, end_ns)`` that do not lie in `a`."""
    edges = np.empty((len(a) + 1, 2), np.int64)
    edges[0, 0], edges[-1, 1] = start_ns, end_ns
    edges[1:, 0], edges[:-1, 1] = a[:, 1], a[:, 0]
    np.clip(edges, start_ns, max(start_ns, end_ns), out=edges)
    return edges[edges[:, 1] > edges[:, 0]]


def clip(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The part of `a` within ``[start_ns, end_ns)``."""
    return intersect(a, window(start_ns, end_ns))


def window(start_ns: int, end_ns: int) -> Intervals:
    """The one interval ``[start_ns, end_ns)`` as a set; empty when it has no length."""
    return np.array([[start_ns, end_ns]], np.int64) if end_ns > start_ns else EMPTY


def total(a: Intervals) -> int:
    """The length of a set in nanoseconds."""
    return int((a[:, 1] - a[:, 0]).sum())


def overlap(starts: Int64Array, ends: Int64Array, a: Intervals) -> Int64Array:
    """For each interval of a list (any order, overlaps allowed) the nanoseconds of it that lie in the set `a`."""
    if not len(a):
        return np.zeros(len(starts), np.int64)
    before = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))

    def covered_until(t: Int64Array) -> Int64Array:
        i = np.searchsorted(a[:, 0], t, side="right")
        inside = np.minimum(t, a[np.maximum(i, 1) - 1, 1]) - a[np.maximum(i, 1) - 1, 0]
        return np.where(i > 0, before[np.maximum(i, 1) - 1] + inside, 0)

    result: Int64Array = np.maximum(covered_until(ends) - covered_until(starts), 0)
    return result


def contains(a: Intervals, t: Int64Array) -> npt.NDArray[np.bool_]:
    """For each instant whether it lies in the set."""
    if not len(a):
        return np.zeros(len(t), bool)
    i = np.searchsorted(a[:, 0], t, side="right") - 1
    result: npt.NDArray[np.bool_] = (i >= 0) & (t < a[np.maximum(i, 0), 1])
    return result


def partition(within: Intervals, layers: Iterable[Intervals]) -> list[Intervals]:
    """Give every instant of `within` to the first layer that covers it.

    Returns one set a layer and a last one for what no layer covers. They are disjoint and their lengths add up to
    `total(within)`
    exactly: this is what makes the account add up.
    """
    parts: list[Intervals] = []
    rest = within
    for layer in layers:
        parts.append(intersect(rest, layer))
        rest = subtract(rest, layer)
    parts.append(rest)
    return parts
