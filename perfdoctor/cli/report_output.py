"""How `analyze`, `run` and `try` put a report out: on standard output, and into the files of -o."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoctor.errors import InputError
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import write_stdout
from perfdoctor.reporters.render_options import RenderOptions
from perfdoctor.reporters.write_report import print_report, render_report, save_report, suffix_of

if TYPE_CHECKING:
    from perfdoctor.report.report import Report


def check_outputs(paths: Sequence[str]) -> None:
    """Check before the work that every output can be written.

    Raises:
        UsageError: A suffix is unknown.
        InputError: A folder does not exist.
    """
    for path in paths:
        suffix_of(path)
        check_folder(path)


def check_folder(path: str) -> None:
    """Check that the folder of a file exists.

    Raises:
        InputError: It does not.
    """
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"{path} cannot be written: its folder does not exist; make it first")


def print_analysis(report: Report, *, as_json: bool, no_color: bool, verbosity: int) -> None:
    """Print the report on standard output, as JSON or for a terminal."""
    if as_json:
        write_stdout(render_report(report, ".json"))
    else:
        print_report(report, color=False if no_color else None, verbosity=verbosity)


def save_outputs(report: Report, paths: Sequence[str], *, rank: int | None = None, verbosity: int = 0) -> None:
    """Write the report to each path, and say so on stderr.

    `rank` chooses the trace that .json.gz annotates. A .txt is in the long form with a `verbosity` of 1; a quiet
    terminal makes no file shorter.
    """
    for path in paths:
        save_report(report, path, rank=rank, options=RenderOptions(max(verbosity, 0)))
        sys.stderr.write(f"wrote {clean_line(path)}\n")


def shown_path(folder: Path) -> str:
    """The folder as one would type it from here."""
    here = Path.cwd()
    return clean_line(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))
