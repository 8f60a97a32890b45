"""The order of rows in a table: by start, longest first, so that an event stands before those that it contains."""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.arrays import Int64Array


def in_order(start_ns: Int64Array, length_ns: Int64Array) -> bool:
    """Whether rows stand by start, longest first; ends do as well as lengths."""
    later = start_ns[1:] > start_ns[:-1]
    return bool(later.all() or (later | ((start_ns[1:] == start_ns[:-1]) & (length_ns[1:] <= length_ns[:-1]))).all())


def time_order(start_ns: Int64Array, length_ns: Int64Array, place: Int64Array | None = None) -> Int64Array | None:
    """The order by start, longest first, then by place; None for rows that stand so already.

    Args:
        start_ns: Start of each row.
        length_ns: Duration of each row.
        place: What decides between equal rows; that they stand so unless given.
    """
    moved = None
    if place is not None and (place[1:] < place[:-1]).any():
        moved = np.argsort(place, kind="stable")
        start_ns, length_ns = start_ns[moved], length_ns[moved]
    if in_order(start_ns, length_ns):
        return moved
    order = np.argsort(start_ns, kind="stable")
    tied = np.flatnonzero(start_ns[order[1:]] == start_ns[order[:-1]])
    if (length_ns[order[tied + 1]] > length_ns[order[tied]]).any():  # few: they alone are sorted by a second key
        concerned = np.zeros(len(order), bool)
        concerned[tied] = concerned[tied + 1] = True
        rows = order[concerned]
        order[concerned] = rows[np.lexsort((-length_ns[rows], start_ns[rows]))]
    return order if moved is None else moved[order]
