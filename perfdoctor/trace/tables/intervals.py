"""Interval arithmetic on int64 nanoseconds: the only place for it.

A set of intervals is an int64 array of shape (n, 2), half-open ``[start, end)``, sorted, disjoint, not touching, none
empty. Everything here returns such sets and expects them; `union` makes one from any starts and ends. All of it is
vectorised: O(n log n).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import Int64Array, IntArray

Intervals: TypeAlias = npt.NDArray[np.int64]


EMPTY: Intervals = np.empty((0, 2), np.int64)
EMPTY.flags.writeable = False


_MANY = 16
"""For one that is looked up among so many a search is cheaper than merging."""


def _ascending(values: IntArray) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def count_before(of: IntArray, at: IntArray, side: Literal["left", "right"] = "left") -> Int64Array:
    """For each instant how many of ascending ones lie before it, with side "right" also at it: `np.searchsorted`.

    Instants that ascend, too, are merged with them, which takes a fifth of searching for each.
    """
    if len(at) * _MANY < len(of) or not _ascending(at):
        found: Int64Array = np.searchsorted(of, at, side=side)
        return found
    if side == "left":
        mine = np.argsort(np.concatenate((at, of)), kind="stable") < len(at)
    else:
        mine = np.argsort(np.concatenate((of, at)), kind="stable") >= len(of)
    return np.flatnonzero(mine) - np.arange(len(at))


def union(starts: Int64Array, ends: Int64Array) -> Intervals:
    """The instants covered by at least one of the given intervals, in any order.

    Empty and negative ones cover nothing.
    """
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    if not _ascending(starts):  # as those of a table are
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    breaks = np.flatnonzero(starts[1:] > reach[:-1])
    covered = np.empty((len(breaks) + 1, 2), np.int64)
    covered[0, 0], covered[-1, 1] = starts[0], reach[-1]
    covered[1:, 0], covered[:-1, 1] = starts[breaks + 1], reach[breaks]
    return covered


def union_of(sets: Iterable[Intervals]) -> Intervals:
    """The union of several sets."""
    together = [s for s in sets if len(s)]
    if not together:
        return EMPTY
    if len(together) == 1:
        return together[0]
    starts, ends = (np.concatenate([s[:, side] for s in together]) for side in (0, 1))
    return union(starts, ends)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The instants that lie in both sets."""
    if len(b) < len(a):
        a, b = b, a  # the fewer are looked up among the more
    if len(a) < 2:
        return clip(b, int(a[0, 0]), int(a[0, 1])) if len(a) else EMPTY
    low = count_before(b[:, 1], a[:, 0], side="right")
    high = count_before(b[:, 0], a[:, 1], side="left")
    count = np.maximum(high - low, 0)
    if not count.any():
        return EMPTY
    until = np.cumsum(count)
    partner = np.arange(until[-1]) + np.repeat(low - (until - count), count)
    both: Intervals = b.take(partner, axis=0)
    np.maximum(both[:, 0], np.repeat(a[:, 0], count), out=both[:, 0])
    np.minimum(both[:, 1], np.repeat(a[:, 1], count), out=both[:, 1])
    return both


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The instants of `a` that do not lie in `b`."""
    if not len(a) or not len(b):
        return a
    return intersect(a, gaps(b, int(min(a[0, 0], b[0, 0])), int(max(a[-1, 1], b[-1, 1]))))


def gaps(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The instants of ``[start_ns, end_ns)`` that do not lie in `a`."""
    if end_ns <= start_ns:
        return EMPTY
    a = _reaching_into(a, start_ns, end_ns)
    edges = np.empty((len(a) + 1, 2), np.int64)
    edges[0, 0], edges[-1, 1] = start_ns, end_ns
    edges[1:, 0], edges[:-1, 1] = a[:, 1], a[:, 0]
    # Between two intervals there is always a gap; before the first and after the last there need not be one.
    return edges[int(edges[0, 1] <= start_ns) : len(edges) - int(edges[-1, 0] >= end_ns)]


def clip(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The part of `a` within ``[start_ns, end_ns)``."""
    if end_ns <= start_ns:
        return EMPTY
    inside = _reaching_into(a, start_ns, end_ns).copy()
    if len(inside):
        inside[0, 0], inside[-1, 1] = max(start_ns, int(inside[0, 0])), min(end_ns, int(inside[-1, 1]))
    return inside


def _reaching_into(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The intervals of `a` of which some lies within ``[start_ns, end_ns)``, whole."""
    return a[np.searchsorted(a[:, 1], start_ns, side="right") : np.searchsorted(a[:, 0], end_ns, side="left")]


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
        i = count_before(a[:, 0], t, side="right")
        inside = np.minimum(t, a[np.maximum(i, 1) - 1, 1]) - a[np.maximum(i, 1) - 1, 0]
        return np.where(i > 0, before[np.maximum(i, 1) - 1] + inside, 0)

    result: Int64Array = np.maximum(covered_until(ends) - covered_until(starts), 0)
    return result


def contains(a: Intervals, t: Int64Array) -> npt.NDArray[np.bool_]:
    """For each instant whether it lies in the set."""
    if not len(a):
        return np.zeros(len(t), bool)
    if len(a) * _MANY < len(t) and _ascending(t):
        inside = np.zeros(len(t), bool)
        for first, last in zip(np.searchsorted(t, a[:, 0]).tolist(), np.searchsorted(t, a[:, 1]).tolist(), strict=True):
            inside[first:last] = True
        return inside
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
