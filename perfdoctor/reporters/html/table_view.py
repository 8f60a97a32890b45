"""The tables of the page: cells as text, the first rows for readers without a script, all rows as compact data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perfdoctor.report.table import Column
from perfdoctor.reporters.clean_text import clean_line, shorten
from perfdoctor.reporters.table_cells import format_column, heading_of, is_number

# What a reader without a script sees of a table, and what a script that failed leaves.
STATIC_ROWS = 15
# A longer name fills a screen; the script shows the whole of it beside the cell.
_MAX_CELL = 96


class ShownColumn(NamedTuple):
    """A column: what it is, whether its cells are figures, whether it is shown at first, and its cells as texts."""

    column: Column
    is_figure: bool
    texts: list[str]

    @property
    def title(self) -> str:
        """Its heading."""
        return clean_line(heading_of(self.column))


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
        return tuple(shown for shown in self.columns if shown.column.is_main)


def shown_table(table: Mapping[str, Any]) -> tuple[ShownTable, dict[str, Any]]:
    """A table of the page's data for the template, and the same for the script.

    Columns that are not known in any row are left out.
    """
    columns = [_shown_column(described, table["rows"]) for described in table["columns"]]
    columns = [shown for shown in columns if any(value is not None for value in shown.column.values)]
    count = len(table["rows"])
    main = [shown for shown in columns if shown.column.is_main]
    static = tuple(
        tuple((shown.texts[row], shown.is_figure) for shown in main) for row in range(min(STATIC_ROWS, count))
    )
    notes = tuple(clean_line(note) for note in table["notes"])
    view = ShownTable(f"table-{table['table']}", clean_line(table["title"]), notes, tuple(columns), count, static)
    return view, {
        "id": view.anchor,
        "title": view.title,
        "sorted_by": table["sorted_by"],
        "columns": [_column_data(shown) for shown in columns],
    }


def _shown_column(described: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> ShownColumn:
    name, unit = described["name"], described["unit"]
    values = tuple(row[name] for row in rows)
    column = Column(name, described["title"], unit, values, described["description"], described["main"])
    texts = [shorten(text, _MAX_CELL) for text in format_column(column, below_unit=True)]
    return ShownColumn(column, is_number(column), texts)


def _column_data(shown: ShownColumn) -> dict[str, Any]:
    """A column for the script: texts to show, figures to sort by, and whole names where the texts are short."""
    column = shown.column
    data: dict[str, Any] = {
        "name": column.name,
        "title": shown.title,
        "description": column.description,
        "main": column.is_main,
        "figure": shown.is_figure,
        "bar": column.unit == "share",
        "texts": shown.texts,
    }
    if shown.is_figure:
        data["values"] = column.values
    elif any(value is not None and value != text for value, text in zip(column.values, shown.texts, strict=True)):
        data["whole"] = column.values
    return data
