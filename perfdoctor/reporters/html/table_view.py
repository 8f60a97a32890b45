"""The tables of the page: cells as text, the first rows for readers without a script, all rows as compact data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perfdoctor.reporters.clean_text import clean_line, shorten
from perfdoctor.reporters.format_values import UNKNOWN, format_duration, format_share, format_size

# What a reader without a script sees of a table, and what a script that failed leaves.
STATIC_ROWS = 15
_MAX_CELL = 300
_TEXT_UNITS = ("text", "bool")
_BAR_UNITS = ("share",)
_RATE_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class ShownColumn(NamedTuple):
    """A column: its heading, what it is, whether its cells are figures, and whether it is shown at first."""

    title: str
    description: str
    unit: str
    is_figure: bool
    is_main: bool
    texts: tuple[str, ...]


class ShownTable(NamedTuple):
    """A table as the page shows it.

    Attributes:
        anchor: Its name in the address of the page.
        title: Its heading.
        notes: What a reader must know.
        columns: The columns that hold anything.
        rows: How many rows there are.
        static_rows: The texts of the main columns' first rows.
    """

    anchor: str
    title: str
    notes: tuple[str, ...]
    columns: tuple[ShownColumn, ...]
    rows: int
    static_rows: tuple[tuple[tuple[str, bool], ...], ...]

    @property
    def main_columns(self) -> tuple[ShownColumn, ...]:
        """The columns that are shown at first."""
        return tuple(column for column in self.columns if column.is_main)


def shown_table(table: Mapping[str, Any]) -> tuple[ShownTable, dict[str, Any]]:
    """A table of the page's data for the template, and the same for the script.

    Columns that are not known in any row are left out.
    """
    rows: Sequence[Mapping[str, Any]] = table["rows"]
    columns, data = [], []
    for column in table["columns"]:
        values = [row[column["name"]] for row in rows]
        if all(value is None for value in values):
            continue
        unit = column["unit"]
        texts = tuple(format_cell(value, unit) for value in values)
        shown = ShownColumn(
            clean_line(column["title"]), column["description"], unit,
            unit not in _TEXT_UNITS, column.get("main", True), texts,
        )  # fmt: skip
        columns.append(shown)
        data.append(_column_data(column["name"], shown, values))
    main = [column for column in columns if column.is_main]
    static = tuple(
        tuple((column.texts[row], column.is_figure) for column in main) for row in range(min(STATIC_ROWS, len(rows)))
    )
    notes = tuple(clean_line(note) for note in table["notes"])
    anchor = f"table-{table['table']}"
    view = ShownTable(anchor, clean_line(table["title"]), notes, tuple(columns), len(rows), static)
    return view, {"id": anchor, "title": view.title, "sorted_by": table["sorted_by"], "columns": data}


def _column_data(name: str, column: ShownColumn, values: Sequence[Any]) -> dict[str, Any]:
    """A column for the script: texts to show, and values to sort by where the texts do not do for that."""
    data: dict[str, Any] = {
        "name": name, "title": column.title, "description": column.description, "unit": column.unit,
        "main": column.is_main, "figure": column.is_figure, "bar": column.unit in _BAR_UNITS, "texts": column.texts,
    }  # fmt: skip
    if column.is_figure:
        data["values"] = values
    return data


def format_cell(value: Any, unit: str) -> str:
    """A value of a table in its unit; a name is cleaned, and shortened in its middle."""
    if value is None:
        return UNKNOWN
    if unit == "ns":
        return format_duration(value)
    if unit == "share":
        return format_share(value)
    if unit == "bytes":
        return format_size(value)
    if unit in ("flops", "flops_per_s", "bytes_per_s"):
        name = {"flops": "FLOP", "flops_per_s": "FLOP/s", "bytes_per_s": "B/s"}[unit]
        return _format_rate(value, name)
    if unit == "count":
        return f"{value:,.0f}" if float(value).is_integer() or value >= 100 else f"{value:.1f}"
    if unit == "ratio":
        return f"{value:.3g}"
    if unit == "bool":
        return "yes" if value else "no"
    return shorten(clean_line(str(value)), _MAX_CELL)


def _format_rate(value: float, name: str) -> str:
    for factor, prefix in _RATE_UNITS:
        if value >= factor:
            return (
                f"{value / factor:.3g} {prefix}{name}"
                if value < 999 * factor
                else f"{value / factor:,.0f} {prefix}{name}"
            )
    return f"{value:.3g} {name}"
