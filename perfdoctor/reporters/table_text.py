"""A Table as text: for a terminal, as Markdown, and as CSV."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from perfdoctor.report.table import Cell, Column, Table
from perfdoctor.reporters.clean_text import clean_line, shorten, shorten_path
from perfdoctor.reporters.escape_markdown import escape
from perfdoctor.reporters.render_blocks import render_blocks
from perfdoctor.reporters.table_cells import format_cell, format_column, heading_of, is_number
from perfdoctor.units import format_count

_ADDED = ("step_ns", "share")
# Rows with own time contain each other.
_OWN = "own_ns"
_LEADING = ("share", "step_ns", "count")
_BAR_CELLS = 5
_GAP = 2
# So much of a name tells kernels apart; what is left of the width goes to further columns.
_NAME_WIDTH = 24
_TEXT_WIDTH, _MIN_TEXT_WIDTH = 26, 16
_MARKDOWN_WIDTH = 80
# Markdown and HTML drop other spaces at the beginning of a cell.
_FIXED_SPACES = "\u00a0\u00a0"
_EIGHTHS = " ▏▎▍▌▋▊▉"
# A spreadsheet takes a text that begins so for a formula.
_FORMULA = ("=", "+", "-", "@")


class _Shown(NamedTuple):
    """A column as it is shown: its texts, how wide they may get, and whether they stand at the right."""

    title: str
    texts: list[str]
    width: int
    at_right: bool


def render_table(
    table: Table, *, width: int, color: bool = False, unicode: bool = True, everything: bool = False, rows: int = 0
) -> str:
    """The table for a terminal: a bar for each share, main columns as far as they fit, notes below.

    With `everything` all columns, however wide that gets; of the rows the first so many, or all for 0.
    """
    shown = table.top(rows) if rows else table
    out = render_blocks([Text(title_of(table, len(shown)), style="bold")], width, color=color)
    left_out = 0
    if len(shown):
        columns, left_out = _choose_columns(shown, None if everything else width, unicode)
        natural = sum(column.width + _GAP for column in columns)
        out += render_blocks([_lay_out(columns)], natural if everything else width, color=color)
    under = [_describe_rest(table, len(shown))] if len(shown) < len(table) else []
    under += [f"{format_count(left_out, 'more column')}; -v, --csv and --json show them"] if left_out else []
    under += [f"note: {clean_line(note)}" for note in table.notes]
    out += render_blocks([Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in under], width, color=color)
    return "".join(f"{line.rstrip()}\n" for line in out.splitlines())


def title_of(table: Table, rows: int | None = None) -> str:
    """What a table is, in a line: "kernels by name, rank 3: 20 of 64 rows"."""
    by = f" by {table.by}" if table.by else ""
    rank = "" if table.rank is None else f", rank {table.rank}"
    count = format_count(len(table), "row")
    return f"{table.name}{by}{rank}: {count if rows in (None, len(table)) else f'{rows} of {count}'}"


def _describe_rest(table: Table, rows: int) -> str:
    """What the rows that are not shown amount to."""
    more = format_count(len(table) - rows, "more row")
    added = [column for column in table.columns if column.name in _ADDED]
    if any(column.name == _OWN for column in table.columns) or not all(map(_adds_up, added)):
        return f"{more}; --top 0 shows them"
    amounts = (format_cell(column.unit, _sum(column.values[rows:])) for column in added)
    return f"{more}: {', '.join(amounts)}; --top 0 shows them"


def _adds_up(column: Column) -> bool:
    """Whether the rows of a table may be added: parts of a step that hold each other are more than it."""
    return None not in column.values and (column.unit != "share" or _sum(column.values) <= 1)


def _sum(values: Sequence[Cell]) -> float:
    return sum(float(value) for value in values if isinstance(value, int | float))


def _choose_columns(table: Table, width: int | None, unicode: bool) -> tuple[list[_Shown], int]:
    """The columns that fit into the width, and how many do not; all but empty ones where there is no width."""
    by_name = {column.name: column for column in table.columns if any(value is not None for value in column.values)}
    leading = [_show(by_name.pop(name)) for name in _LEADING if name in by_name]
    if leading and leading[0].title == "share":
        leading.insert(1, _Shown("", _bars(table.column("share").values, unicode), _BAR_CELLS, at_right=False))
    first = table.columns[0]
    by_name.pop(first.name, None)
    name = _show(first, [space + text for space, text in zip(_indents(table, " "), format_column(first), strict=True)])
    if width is None:
        return [*leading, name, *map(_show, by_name.values())], 0
    min_width = min(name.width, _NAME_WIDTH)
    room = width - sum(column.width + _GAP for column in leading) - min_width
    chosen = []
    for column in by_name.values():
        shown = _show(column)
        if not shown.at_right and shown.width > _MIN_TEXT_WIDTH:
            shown = shown._replace(width=min(shown.width, _TEXT_WIDTH, max(room - _GAP, _MIN_TEXT_WIDTH)))
        if column.is_main and shown.width + _GAP <= room:
            room -= shown.width + _GAP
            chosen.append(shown)
    return [*leading, name._replace(width=min(name.width, min_width + room)), *chosen], len(by_name) - len(chosen)


def _indents(table: Table, space: str) -> list[str]:
    """What stands before the name of each row: in a table of a tree a space for each level above."""
    depth = next((column.values for column in table.columns if column.name == "depth"), (0,) * len(table))
    return [space * int(level or 0) for level in depth]


def _show(column: Column, texts: list[str] | None = None) -> _Shown:
    texts, title = format_column(column, below_unit=True) if texts is None else texts, heading_of(column)
    width = max(map(cell_len, texts), default=0)
    if cell_len(title) > width:  # a heading may take two lines
        title = title.replace(" ", "\n")
    return _Shown(title, texts, max(width, *map(cell_len, title.split("\n"))), is_number(column))


def _lay_out(columns: Sequence[_Shown]) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in columns:
        grid.add_column(Text(column.title), justify="right" if column.at_right else "left", no_wrap=True)
    for row in zip(*(column.texts for column in columns), strict=True):
        grid.add_row(
            *(
                Text(_fit(text, column.width), style="" if column.title else "cyan")  # bars have no title
                for text, column in zip(row, columns, strict=True)
            )
        )
    return grid


def _fit(text: str, width: int) -> str:
    """A text in at most so many characters: a path loses leading folders, all else its middle."""
    return shorten(shorten_path(text, width) if ".py" in text else text, width, "..")


def _bars(shares: Sequence[Cell], unicode: bool) -> list[str]:
    """A bar for each share; the largest of them is as long as a bar gets."""
    values = [float(share or 0) for share in shares]
    longest = max(values, default=0) or 1
    if not unicode:
        return ["#" * max(round(value / longest * _BAR_CELLS), value > 0) for value in values]
    bars = []
    for value in values:
        whole, part = divmod(max(round(value / longest * _BAR_CELLS * 8), value > 0), 8)
        bars.append("█" * whole + _EIGHTHS[part].strip())
    return bars


def render_table_markdown(table: Table, rows: int = 0) -> str:
    """The table as Markdown, with its main columns."""
    shown = table.top(rows) if rows else table
    columns = [column for column in shown.columns if column.is_main and any(v is not None for v in column.values)]
    lines = [f"**{escape(title_of(table, len(shown)))}**", ""]
    if len(shown):
        lines.append(f"| {' | '.join(escape(heading_of(column)) for column in columns)} |")
        lines.append(f"|{'|'.join('---:' if is_number(column) else '---' for column in columns)}|")
        texts = zip(*(format_column(column, below_unit=True) for column in columns), strict=True)
        for space, row in zip(_indents(shown, _FIXED_SPACES), texts, strict=True):
            lines.append(f"| {space}{' | '.join(escape(shorten(text, _MARKDOWN_WIDTH)) for text in row)} |")
        lines.append("")
    lines += [f"{escape(note)}\n" for note in table.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def render_table_csv(table: Table) -> str:
    """`Table.to_csv` for files and terminals: texts without control characters, and none that is a formula."""
    columns = (replace(column, values=tuple(map(_make_safe, column.values))) for column in table.columns)
    return replace(table, columns=tuple(columns)).to_csv()


def _make_safe(value: Cell) -> Cell:
    if not isinstance(value, str):
        return value
    text = clean_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def render_table_html(table: Table, rows: int = 20) -> str:
    """The first rows as a table of HTML with the main columns, for a notebook: it takes the colours of its page."""
    shown = table.top(rows)
    columns = [column for column in shown.columns if column.is_main and any(v is not None for v in column.values)]
    head = "".join(_html_cell("th", heading_of(column), column) for column in columns)
    texts = zip(*(format_column(column, below_unit=True) for column in columns), strict=True)
    body = "".join(
        f"<tr>{_html_cell('td', row[0], columns[0], space)}"
        f"{''.join(_html_cell('td', text, column) for text, column in zip(row[1:], columns[1:], strict=True))}</tr>"
        for space, row in zip(_indents(shown, _FIXED_SPACES), texts, strict=True)
    )
    notes = "".join(f"<p>{html.escape(clean_line(note))}</p>" for note in table.notes)
    title = html.escape(title_of(table, len(shown)))
    return (
        f'<table class="dataframe"><caption style="text-align:left">{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"
    )


def _html_cell(tag: str, text: str, column: Column, space: str = "") -> str:
    side = "right" if is_number(column) else "left"
    short = shorten(text, _MARKDOWN_WIDTH)
    title = f' title="{html.escape(text)}"' if short != text else ""
    return f'<{tag} style="text-align:{side}"{title}>{space}{html.escape(short)}</{tag}>'
