"""Plain tables for commands that list things; rich lays them out."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.write_report import terminal_for


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], styles: Mapping[str, str] | None = None) -> str:
    """Rows as text, as wide as the terminal; the last column takes the remaining width and wraps.

    Args:
        header: One word for each column.
        rows: Texts, shown literally.
        styles: The rich style of a cell by its whole text, used on terminals only.
    """
    terminal = terminal_for(sys.stdout)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, word in enumerate(header, 1):
        grid.add_column(word, no_wrap=number == 1, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(clean_line(cell), style=(styles or {}).get(cell, "")) for cell in row))
    console = Console(
        file=io.StringIO(),
        width=terminal.width,
        force_terminal=terminal.color,
        no_color=not terminal.color,
        color_system="standard" if terminal.color else None,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")) + "\n"
