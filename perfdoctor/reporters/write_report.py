"""A report to a file or to standard output, in the format that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from perfdoctor.errors import UsageError
from perfdoctor.reporters.output import open_atomically, write_stdout

if TYPE_CHECKING:
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.terminal import Terminal

ANNOTATED_TRACE = ".json.gz"
SUFFIXES = (".json", ".md", ".txt", ANNOTATED_TRACE)
_PLANNED_SUFFIXES = {".html": "HTML", ".htm": "HTML", ".sarif": "SARIF"}
# Wider lines are harder to read; narrower ones leave no room for a table.
_MAX_WIDTH, _MIN_WIDTH, _DEFAULT_WIDTH = 100, 60, 80


def suffix_of(path: str | os.PathLike[str]) -> str:
    """The one of SUFFIXES that a file name ends in.

    Raises:
        UsageError: It ends in none of them.
    """
    name = Path(path).name.lower()
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    for suffix, kind in _PLANNED_SUFFIXES.items():
        if name.endswith(suffix):
            raise UsageError(f"{path}: {kind} reports come in a later version; use .md or .json")
    raise UsageError(f"{path}: the suffix of an output file must be one of {', '.join(SUFFIXES)}")


def save_report(report: Report, path: str | os.PathLike[str], *, rank: int | None = None, verbosity: int = 0) -> None:
    """Write a report; the suffix decides the format: .json, .md, .txt, or .json.gz for the annotated trace.

    That is of all ranks, or of `rank`.

    `verbosity` is that of a .txt: 1 is the long form, -1 a line for each finding. The file appears whole or not at all.

    Raises:
        UsageError: The suffix is another one, or there is no such rank to annotate.
        InputError: The file cannot be written, or the trace cannot be read again.
    """
    suffix = suffix_of(path)
    if suffix == ANNOTATED_TRACE:
        from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace

        export_chrome_trace(report, path, rank=rank)
        return
    text = render_report(report, suffix, verbosity)
    with open_atomically(path) as out:
        out.write(text.encode(errors="replace"))


def render_report(report: Report, suffix: str, verbosity: int = 0) -> str:
    """The report as the text that belongs to a suffix: .json, .md or .txt, the last one with a verbosity."""
    if suffix == ".json":
        from perfdoctor.reporters.json_ import Json

        return Json().render(report)
    if suffix == ".md":
        from perfdoctor.reporters.markdown import Markdown

        return Markdown().render(report)
    from perfdoctor.reporters.terminal import Terminal

    return Terminal(verbosity=verbosity).render(report)


def print_report(report: Report, *, color: bool | None = None, verbosity: int = 0) -> None:
    """Print a report to standard output; see `terminal_for` for the colour."""
    write_stdout(terminal_for(sys.stdout, color=color, verbosity=verbosity).render(report))


def terminal_for(stream: TextIO, *, color: bool | None = None, verbosity: int = 0) -> Terminal:
    """A Terminal reporter that suits a stream: as wide as its window, coloured on a terminal unless NO_COLOR is set."""
    from perfdoctor.reporters.terminal import Terminal

    interactive = stream.isatty()
    if color is None:
        color = interactive and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = _DEFAULT_WIDTH
    if interactive:
        columns = shutil.get_terminal_size((_DEFAULT_WIDTH, 24)).columns
        width = min(max(columns, _MIN_WIDTH), _MAX_WIDTH)
    return Terminal(width=width, color=color, verbosity=verbosity, unicode=_shows_blocks(stream))


def _shows_blocks(stream: TextIO) -> bool:
    """Whether the stream's encoding has the characters of the bar."""
    try:
        "█▓▒░─…".encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True
