"""Where `analyze`, `run` and `try` write a report: to standard output, and into the files of -o."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoctor.errors import InputError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.output import write_stdout
from perfdoctor.reporters.reporter import RenderOptions
from perfdoctor.reporters.write_report import OUTPUT_FORMATS, PAGE, print_report, render_report, save_report, suffix_of

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")

if TYPE_CHECKING:
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.finding_gate import Gate


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


@frozen_dataclass
class ReportOutput:
    """How a command writes a report.

    Attributes:
        format: What standard output gets, one of OUTPUT_FORMATS.
        files: The files of -o.
        rank: The rank whose trace .json.gz annotates.
        no_color: Whether a terminal gets no colours.
        verbosity: Of the text: -1, 0 or 1. A quiet terminal makes no file shorter.
        gate: What the report has to pass, for the formats that show it.
        opens: Whether to open pages in the browser.
    """

    format: str = "text"
    files: tuple[str, ...] = ()
    rank: int | None = None
    no_color: bool = False
    verbosity: int = 0
    gate: Gate | None = None
    opens: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of the report that somebody will see."""
        from perfdoctor.report.report import SHORT_TEXT_TABLES, TABLES

        is_short = self.format == "text" and not self.files and self.verbosity <= 0
        return SHORT_TEXT_TABLES if is_short else TABLES


def print_analysis(report: Report, output: ReportOutput) -> None:
    """Print the report on standard output, in the format that was asked for."""
    if output.format == "text":
        print_report(report, color=False if output.no_color else None, verbosity=output.verbosity)
    else:
        write_stdout(render_report(report, OUTPUT_FORMATS[output.format], RenderOptions(gate=output.gate)))


def save_outputs(report: Report, output: ReportOutput) -> None:
    """Write the report to each file, and say so on stderr."""
    options = RenderOptions(max(output.verbosity, 0), output.gate)
    for path in output.files:
        save_report(report, path, rank=output.rank, options=options)
        sys.stderr.write(f"wrote {clean_line(path)}\n")
        if output.opens and suffix_of(path) == PAGE:
            open_page(Path(path))


def has_page(paths: Sequence[str]) -> bool:
    """Whether one of the files is a page, which needs charts."""
    return any(suffix_of(path) == PAGE for path in paths)


def open_page(path: Path) -> None:
    """Open a page in the browser; a line on stderr says so where there is none to open it in."""
    import webbrowser  # takes 10 ms, and few want it

    # Without a display `webbrowser` would start a browser of the terminal, over what is printed there.
    lacks_display = sys.platform == "linux" and not any(map(os.environ.get, _DISPLAYS))
    if lacks_display or not webbrowser.open(path.absolute().as_uri()):
        sys.stderr.write(f"perfdoctor: there is no browser to open here; the page is {clean_line(str(path))}\n")


def shown_path(folder: Path) -> str:
    """The folder as one would type it from here."""
    here = Path.cwd()
    return clean_line(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))
