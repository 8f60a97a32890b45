"""Which row of one table belongs to which of another: launches to GPU items, callers to Python frames."""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.tables.nesting import rows_up_to


def keys_within(
    groups: Int64Array, ids: Int64Array, *, shared: tuple[Int64Array, Int64Array]
) -> tuple[Int64Array, Int64Array]:
    """Ids of two tables made distinct between the ranks of a merged file, where each rank counts from one.

    Args:
        groups: Rank of each row of the first table.
        ids: Id of each row of the first table.
        shared: The same two columns of the second table.

    Returns:
        A key for each row of the first and of the second table; ids of 0 and below, which mean "none", give -1.
    """
    if not groups.any() and not shared[0].any():
        return _ids(ids, ids), _ids(shared[1], shared[1])
    all_groups, all_ids = np.concatenate((groups, shared[0])), np.concatenate((ids, shared[1]))
    distinct, dense = np.unique(all_ids, return_inverse=True)
    keys = _ids(dense.astype(np.int64) + all_groups * len(distinct) + 1, all_ids)
    return keys[: len(ids)], keys[len(ids) :]


def _ids(keys: Int64Array, ids: Int64Array) -> Int64Array:
    """Keys where ids mean something."""
    return np.where(ids > 0, keys, NONE)


def latest_before(keys: Int64Array, start_ns: Int64Array, of_keys: Int64Array, of_start_ns: Int64Array) -> Int32Array:
    """For each asked row the row of the other table (`of_...`) with the same key that started last at or before it.

    Where all rows of that key start later (the clocks of CPU and GPU can disagree) it is the first of them; where there
    is none, or the key is -1, it is -1.
    """
    order = np.lexsort((of_start_ns, of_keys))
    sorted_keys = of_keys[order]
    low = np.searchsorted(sorted_keys, keys, side="left")
    count = np.searchsorted(sorted_keys, keys, side="right") - low
    found = np.where(count > 0, low, NONE)
    if (count > 1).any():  # ids are all but always distinct: only where they are not the start decides
        before = rows_up_to(keys, start_ns, of_keys, of_start_ns)
        found = np.where(count > 0, np.maximum(before - 1, low), NONE)
    found[keys < 0] = NONE
    return _rows(order, found)


def first_with(keys: Int64Array, of_keys: Int64Array) -> Int32Array:
    """For each key the first row of the other table that has it, or -1; a key of -1 has none."""
    order = np.argsort(of_keys, kind="stable")
    sorted_keys = of_keys[order]
    at = np.searchsorted(sorted_keys, keys, side="left")
    hit = (at < len(order)) & (keys >= 0)
    hit[hit] = sorted_keys[at[hit]] == keys[hit]
    return _rows(order, np.where(hit, at, NONE))


def _rows(order: Int64Array, found: Int64Array) -> Int32Array:
    if not len(order):
        return np.full(len(found), NONE, np.int32)
    return np.where(found >= 0, order[found], NONE).astype(np.int32)
