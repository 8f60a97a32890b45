"""Which event of a thread lies in which: parents, innermost and outermost, for tables of properly nested events."""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.intervals import Int64Array
from perfdoctor.trace.model import NONE, BoolArray, Int32Array


def parents(start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array) -> Int32Array:
    """For each row the row of the smallest event around it on the same thread, or -1.

    Works level by level (a row's parent is the latest earlier row one level up), so the cost is rows x depth, all in
    numpy. Events that
    overlap without nesting, which rounding produces in real files, get a parent that contains their start or none.
    """
    n = len(start_ns)
    parent = np.full(n, NONE, np.int32)
    if not n:
        return parent
    order = np.lexsort((-end_ns, start_ns, thread))
    start, lane = start_ns[order], thread[order]
    end = np.maximum(end_ns[order], start + 1)  # an event without length still lies in its parent
    depth = _depths(start, end, lane)
    position = np.arange(n)
    for level in range(1, int(depth.max()) + 1):
        above = np.where(depth == level - 1, position, NONE)
        last = np.maximum.accumulate(above)  # of the level above, the latest row at or before each position
        rows = position[depth == level]
        found = last[rows]
        fits = (found >= 0) & (lane[found] == lane[rows]) & (end[found] > start[rows])
        parent[order[rows[fits]]] = order[found[fits]]
    return parent


def _depths(start: Int64Array, end: Int64Array, lane: Int32Array) -> Int64Array:
    """How many earlier events of its lane are open at each start.

    The input is sorted by lane, start, then longest first.
    """
    depth = np.zeros(len(start), np.int64)
    edges = np.flatnonzero(np.diff(lane)) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(start)], strict=True):
        closed = np.searchsorted(np.sort(end[low:high]), start[low:high], side="right")
        depth[low:high] = np.maximum(np.arange(high - low) - closed, 0)
    return depth


def innermost(
    start_ns: Int64Array,
    end_ns: Int64Array,
    thread: Int32Array,
    parent: Int32Array,
    at_ns: Int64Array,
    at_thread: Int32Array,
) -> Int32Array:
    """For each instant and thread the row of the smallest event that contains it, or -1.

    `start_ns` must be sorted within each thread. Climbs from the latest event that has begun, all instants at once.
    """
    found = np.full(len(at_ns), NONE, np.int32)
    order = np.lexsort((-end_ns, start_ns, thread))
    lanes = thread[order]
    for lane in np.unique(at_thread).tolist():
        asked = np.flatnonzero(at_thread == lane)
        low, high = np.searchsorted(lanes, [lane, lane + 1])
        rows = order[low:high]
        i = np.searchsorted(start_ns[rows], at_ns[asked], side="right") - 1
        found[asked] = np.where(i >= 0, rows[np.maximum(i, 0)] if len(rows) else NONE, NONE)
    while True:
        past = (found >= 0) & (end_ns[found] <= at_ns) if len(end_ns) else np.zeros(len(found), bool)
        if not past.any():
            return found
        found[past] = parent[found[past]]


def outermost(parent: Int32Array, rows: Int32Array, keep: BoolArray | None = None) -> Int32Array:
    """For each row its topmost ancestor (itself when it has none).

    `keep` limits the climb to rows for which it is True.
    """
    top = rows.copy()
    while True:
        up = np.where(top >= 0, parent[top], NONE)
        rises = up >= 0
        if keep is not None:
            rises &= keep[up]
        if not rises.any():
            return top
        top[rises] = up[rises]
