"""Which event of a thread lies in which: parents, innermost and outermost, for tables of properly nested events."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from perfdoctor.trace.intervals import Int64Array
from perfdoctor.trace.model import NONE, BoolArray, Int32Array

AnyInts: TypeAlias = Int64Array | Int32Array


def parents(start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array) -> Int32Array:
    """For each row the row of the smallest event around it on the same thread, or -1.

    Of events with the same start the longer is around the shorter, of equal ones the first row around the next; one
    without length lies in what begins before or with it. Events that overlap without nesting, which rounding produces
    in real files, get a parent that contains their start or none.
    """
    order = np.lexsort((-end_ns, start_ns, thread))
    start, lane = start_ns[order], thread[order]
    end = np.maximum(end_ns[order], start + 1)  # an event without length still lies in its parent
    first = np.searchsorted(lane, lane, side="left")
    found = _latest_open(end, np.arange(len(order)), first, start)
    parent = np.full(len(order), NONE, np.int32)
    parent[order] = _rows(order, found)
    return parent


def innermost(
    start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array, at_ns: Int64Array, at_thread: Int32Array
) -> Int32Array:
    """For each instant and thread the row of the smallest event that contains it, or -1; the end is outside."""
    order = np.lexsort((-end_ns, start_ns, thread))
    start, lane = start_ns[order], thread[order]
    first = np.searchsorted(lane, at_thread, side="left")
    begun = rows_up_to(at_thread, at_ns, lane, start)
    return _rows(order, _latest_open(end_ns[order], begun, first, at_ns))


def rows_up_to(keys: AnyInts, start_ns: Int64Array, of_keys: AnyInts, of_start_ns: Int64Array) -> Int64Array:
    """For each pair of key and start how many rows of another table (`of_...`, any order) have it or a smaller one."""
    asked = np.repeat([False, True], [len(of_keys), len(keys)])
    order = np.lexsort((asked, np.concatenate((of_start_ns, start_ns)), np.concatenate((of_keys, keys))))
    counted = np.empty(len(order), np.int64)
    counted[order] = np.cumsum(~asked[order])
    return counted[len(of_keys) :]


def _latest_open(end: Int64Array, before: Int64Array, first: Int64Array, at: Int64Array) -> Int64Array:
    """For each query the last position in ``[first, before)`` whose end lies after the instant `at`, or -1.

    A binary descent over the largest ends of blocks: the cost is n log n whatever the depth, also for events that all
    overlap, where a walk from event to event would take n squared.
    """
    position = before - 1
    reach = int((before - first).max()) if len(before) else 0
    largest = [end]
    while 1 << len(largest) <= reach:
        below, step = largest[-1], 1 << (len(largest) - 1)
        wider = below.copy()
        np.maximum(below[step:], below[:-step], out=wider[step:])
        largest.append(wider)
    for level in range(len(largest) - 1, -1, -1):
        # A block may reach back over `first` into another thread; the descent that ends there has found none.
        open_yet = position >= first
        skip = open_yet & (largest[level][np.where(open_yet, position, 0)] <= at) if len(end) else open_yet
        position = np.where(skip, position - (1 << level), position)
    result: Int64Array = np.where(position >= first, position, NONE)
    return result


def _rows(order: Int64Array, found: Int64Array) -> Int32Array:
    if not len(order):
        return np.full(len(found), NONE, np.int32)
    return np.where(found >= 0, order[found], NONE).astype(np.int32)


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
