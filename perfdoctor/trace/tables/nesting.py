"""Nesting of the events of each thread: parents, innermost and outermost events."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.scanner.core_library import find_library
from perfdoctor.trace.scanner.layout import Nest
from perfdoctor.trace.tables.time_order import is_in_time_order, time_order

_MAX_LANES = 1 << 20


def parents(start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array) -> Int32Array:
    """For each event the row of the smallest event around it on the same thread, or NONE.

    For example::

        row  start  end   parent
        0    0      100   NONE
        1    10     50    0
        2    20     30    1

    Of events with the same start the longer is around the shorter, of equal ones the first row around the next. An
    event without length lies in one that begins before it or with it. Events that overlap without nesting, which
    rounding produces in real files, get a parent that contains their start, or none.
    """
    nested = _nest_in_c(start_ns, end_ns, thread, start_ns[:0], thread[:0])
    if nested is not None:
        return nested[0]
    order = _order_by_thread(start_ns, end_ns, thread)
    start, lane = start_ns[order], thread[order]
    end = np.maximum(end_ns[order], start + 1)  # an event without length still lies in its parent
    first = np.searchsorted(lane, lane, side="left")
    found = _find_latest_open(end, first, np.arange(len(order)), first, start)
    parent = np.full(len(order), NONE, np.int32)
    parent[order] = rows_in_order(order, found)
    return parent


def innermost(
    start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array, at_ns: Int64Array, at_thread: Int32Array
) -> Int32Array:
    """For each instant and thread the row of the smallest event that contains it, or NONE; the end is outside."""
    nested = _nest_in_c(start_ns, end_ns, thread, at_ns, at_thread)
    if nested is not None:
        return nested[1]
    order = _order_by_thread(start_ns, end_ns, thread)
    start, lane = start_ns[order], thread[order]
    first = np.searchsorted(lane, at_thread, side="left")
    begun = count_preceding(at_thread, at_ns, lane, start)
    found = _find_latest_open(end_ns[order], np.searchsorted(lane, lane, side="left"), begun, first, at_ns)
    return rows_in_order(order, found)


def _nest_in_c(
    start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array, at_ns: Int64Array, at_thread: Int32Array
) -> tuple[Int32Array, Int32Array] | None:
    """Parents and innermost events at once with the C library, some ten times as fast as the search over blocks.

    None where the library cannot be used, or where the threads are not numbered from 0.
    """
    lanes = np.concatenate((thread, at_thread))
    library = find_library()
    if library is None or (len(lanes) and not 0 <= int(lanes.min()) <= int(lanes.max()) < _MAX_LANES):
        return None
    rows = time_order(start_ns, end_ns)
    asked = None if (at_ns[1:] >= at_ns[:-1]).all() else np.argsort(at_ns, kind="stable")
    parent, found = np.empty(len(start_ns), np.int32), np.empty(len(at_ns), np.int32)
    top = np.full(1 + int(lanes.max(initial=0)), NONE, np.int32)
    columns = {
        "start": _to_memory(start_ns, rows, np.int64), "end": _to_memory(end_ns, rows, np.int64),
        "lane": _to_memory(thread, rows, np.int32), "parent": parent, "top": top,
        "asked": _to_memory(at_ns, asked, np.int64), "asked_lane": _to_memory(at_thread, asked, np.int32),
        "found": found,
    }  # fmt: skip
    nest = Nest(count=len(parent), questions=len(found))
    for name, column in columns.items():
        setattr(nest, name, column.ctypes.data)
    library.perfdoctor_nest_events(ctypes.byref(nest))
    if rows is not None:
        found = rows_in_order(rows, found)
        parent[rows] = rows_in_order(rows, parent)
    if asked is not None:
        found[asked] = found.copy()
    return parent, found


def _to_memory(column: IntArray, rows: Int64Array | None, kind: type[np.signedinteger[Any]]) -> IntArray:
    """A column in another order, as the C library reads it."""
    return np.ascontiguousarray(column if rows is None else column[rows], kind)


def count_preceding(keys: IntArray, start_ns: Int64Array, of_keys: IntArray, of_start_ns: Int64Array) -> Int64Array:
    """For each row how many rows of another table (`of_...`, any order) have the same key and start or smaller ones."""
    asked = np.repeat([False, True], [len(of_keys), len(keys)])
    order = np.lexsort((asked, np.concatenate((of_start_ns, start_ns)), np.concatenate((of_keys, keys))))
    counted = np.empty(len(order), np.int64)
    counted[order] = np.cumsum(~asked[order])
    return counted[len(of_keys) :]


def _order_by_thread(start_ns: Int64Array, end_ns: Int64Array, thread: Int32Array) -> Int64Array:
    """The order by thread, then by start, longest first."""
    # Tables are sorted by start already: then one key is left to sort by.
    if is_in_time_order(start_ns, end_ns):
        return np.argsort(thread, kind="stable")
    return np.lexsort((-end_ns, start_ns, thread))


def _find_latest_open(
    end: Int64Array, lane: Int64Array, before: Int64Array, first: Int64Array, at: Int64Array
) -> Int64Array:
    """For each query the last position in ``[first, before)`` whose end lies after the instant `at`, or NONE.

    A search over the largest ends of blocks, back from `before` in blocks of doubling size and then down within the
    block: most answers lie near. The cost is n log n at worst, also for events that all overlap, where going from event
    to event would take n squared. The events are sorted by thread and start; `lane` is for each the first position of
    its thread, and `before` for each query the position behind the last event that counts.
    """
    position = before - 1
    largest: list[Int64Array] = []
    within: list[Int64Array] = []  # for each size of block the queries whose answer lies in the block at their position
    active = np.flatnonzero(position >= first)
    active = active[_may_be_open(end, lane, position[active], first[active], at[active])]
    while len(active):
        largest.append(_widen_blocks(largest, end))
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
    for queries in within:
        # A block may begin before `first`, in another thread: an answer there does not count.
        result[queries] = np.where(position[queries] >= first[queries], position[queries], NONE)
    return result


def _may_be_open(
    end: Int64Array, lane: Int64Array, position: Int64Array, first: Int64Array, at: Int64Array
) -> BoolArray | slice:
    """The queries for which any end in ``[first, position]`` lies after the instant; all where numbers would overflow.

    By the largest end so far of each thread, on one ascending scale: each thread lies above the one before.
    """
    low, high = (int(end.min()), int(end.max())) if len(end) else (0, 0)
    width = high - low + 2
    if len(end) * width >= 1 << 62:
        return slice(None)
    last_end = np.maximum.accumulate(lane * width + (end - low + 1))
    result: BoolArray = last_end[position] > first * width + (np.clip(at, low - 1, high) - low + 1)
    return result


def _widen_blocks(largest: list[Int64Array], end: Int64Array) -> Int64Array:
    """The largest end in the block that ends at each position, for blocks of twice the size of the last ones."""
    if not largest:
        return end
    below, step = largest[-1], 1 << (len(largest) - 1)
    wider = below.copy()
    np.maximum(below[step:], below[:-step], out=wider[step:])
    return wider


def rows_in_order(order: Int64Array, found: IntArray) -> Int32Array:
    """Rows of a table from positions in some order of it; NONE stays NONE."""
    if not len(order):
        return np.full(len(found), NONE, np.int32)
    return np.where(found >= 0, order[found], NONE).astype(np.int32)


def outermost(parent: Int32Array, rows: Int32Array, among: BoolArray | None = None) -> Int32Array:
    """For each row its topmost ancestor (itself where it has no parent).

    `parent` is NONE for a row without one, and NONE among `rows` stays NONE. The first ancestor that is not `among`
    those that count ends the search.
    """
    top = rows.copy()
    while True:
        up = np.where(top >= 0, parent[top], NONE)
        has_parent = up >= 0
        if among is not None:
            has_parent &= among[up]
        if not has_parent.any():
            return top
        top[has_parent] = up[has_parent]


def match_within(parent: Int32Array, chosen: BoolArray) -> BoolArray:
    """For each row whether it is a chosen one, or has one around it."""
    result = chosen
    while True:
        more: BoolArray = result | np.append(result, False)[parent]
        if (more == result).all():
            return more
        result = more


def own_durations(parent: Int32Array, dur_ns: Int64Array) -> Int64Array:
    """For each event its duration, or the part of it that is asked about, without that of the events right inside."""
    inside = np.flatnonzero(parent != NONE)
    # The sums are floats, exact up to 2**53 ns: 104 days.
    inside_ns = np.bincount(parent[inside], dur_ns[inside], minlength=len(parent))
    own_ns: Int64Array = dur_ns - inside_ns.astype(np.int64)
    return own_ns
