"""The items of a timeline as columns, and joining those that are too short to be seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import NONE, Int8Array, Int32Array, Int64Array

MAX_ITEMS = 100_000
"""The number that a canvas draws without stutter; they take some 3 MB of a page."""
_PIXELS = 1_600
# Items shorter than a pixel are joined: of a timeline zoomed in as far as possible, at least 4 times.
_ZOOMS = (256, 64, 16, 4)
# Where that leaves too many, runs of short items may be longer, and in the end longer items are short.
_COARSER = (4, 16, 64, 256, 1024)


@frozen_dataclass(eq=False)
class Items:
    """Items of several tracks.

    Attributes:
        track: The number of the track.
        start_ns: Start.
        end_ns: End.
        name: A code of its name.
        category: A code of its colour.
        depth: How deep it is drawn; at each depth of a track items do not overlap.
        row: The row of its table; NONE where several are joined.
        merged: How many items it stands for.
    """

    track: Int32Array
    start_ns: Int64Array
    end_ns: Int64Array
    name: Int32Array
    category: Int8Array
    depth: Int8Array
    row: Int32Array
    merged: Int32Array

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Int64Array) -> Items:
        """Some items, in the order given."""
        return Items(*(getattr(self, field.name)[rows] for field in fields(self)))


_NO_ROWS, _NO_CODES = np.empty(0, np.int32), np.empty(0, np.int8)
NO_ITEMS = Items(
    _NO_ROWS, _NO_ROWS.astype(np.int64), _NO_ROWS.astype(np.int64), _NO_ROWS, _NO_CODES, _NO_CODES, _NO_ROWS, _NO_ROWS
)


def concatenate(parts: Iterable[Items]) -> Items:
    """The items of all parts, one after the other."""
    parts = [NO_ITEMS, *parts]
    return Items(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Items)))


def join_short_items(items: Items, span_ns: int, max_items: int = MAX_ITEMS) -> Items:
    """At most `max_items` items, sorted by track and start: neighbours that are too short to be seen are joined.

    A run lies in one cell, which is as wide as a pixel of a timeline of 1,600 pixels that is zoomed in 256 times; where
    that leaves more, 64, 16 and 4 times. Items longer than a cell stay. The joined item reaches from the first start to
    the last end, and has the name and colour of the longest. The given items do not overlap at one depth of a track,
    and the timeline of `span_ns` starts at 0.
    """
    items = items.take(np.lexsort((items.start_ns, items.depth, items.track)))
    if len(items) > max_items:
        for shortest_ns, cell_ns in _cells(span_ns):
            first = _starts_of_runs(items, shortest_ns, cell_ns)
            if len(first) <= max_items:
                break
        items = _join(items, first)
    return items.take(np.lexsort((items.depth, items.start_ns, items.track)))


def _cells(span_ns: int) -> Iterator[tuple[float, float]]:
    """From which length on an item stays, and the width of a cell: finer ones first, the last wider than all."""
    for zoom in _ZOOMS:
        yield (pixel_ns := span_ns / _PIXELS / zoom), pixel_ns
    for times in _COARSER:
        yield pixel_ns, times * pixel_ns
    while pixel_ns <= span_ns:
        pixel_ns *= 2
        yield pixel_ns, 2 * pixel_ns


def _starts_of_runs(items: Items, shortest_ns: float, cell_ns: float) -> Int64Array:
    """The positions at which a run of items, or an item that stays alone, begins."""
    is_short = items.end_ns - items.start_ns < shortest_ns
    cell = (items.start_ns / cell_ns).astype(np.int64)
    goes_on = is_short[1:] & is_short[:-1]
    for column in (cell, items.depth, items.track):
        goes_on &= column[1:] == column[:-1]
    return np.flatnonzero(np.append(True, ~goes_on))


def _join(items: Items, first: Int64Array) -> Items:
    """One item for each run; `first` has their first positions."""
    run = np.zeros(len(items), np.int64)
    run[first[1:]] = 1
    run = np.cumsum(run)
    by_length = np.lexsort((items.end_ns - items.start_ns, run))
    longest = items.take(by_length[np.append(first[1:], len(items)) - 1])
    merged = np.add.reduceat(items.merged, first)
    return Items(
        longest.track,
        items.start_ns[first],
        np.maximum.reduceat(items.end_ns, first),
        longest.name,
        longest.category,
        longest.depth,
        np.where(merged == 1, longest.row, NONE).astype(np.int32),
        merged.astype(np.int32),
    )
