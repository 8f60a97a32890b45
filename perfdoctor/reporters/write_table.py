"""A Table to a file or to standard output, in the format that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING

from perfdoctor.reporters.output import find_suffix, save_text, write_stdout

if TYPE_CHECKING:
    from perfdoctor.report.table import Table

TABLE_SUFFIXES = (".csv", ".json", ".md", ".txt")
table_suffix_of = partial(find_suffix, suffixes=TABLE_SUFFIXES, what="a table's file")
_FILE_WIDTH = 120
_MIN_WIDTH = 60


def save_table(table: Table, path: str | os.PathLike[str]) -> None:
    """Write all rows of a table, whole or not at all; the suffix decides the format. See `Table.save`."""
    save_text(path, render_table_as(table, table_suffix_of(path)))


def render_table_as(table: Table, suffix: str) -> str:
    """All rows of a table as the text that belongs to a suffix."""
    if suffix == ".json":
        from perfdoctor.reporters.json_ import render_plain

        return render_plain(table.to_dict())
    from perfdoctor.reporters import table_text

    if suffix == ".csv":
        return table_text.render_table_csv(table)
    if suffix == ".md":
        return table_text.render_table_markdown(table)
    return table_text.render_table(table, width=_FILE_WIDTH, everything=True)


def print_table(table: Table, *, color: bool | None = None, everything: bool = False, rows: int = 20) -> None:
    """Print the first rows of a table to standard output, as wide as the terminal is; see `Table.print`."""
    from perfdoctor.reporters.table_text import render_table
    from perfdoctor.reporters.write_report import terminal_for

    terminal = terminal_for(sys.stdout, color=color)
    width = max(shutil.get_terminal_size().columns, _MIN_WIDTH) if sys.stdout.isatty() else terminal.width
    text = render_table(
        table, width=width, color=terminal.color, unicode=terminal.unicode, everything=everything, rows=rows
    )
    write_stdout(text)
