"""A Table to a file or to standard output, in the format that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from perfdoctor.reporters.output import find_suffix, save_text, write_stdout

if TYPE_CHECKING:
    from perfdoctor.report.table import Table

TABLE_SUFFIXES = (".csv", ".json", ".md", ".txt")
_FILE_WIDTH = 120
_MIN_WIDTH = 60


def table_suffix_of(path: str | os.PathLike[str]) -> str:
    """The one of TABLE_SUFFIXES that a file name ends in.

    Raises:
        UsageError: It ends in none of them.
    """
    return find_suffix(path, TABLE_SUFFIXES, "a table's file")


def save_table(table: Table, path: str | os.PathLike[str]) -> None:
    """Write all rows of a table; the suffix decides the format: .csv, .json, .md or .txt.

    The file appears whole or not at all.

    Raises:
        UsageError: The suffix is another one.
        InputError: The file cannot be written.
    """
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
    """Print the first rows of a table to standard output, as wide as the terminal is.

    Args:
        table: The table.
        color: Whether to use colours; None means on terminals only.
        everything: Whether to print all columns, however wide that gets.
        rows: How many rows; 0 for all.
    """
    from perfdoctor.reporters.table_text import render_table
    from perfdoctor.reporters.write_report import terminal_for

    terminal = terminal_for(sys.stdout, color=color)
    width = max(shutil.get_terminal_size().columns, _MIN_WIDTH) if sys.stdout.isatty() else terminal.width
    text = render_table(
        table, width=width, color=terminal.color, unicode=terminal.unicode, everything=everything, rows=rows
    )
    write_stdout(text)
