"""A report to a file or to standard output, in the format that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, TextIO

from perfdoctor.reporters.output import find_suffix, save_text, write_stdout
from perfdoctor.reporters.reporter import DEFAULT_OPTIONS, RenderOptions

if TYPE_CHECKING:
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.reporter import Reporter
    from perfdoctor.reporters.terminal import Terminal

ANNOTATED_TRACE = ".json.gz"
PAGE = ".html"
# By suffix, each the longest that fits. A reporter is imported when it is asked for: some need what others do without.
_REPORTERS: Mapping[str, str] = {
    PAGE: "perfdoctor.reporters.html.html:Html",
    ".json": "perfdoctor.reporters.json_:Json",
    ".md": "perfdoctor.reporters.markdown:Markdown",
    ".pr.md": "perfdoctor.reporters.pull_request:PullRequest",
    ".sarif": "perfdoctor.reporters.sarif:Sarif",
    ".xml": "perfdoctor.reporters.junit:Junit",
    ".github": "perfdoctor.reporters.github_annotations:GithubAnnotations",
    ".txt": "perfdoctor.reporters.terminal:Terminal",
}
SUFFIXES = (*_REPORTERS, ANNOTATED_TRACE)
suffix_of = partial(find_suffix, suffixes=SUFFIXES)
# They name files as the repository does that one stands in.
_FOR_REPOSITORIES = (".sarif", ".github")
# By the name of a format for standard output its suffix; the names are those that linters have.
OUTPUT_FORMATS: Mapping[str, str] = {
    "text": ".txt",
    "json": ".json",
    "markdown": ".md",
    "pr": ".pr.md",
    "github": ".github",
    "sarif": ".sarif",
    "junit": ".xml",
}
# Wider lines are harder to read; narrower ones leave no room for a table.
_MAX_WIDTH, _MIN_WIDTH, _DEFAULT_WIDTH = 100, 60, 80


def save_report(
    report: Report, path: str | os.PathLike[str], *, rank: int | None = None, options: RenderOptions = DEFAULT_OPTIONS
) -> None:
    """Write a report, whole or not at all; the suffix decides the format: one of SUFFIXES.

    That is .json.gz for the annotated trace, of all ranks or of `rank`.

    Raises:
        UsageError: The suffix is another one, or there is no such rank to annotate.
        InputError: The file cannot be written, or the trace cannot be read again.
    """
    suffix = suffix_of(path)
    if suffix == ANNOTATED_TRACE:
        from perfdoctor.reporters.chrome_trace.annotate_trace import export_chrome_trace

        export_chrome_trace(report, path, rank=rank)
        return
    save_text(path, render_report(report, suffix, options))


def render_report(report: Report, suffix: str, options: RenderOptions = DEFAULT_OPTIONS) -> str:
    """The report as the text that belongs to one of SUFFIXES, .json.gz aside."""
    reporter: type[Reporter] = resolve_name(_REPORTERS[suffix])
    if suffix in _FOR_REPOSITORIES:
        from perfdoctor.reporters.source_files import find_source_files
        from perfdoctor.trace.io.untrusted_files import find_root

        options = replace(options, source_files=find_source_files(report, find_root(Path.cwd())))
    return reporter.from_options(options).render(report)


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
