"""Link the rows of two tables by their ids: GPU items to their launches, Python frames to their callers."""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.tables.nesting import count_preceding, rows_in_order


def make_rank_keys(
    ranks: Int64Array, ids: Int64Array, *, other: tuple[Int64Array, Int64Array]
) -> tuple[Int64Array, Int64Array]:
    """Keys of ids that two tables share, for files of several ranks that each count their ids from one.

    For example::

        rank 0, id 7  ->  key 1
        rank 1, id 7  ->  key 2
        rank 1, id 0  ->  NONE

    Args:
        ranks: Rank of each row of the first table.
        ids: Id of each row of the first table.
        other: The same two columns of the second table.

    Returns:
        A key for each row of the first and of the second table; ids of 0 and below mean "none" and give NONE.
    """
    if not ranks.any() and not other[0].any():
        return _clear_none(ids, ids), _clear_none(other[1], other[1])
    all_ranks, all_ids = np.concatenate((ranks, other[0])), np.concatenate((ids, other[1]))
    distinct, dense = np.unique(all_ids, return_inverse=True)
    keys = _clear_none(dense.astype(np.int64) + all_ranks * len(distinct) + 1, all_ids)
    return keys[: len(ids)], keys[len(ids) :]


def _clear_none(keys: Int64Array, ids: Int64Array) -> Int64Array:
    """The keys, with NONE where an id means "none"."""
    return np.where(ids > 0, keys, NONE)


def find_latest(keys: Int64Array, start_ns: Int64Array, of_keys: Int64Array, of_start_ns: Int64Array) -> Int32Array:
    """For each row the row of another table (`of_...`) with the same key that starts last before it or with it.

    Where all rows with that key start later (the clocks of CPU and GPU can disagree) it is the first of them. Where the
    other table has no such key, or the key is NONE, it is NONE.
    """
    order = np.lexsort((of_start_ns, of_keys))
    sorted_keys = of_keys[order]
    low = np.searchsorted(sorted_keys, keys, side="left")
    count = np.searchsorted(sorted_keys, keys, side="right") - low
    found = np.where(count > 0, low, NONE)
    if (count > 1).any():  # ids are nearly always distinct; only else the start decides
        before = count_preceding(keys, start_ns, of_keys, of_start_ns)
        found = np.where(count > 0, np.maximum(before - 1, low), NONE)
    found[keys < 0] = NONE
    return rows_in_order(order, found)


def find_first(keys: Int64Array, of_keys: Int64Array) -> Int32Array:
    """For each key the first row of another table (`of_keys`) that has it; NONE without one, and for a key NONE."""
    order = np.argsort(of_keys, kind="stable")
    sorted_keys = of_keys[order]
    at = np.searchsorted(sorted_keys, keys, side="left")
    hit = (at < len(order)) & (keys >= 0)
    hit[hit] = sorted_keys[at[hit]] == keys[hit]
    return rows_in_order(order, np.where(hit, at, NONE))
