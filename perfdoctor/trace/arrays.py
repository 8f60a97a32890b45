"""The types of columns, what stands in them for "none", and how large times may be."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int8Array: TypeAlias = npt.NDArray[np.int8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
IntArray: TypeAlias = npt.NDArray[np.signedinteger[Any]]
"""Signed integers of any width: codes, ids, rows."""
FloatArray: TypeAlias = npt.NDArray[np.float64]

NONE = -1
"""In a column of rows, codes or ids: the file says nothing, or there is none."""
LIMIT_NS = 1 << 62
"""Starts, durations and ends lie below it: so the time between any two of them fits into int64."""


def as_int32(numbers: Int64Array) -> Int32Array:
    """Numbers from 0 on as int32; NONE for negative ones and for those that do not fit."""
    return np.where((numbers >= 0) & (numbers < 1 << 31), numbers, NONE).astype(np.int32)
