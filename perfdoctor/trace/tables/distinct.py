"""The distinct values of columns: tables of what occurs where values are codes, else sorting.

`np.unique` without options first asks whether the array is masked, for which it imports `numpy.ma` (8 ms), and then
takes a hash table that costs more than sorting does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import Int64Array, IntArray

_Kind = TypeVar("_Kind", bound=np.signedinteger[Any])

# Keys up to here are numbered by a table: of bools, which is cleared, and of numbers, of which only those are touched
# that occur.
_TABLE = 1 << 18


def distinct(values: npt.NDArray[_Kind]) -> npt.NDArray[_Kind]:
    """The distinct values, ascending."""
    values = np.sort(values, kind="stable")  # which knows what is in order: most columns nearly are
    first = np.empty(len(values), bool)
    first[:1] = True
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def occurring(codes: IntArray, size: int) -> Int64Array:
    """The distinct codes from 0 to `size` (excluded), ascending; -1 counts for none."""
    there = np.zeros(size + 1, bool)
    there[codes] = True  # code -1 indexes the end of the table
    return np.flatnonzero(there[:-1])


def distinct_rows(columns: Sequence[IntArray], size: int) -> tuple[Int64Array, Int64Array]:
    """Number the distinct combinations of several columns of codes from -1 to `size` (excluded).

    Tables instead of sorting: a million rows have a few thousand combinations, and sorting them takes several times as
    long.

    Returns:
        For each row the number of its combination, and for each combination one row that has it.
    """
    count = len(columns[0])
    which, found = np.zeros(count, np.int64), 1
    if not count:
        return which, which
    for column in columns:
        number, codes = _numbered(column, size + 1)  # code -1 indexes the end of the table
        if codes == 1:
            continue
        if found * codes > _TABLE:
            which, found = _dense(which, found)
        if found > 1:
            which *= codes
            which += number[column]
        else:
            which = number[column]
        found *= codes
    which, found = _dense(which, found)
    first = np.empty(found, np.int64)
    first[which] = np.arange(count)
    return which, first


def _dense(keys: Int64Array, size: int) -> tuple[Int64Array, int]:
    """Keys below `size` numbered without gaps, and how many there are."""
    if size > _TABLE * 32:
        values, dense = np.unique(keys, return_inverse=True)
        return dense.astype(np.int64), len(values)
    number, count = _numbered(keys, size)
    return number[keys], count


def _numbered(keys: IntArray, size: int) -> tuple[Int64Array, int]:
    """A table that numbers the keys that occur, and how many do."""
    there = np.zeros(size, bool)
    there[keys] = True
    used = np.flatnonzero(there)
    number = np.empty(size, np.int64)
    number[used] = np.arange(len(used))
    return number, len(used)
