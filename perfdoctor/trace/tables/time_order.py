"""Sort rows by start, longest first, so that an event stands before those that it contains."""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.arrays import Int64Array


def is_in_time_order(start_ns: Int64Array, length_ns: Int64Array) -> bool:
    """Whether rows are sorted by start, longest first; ends can be given in place of lengths."""
    later = start_ns[1:] > start_ns[:-1]
    return bool(later.all() or (later | ((start_ns[1:] == start_ns[:-1]) & (length_ns[1:] <= length_ns[:-1]))).all())


def time_order(start_ns: Int64Array, length_ns: Int64Array, index: Int64Array | None = None) -> Int64Array | None:
    """The order by start, longest first, then by index; None for rows that are sorted so already.

    Without `index` rows with the same start and length keep their order.
    """
    by_index = None
    if index is not None and (index[1:] < index[:-1]).any():
        by_index = np.argsort(index, kind="stable")
        start_ns, length_ns = start_ns[by_index], length_ns[by_index]
    if is_in_time_order(start_ns, length_ns):
        return by_index
    order = np.argsort(start_ns, kind="stable")
    ties = np.flatnonzero(start_ns[order[1:]] == start_ns[order[:-1]])
    if (length_ns[order[ties + 1]] > length_ns[order[ties]]).any():  # few rows, which alone are sorted by a second key
        tied = np.zeros(len(order), bool)
        tied[ties] = tied[ties + 1] = True
        rows = order[tied]
        order[tied] = rows[np.lexsort((-length_ns[rows], start_ns[rows]))]
    return order if by_index is None else by_index[order]
