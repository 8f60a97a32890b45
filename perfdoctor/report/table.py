"""Table: named columns of plain values with their units, which the terminal, CSV, notebooks and the page all show.

The tables themselves are made in `perfdoctor.tables`; how their values are put in words is the reporters' affair.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from perfdoctor.errors import UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass

if TYPE_CHECKING:
    import pandas
    import polars

Unit: TypeAlias = Literal[
    "text", "count", "ns", "bytes", "flops", "flops_per_s", "bytes_per_s", "share", "ratio", "bool"
]
"""What the values of a column are. A share is a number from 0 to 1; "ratio" is a number without unit."""
Cell: TypeAlias = str | int | float | bool | None


@frozen_dataclass
class Column:
    """One column of a table.

    Attributes:
        name: What it is called in JSON, CSV and frames; with its unit where it has one: "step_ns".
        title: What people read above it: "time a step".
        unit: What its values are.
        values: One for each row; None where it is not known.
        description: What the figure is and where it comes from, in a sentence.
        is_main: Whether it belongs to the short form; the others are in CSV, JSON, frames, the page and `-v`.
    """

    name: str
    title: str
    unit: Unit
    values: tuple[Cell, ...]
    description: str = ""
    is_main: bool = True


@frozen_dataclass
class Table:
    """Rows of one kind, in order; the first column names them.

    Attributes:
        name: What the rows are, as `perfdoctor show` calls it: "kernels".
        by: What they are grouped by: "name".
        columns: The columns, all of one length.
        sorted_by: The name of the column that the rows are sorted by, the largest first.
        rank: The rank that they are of; None where the trace does not name it, or they are of all.
        notes: What a reader must know, a sentence each: what was not recorded, and how to record it.
    """

    name: str
    by: str
    columns: tuple[Column, ...]
    sorted_by: str = ""
    rank: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0

    @property
    def rows(self) -> list[dict[str, Cell]]:
        """The rows as dictionaries by the names of the columns."""
        names = [column.name for column in self.columns]
        cells = zip(*(column.values for column in self.columns), strict=True)
        return [dict(zip(names, row, strict=True)) for row in cells]

    def column(self, name: str) -> Column:
        """The column of a name.

        Raises:
            UsageError: There is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns)
        raise UsageError(f"the table of {self.name} has no column '{name}'; it has {known}")

    def sort(self, name: str) -> Self:
        """The same rows by another column: numbers from the largest down, texts from A to Z, unknown values last.

        Raises:
            UsageError: There is no such column.
        """
        values = self.column(name).values
        known = [row for row, value in enumerate(values) if value is not None]
        # The sort is stable both ways, so that rows of one value stay in their order.
        known.sort(key=values.__getitem__, reverse=not any(isinstance(values[row], str) for row in known))  # type: ignore[arg-type]
        unknown = [row for row, value in enumerate(values) if value is None]
        return replace(self.take([*known, *unknown]), sorted_by=name)

    def top(self, count: int) -> Self:
        """The first rows."""
        return self.take(range(min(count, len(self))))

    def take(self, rows: Sequence[int]) -> Self:
        """Some rows, in the order given."""
        columns = (replace(column, values=tuple(column.values[row] for row in rows)) for column in self.columns)
        return replace(self, columns=tuple(columns))

    def to_csv(self) -> str:
        """The table as CSV (RFC 4180, line breaks of Unix): a header of column names, unknown values empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.name for column in self.columns])
        writer.writerows(zip(*(column.values for column in self.columns), strict=True))
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data for JSON: its name, its columns with titles and units, and its rows."""
        columns = [
            {"name": each.name, "title": each.title, "unit": each.unit, "description": each.description}
            for each in self.columns
        ]
        return {
            "table": self.name,
            "by": self.by,
            "sorted_by": self.sorted_by,
            "rank": self.rank,
            "notes": list(self.notes),
            "columns": columns,
            "rows": self.rows,
        }

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a pandas frame, a column each.

        Raises:
            UsageError: pandas is not installed.
        """
        frame: pandas.DataFrame = _import_library("pandas").DataFrame(self._by_name())
        return frame

    def to_polars(self) -> polars.DataFrame:
        """The table as a polars frame, a column each.

        Raises:
            UsageError: polars is not installed.
        """
        frame: polars.DataFrame = _import_library("polars").DataFrame(self._by_name(), strict=False)
        return frame

    def _by_name(self) -> Mapping[str, list[Cell]]:
        return {column.name: list(column.values) for column in self.columns}


def _import_library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"{name} is not installed; `pip install {name}`, or take .rows or .to_csv()") from None
