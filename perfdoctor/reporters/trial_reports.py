"""The trials of a report for a terminal and as Markdown: the table, what to change, and what was promised."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.report import Report
from perfdoctor.reporters import trial_table
from perfdoctor.reporters.clean_text import shorten, shorten_words
from perfdoctor.reporters.escape_markdown import code_block, escape
from perfdoctor.reporters.reporter import Reporter

_GAP = "  "
_MIN_NAME = 8


@frozen_dataclass
class TrialTerminal(Reporter):
    """The trials alone, as plain text in `width` columns: what `perfdoctor try` prints."""

    suffix = ".txt"
    shortens_paths = True

    width: int = 80

    def render_prepared(self, report: Report) -> str:
        """The trials as text; lines have no trailing blanks."""
        return "\n".join(line.rstrip() for line in trial_lines(report, self.width)) + "\n"


def trial_lines(report: Report, width: int) -> Iterator[str]:
    """The lines of the trials, each at most `width` columns; code to copy is neither wrapped nor cut."""
    yield from _wrap(trial_table.verdict_of_trials(report), width)
    yield from _wrap(trial_table.describe_trials(report), width)
    rows = trial_table.trial_rows(report)
    if rows:
        yield ""
        yield from _table([trial_table.TRIAL_COLUMNS, *rows], width)
    for line in trial_table.unmeasured_lines(report):
        yield from _wrap(line, width, "  ")
    yield from _winner_lines(report, width)
    promises = trial_table.promise_lines(report)
    if promises:
        yield ""
        yield "Promised and measured"
    for line in promises:
        yield from _wrap(f"  {line}", width, "    ")
    notes = list(trial_table.trial_notes(report))
    if notes:
        yield ""
    for note in notes:
        yield from _wrap(f"- {note}", width, "  ")


def _winner_lines(report: Report, width: int) -> Iterator[str]:
    winners = trial_table.what_to_change(report)
    if winners:
        yield ""
        yield "What to change"
    for number, winner in enumerate(winners, 1):
        yield from _wrap(f"{number}. {winner.title}", width, "   ")
        if winner.fix:
            yield f"   {winner.fix}"
        for line in winner.lines:
            yield from _wrap(f"   {line}", width, "   ")


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        shorten_words(text, width - len(indent)), width, subsequent_indent=indent, break_on_hyphens=False
    )


def _table(rows: list[tuple[str, ...]], width: int) -> Iterator[str]:
    """Rows in columns: the first and the last are texts, those between are figures, flush right.

    A name that is too long for its column takes a line of its own.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    too_wide = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    widths[0] = max(widths[0] - max(too_wide, 0), _MIN_NAME)
    for row in rows:
        first, *figures, last = row
        if len(first) > widths[0]:
            yield shorten(first, width)
            first = ""
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(space) for cell, space in zip(figures, widths[1:-1], strict=True)]
        yield _GAP.join([*cells, last])


def trial_markdown(report: Report) -> Iterator[str]:
    """The blocks of the trials as Markdown; the cells hold no pipes but escaped ones."""
    yield "### Trials"
    yield f"**{escape(trial_table.verdict_of_trials(report))}** {escape(trial_table.describe_trials(report))}"
    rows = trial_table.trial_rows(report)
    if rows:
        lines = [
            f"| {' | '.join(trial_table.TRIAL_COLUMNS)} |",
            "|---" + "|---:" * (len(trial_table.TRIAL_COLUMNS) - 2) + "|---|",
        ]
        yield "\n".join([*lines, *(f"| {' | '.join(map(escape, row))} |" for row in rows)])
    unmeasured = trial_table.unmeasured_lines(report)
    if unmeasured:
        yield "\n".join(f"- {escape(line)}" for line in unmeasured)
    for number, winner in enumerate(trial_table.what_to_change(report), 1):
        yield f"**{number}. {escape(winner.title)}**: {escape('; '.join(winner.lines))}"
        if winner.fix:
            yield code_block(winner.fix)
    remarks = [*trial_table.promise_lines(report), *trial_table.trial_notes(report)]
    if remarks:
        yield "\n".join(f"- {escape(line)}" for line in remarks)
