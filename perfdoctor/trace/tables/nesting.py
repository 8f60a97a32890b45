"""Which event of a thread lies in which: parents, innermost and outermost, for tables of properly nested events."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.scanner import scanner_code as native
from perfdoctor.trace.scanner.layout import NEST, NESTING
from perfdoctor.trace.tables.time_order import in_order, time_order

_MOST_LANES = 1 << 20


def parents(start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array) -> Int32Array:
    """For each row the row of the smallest event around it on the same thread, or -1.

    Of events with the same start the longer is around the shorter, of equal ones the first row around the next; one
    without length lies in what begins before or with it. Events that overlap without nesting, which rounding produces
    in real files, get a parent that contains their start or none.
    """
    stacked = _by_stack(start_ns, end_ns, thread, start_ns[:0], thread[:0])
    if stacked is not None:
        return stacked[0]
    order = _by_thread(start_ns, end_ns, thread)
    start, lane = start_ns[order], thread[order]
    end = np.maximum(end_ns[order], start + 1)  # an event without length still lies in its parent
    first = np.searchsorted(lane, lane, side="left")
    found = _latest_open(end, first, np.arange(len(order)), first, start)
    parent = np.full(len(order), NONE, np.int32)
    parent[order] = _rows(order, found)
    return parent


def innermost(
    start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array, at_ns: Int64Array, at_thread: Int32Array
) -> Int32Array:
    """For each instant and thread the row of the smallest event that contains it, or -1; the end is outside."""
    stacked = _by_stack(start_ns, end_ns, thread, at_ns, at_thread)
    if stacked is not None:
        return stacked[1]
    order = _by_thread(start_ns, end_ns, thread)
    start, lane = start_ns[order], thread[order]
    first = np.searchsorted(lane, at_thread, side="left")
    begun = rows_up_to(at_thread, at_ns, lane, start)
    return _rows(order, _latest_open(end_ns[order], np.searchsorted(lane, lane, side="left"), begun, first, at_ns))


def _by_stack(
    start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array, at_ns: Int64Array, at_thread: Int32Array
) -> tuple[Int32Array, Int32Array] | None:
    """Parents and innermost at once with the compiled code, some ten times as fast as the search over blocks.

    None where that is not loaded, as for a small trace, or where the threads are not numbered from 0.
    """
    lanes = np.concatenate((thread, at_thread))
    if not native.is_loaded() or (len(lanes) and not 0 <= int(lanes.min()) <= int(lanes.max()) < _MOST_LANES):
        return None
    rows = time_order(start_ns, end_ns)
    asked = None if (at_ns[1:] >= at_ns[:-1]).all() else np.argsort(at_ns, kind="stable")
    parent, found = np.empty(len(start_ns), np.int32), np.empty(len(at_ns), np.int32)
    top = np.full(1 + int(lanes.max(initial=0)), NONE, np.int32)
    columns = {
        "start": _taken(start_ns, rows, np.int64), "end": _taken(end_ns, rows, np.int64),
        "lane": _taken(thread, rows, np.int32), "parent": parent, "top": top, "asked": _taken(at_ns, asked, np.int64),
        "asked_lane": _taken(at_thread, asked, np.int32), "found": found,
    }  # fmt: skip
    told = {name: column.ctypes.data for name, column in columns.items()}
    told |= {"count": len(parent), "questions": len(found)}
    control = np.array([told[name] for name in NEST], np.int64)
    native.enter(NESTING, control.ctypes.data)
    if rows is not None:
        found = _rows(rows, found)
        parent[rows] = _rows(rows, parent)
    if asked is not None:
        found[asked] = found.copy()
    return parent, found


def _taken(column: IntArray, rows: Int64Array | None, kind: type[np.signedinteger[Any]]) -> IntArray:
    """A column in another order, as it must lie in memory."""
    return np.ascontiguousarray(column if rows is None else column[rows], kind)


def rows_up_to(keys: IntArray, start_ns: Int64Array, of_keys: IntArray, of_start_ns: Int64Array) -> Int64Array:
    """For each pair of key and start how many rows of another table (`of_...`, any order) have it or a smaller one."""
    asked = np.repeat([False, True], [len(of_keys), len(keys)])
    order = np.lexsort((asked, np.concatenate((of_start_ns, start_ns)), np.concatenate((of_keys, keys))))
    counted = np.empty(len(order), np.int64)
    counted[order] = np.cumsum(~asked[order])
    return counted[len(of_keys) :]


def _by_thread(start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array) -> Int64Array:
    """The order by thread, then start, longest first."""
    # Tables are sorted by start already: then one key is left to sort by.
    if in_order(start_ns, end_ns):
        return np.argsort(thread, kind="stable")
    return np.lexsort((-end_ns, start_ns, thread))


def _latest_open(
    end: Int64Array, lane: Int64Array, before: Int64Array, first: Int64Array, at: Int64Array
) -> Int64Array:
    """For each query the last position in ``[first, before)`` whose end lies after the instant `at`, or -1.

    `lane` is for each end the first position of its thread, as `first` is for each query.

    A search over the largest ends of blocks, back from `before` in blocks of doubling size and then down within the
    block: most answers lie near, and the cost is n log n at worst, also for events that all overlap, where a walk from
    event to event would take n squared.
    """
    position = before - 1
    largest: list[Int64Array] = []
    within: list[Int64Array] = []  # by size of block the queries whose answer lies in the one that ends at the position
    active = np.flatnonzero(position >= first)
    active = active[_any_open(end, lane, position[active], first[active], at[active])]
    while len(active):
        largest.append(_largest(largest, end))
        level = len(largest) - 1
        open_yet = largest[level][position[active]] > at[active]
        within.append(active[open_yet])
        active = active[~open_yet]
        position[active] -= 1 << level
        active = active[position[active] >= first[active]]
    found = np.empty(0, np.int64)
    for level in range(len(largest) - 2, -1, -1):
        found = np.concatenate((found, within[level + 1]))
        ended = found[largest[level][position[found]] <= at[found]]
        position[ended] -= 1 << level
    result = np.full(len(position), NONE, np.int64)
    for some in within:
        # A block may reach back over `first` into another thread: what it found there counts for nothing.
        result[some] = np.where(position[some] >= first[some], position[some], NONE)
    return result


def _any_open(
    end: Int64Array, lane: Int64Array, position: Int64Array, first: Int64Array, at: Int64Array
) -> BoolArray | slice:
    """For which queries any end in ``[first, position]`` lies after the instant; everything where that cannot be told.

    By the largest end so far of each thread: they are made one ascending scale, on which each thread lies above the
    one before.
    """
    low, high = (int(end.min()), int(end.max())) if len(end) else (0, 0)
    width = high - low + 2
    if len(end) * width >= 1 << 62:
        return slice(None)
    reach = np.maximum.accumulate(lane * width + (end - low + 1))
    result: BoolArray = reach[position] > first * width + (np.clip(at, low - 1, high) - low + 1)
    return result


def _largest(largest: list[Int64Array], end: Int64Array) -> Int64Array:
    """The largest end in the block before each position, of twice the size of those before."""
    if not largest:
        return end
    below, step = largest[-1], 1 << (len(largest) - 1)
    wider = below.copy()
    np.maximum(below[step:], below[:-step], out=wider[step:])
    return wider


def _rows(order: Int64Array, found: IntArray) -> Int32Array:
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
