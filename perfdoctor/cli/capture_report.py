"""The report on a capture, as `run`, `record` and `attach` write it: onto the terminal and into the capture folder."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoctor.cli.config import Config
from perfdoctor.cli.gates import announce_settings, check_program
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.cli.report_output import ReportOutput, has_page, open_page, print_analysis, save_outputs, shown_path
from perfdoctor.errors import InputError, PerfdoctorError
from perfdoctor.reporters.clean_text import clean_line

if TYPE_CHECKING:
    from perfdoctor.capture.launch import CaptureResult
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.finding_gate import Gate

# From here on a reader wonders what is going on, and wants to know afterwards what it was.
_LONG_ANALYSIS_S = 10.0


def describe_error(error: Exception) -> str:
    """What went wrong; with the type of what is no error of ours."""
    return str(error) if isinstance(error, PerfdoctorError) else f"{type(error).__name__}: {error}"


def print_line(text: str) -> None:
    """A line for the user on stderr, after all that was printed so far."""
    sys.stdout.flush()
    sys.stderr.write(f"perfdoctor: {clean_line(text)}\n")
    sys.stderr.flush()


def analyze_capture(folder: Path, config: Config, gate: Gate | None, *, shows_progress: bool) -> Report:
    """The report on a capture; stderr says so where that takes long."""
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.api import analyze_traces
    from perfdoctor.fleet.discover import find_inputs

    options = AnalysisOptions(config.select, config.ignore, config.settings, charts=True, settings_file=config.file)
    announce_settings(options, gate)
    with (
        open_progress_bar(enabled=shows_progress) as progress,
        announce_long_analysis(folder, enabled=shows_progress and progress is None),
    ):
        inputs = find_inputs([folder])
        return analyze_traces(inputs.traces, options, progress, inputs.hang)


def measure_after_run(result: CaptureResult, budget_s: float, *, shows_progress: bool) -> None:
    """Measure cheaper forms of what a program computes, in its own Python; a failure costs a line."""
    from perfdoctor.forms.measure_forms import measure_capture

    if result.folder is None or not result.ranks:
        return
    try:
        rank = min(result.ranks)
        measure_capture(result.folder, rank, budget_s, result.python, announce=print_line if shows_progress else None)
    except Exception as error:  # the report does not wait for it
        print_line(f"cheaper forms were not measured: {describe_error(error)}")


@contextmanager
def announce_long_analysis(folder: Path, *, enabled: bool, after_s: float = _LONG_ANALYSIS_S) -> Iterator[None]:
    """Say on stderr, where no progress bar does, that the analysis goes on; and at the end, how long it took.

    Args:
        folder: The capture folder.
        enabled: Whether to say that it goes on.
        after_s: Seconds after which an analysis is long.
    """
    sizes = sum(path.stat().st_size for path in folder.glob("rank*/*.json*"))
    text = f"still analysing the recording ({sizes / 1e6:,.0f} MB); it stays in {shown_path(folder)} if you interrupt"
    timer = threading.Timer(after_s, print_line, [text])
    timer.daemon = True
    if enabled:
        timer.start()
    began = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
    took_s = time.monotonic() - began
    if took_s >= after_s:
        print_line(
            f"the analysis took {took_s:.0f} s; --no-report leaves it out, for perfdoctor analyze to do at another time"
        )


def write_capture_report(report: Report, folder: Path, output: ReportOutput) -> None:
    """Write report.json and report.html into the capture, print the report, and write the files of -o."""
    _save(report, folder / "report.json")
    try:
        check_program(report, output.gate)
    except InputError:  # the gate says so in the end; the report on hours of work does not wait for a right baseline
        output = replace(output, gate=None)
    if output.format == "text":
        sys.stdout.write("\n")
    print_analysis(report, output)
    save_outputs(report, output)
    page = folder / "report.html"
    if _save(report, page):
        if output.verbosity >= 0:
            print_line(f"with charts and tables, as a page: {shown_path(page)}")
        if output.opens and not has_page(output.files):
            open_page(page)
    if output.verbosity >= 0:
        print_line(f"on a time line: perfdoctor export {shown_path(folder)} -o annotated.json.gz")


def _save(report: Report, path: Path) -> bool:
    """Write a report into the capture; one that cannot be written costs a line, and False."""
    from perfdoctor.reporters.write_report import save_report

    try:
        save_report(report, path)
    except Exception as error:
        print_line(f"{path.name} was not written: {describe_error(error)}")
        return False
    return True
