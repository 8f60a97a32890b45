"""Pieces of text for a terminal: numbers that keep their unit, lines that hang, texts cut to a few lines."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from perfdoctor.report.finding import USED_AT, Finding
from perfdoctor.reporters.clean_text import clean_line, shorten, shorten_path
from perfdoctor.reporters.format_values import format_evidence

# Longer words in names are shortened to so many characters.
MAX_WORD = 48
# Replaces the blank between a number and its unit while lines are broken, so that "21 ms" stays on one line.
NO_BREAK = "\ue000"
_NUMBER_UNIT = re.compile(r"(?<=\d) (?=(?:[kMGT]B|bytes|[mun]?s)(?!\w))")
# Lines of a fix that stand in a report unless all are asked for.
_MAX_FIX_LINES = 2
# Where a text may be cut.
SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z])")
CLAUSE_END = re.compile(r"[;:,] ")
_MEASURE = Console(file=io.StringIO(), width=1000, _environ={})


def make_text(text: str, style: str = "") -> Text:
    """A text whose numbers stay on one line with their units."""
    return Text(_NUMBER_UNIT.sub(NO_BREAK, text), style=style)


def count_lines(text: Text, width: int) -> int:
    """How many lines a text takes in `width` columns."""
    return len(text.wrap(_MEASURE, max(width, 1)))


def shorten_fix(fix: Sequence[str], width: int) -> tuple[str, list[str]]:
    """The lines of a fix that are shown unless all are asked for, and what stands before them."""
    lines = [part for line in fix for part in _split_comment(line, width - len("fix: "))]
    if len(lines) <= _MAX_FIX_LINES:
        return "fix: ", lines
    return f"fix ({_MAX_FIX_LINES} of {len(lines)} lines): ", lines[:_MAX_FIX_LINES]


def _split_comment(line: str, width: int) -> list[str]:
    """A line of a fix, with its comment on a line of its own where it is too long otherwise."""
    code, mark, comment = line.partition("   # ")
    return [code.rstrip(), f"# {comment.strip()}"] if mark and len(line) > width else [line]


def first_parts(text: str, ends: re.Pattern[str], max_lines: int, width: int) -> str:
    """As many whole sentences (or clauses) from the start of a text as fit into some lines, at least one."""
    for end in [len(text), *reversed([match.start() for match in ends.finditer(text)])]:
        first = text[:end]
        if count_lines(make_text(first), width) <= max_lines:
            break
    return first


def note_left_out(heading: str, shown: int, count: int) -> str:
    """The heading of a list, with how many of its rows are shown where not all are."""
    return heading if shown == count else f"{heading} ({shown} of {count}, -v shows all)"


def join_evidence(finding: Finding) -> str:
    """The evidence of a finding in one line: "gaps: 6; longest gap: 1.56 ms"."""
    shown = [each for each in finding.evidence if each.id != USED_AT and each.value is not None]
    return "; ".join(f"{clean_line(e.label)}: {_shorten_value(format_evidence(e))}" for e in shown)


def _shorten_value(value: str) -> str:
    return shorten_path(value, MAX_WORD) if ".py" in value else shorten(value, MAX_WORD)


def unbroken(line: str, style: str) -> Group:
    """A line that is printed as it stands, neither wrapped nor cropped."""
    return Group(Text(line, style=style, no_wrap=True, overflow="ignore"))


def hanging(mark: str, text: Text, style: str = "bold") -> Table:
    """`text` after a mark, with its further lines indented beneath its first."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(Text(mark, style=style), text)
    return grid
