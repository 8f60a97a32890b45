"""Rows of a table that know which table they are of: a mask of one table is refused where rows of another are wanted.

Rows are plain numbers, and a mask of GPU items says something, if nonsense, about runtime calls, too. What changes or
prices a trace takes these instead.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import Calls, GpuItems, Ops, Table

_AnyTable = TypeVar("_AnyTable", bound=Table)


class Rows(Generic[_AnyTable]):
    """Some rows of one table, in the order given; may hold a row twice.

    Args:
        table: The table; an empty one unless given.
        rows: A mask of the table's length, or numbers of its rows.

    Raises:
        TypeError: `rows` is neither a mask nor an array of integers, or `table` is another kind of table.
        ValueError: The mask has another length than the table, or a row lies outside of it.
    """

    __slots__ = ("index", "table")

    of: ClassVar[type[Table]]
    """The kind of table."""
    index: Int64Array
    table: _AnyTable

    def __init__(self, table: _AnyTable | None = None, rows: Any = ()) -> None:
        if table is None:
            table = self.of()  # type: ignore[assignment]
        if not isinstance(table, self.of):
            raise TypeError(f"{type(self).__name__} are rows of {self.of.__name__}, not of {type(table).__name__}")
        given = np.asarray(rows)
        if not given.size and given.ndim == 1:
            given = given.astype(np.int64)
        if given.ndim != 1 or given.dtype.kind not in "biu":
            raise TypeError(f"{type(self).__name__} take a mask or numbers of rows, not {given.dtype}")
        if given.dtype.kind == "b":
            if len(given) != len(table):
                raise ValueError(f"a mask of {len(given)} rows is none of a table of {len(table)} {self.of.__name__}")
            given = np.flatnonzero(given)
        elif len(given) and not 0 <= int(given.min()) <= int(given.max()) < len(table):
            raise ValueError(f"rows {given.min()} to {given.max()} do not lie in a table of {len(table)} rows")
        self.table = table
        self.index = given.astype(np.int64)

    def __len__(self) -> int:
        return len(self.index)

    def __add__(self, other: Self) -> Self:
        """These rows, then those of the other, which must be of the same table unless there are none."""
        if not len(other):
            return self
        if not len(self):
            return other
        if len(self.table) != len(other.table):
            raise ValueError("rows of two traces cannot be joined")
        return type(self)(self.table, np.concatenate((self.index, other.index)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {len(self.table)})"


class GpuRows(Rows[GpuItems]):
    """Some rows of `Trace.gpu`: kernels, copies, sets."""

    __slots__ = ()
    of = GpuItems


class CallRows(Rows[Calls]):
    """Some rows of `Trace.calls`: runtime and driver calls."""

    __slots__ = ()
    of = Calls


class OpRows(Rows[Ops]):
    """Some rows of `Trace.ops`: operators on the CPU."""

    __slots__ = ()
    of = Ops
