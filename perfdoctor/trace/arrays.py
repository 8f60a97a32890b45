"""The types of columns, and what stands in them for "none"."""

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
