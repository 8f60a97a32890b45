"""`perfdoctor record`: a window of a program that runs under `perfdoctor run --watch`, now."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.control_client import record_window
from perfdoctor.cli import parameters
from perfdoctor.cli.capture_report import analyze_capture, print_line, write_capture_report
from perfdoctor.cli.config import load_config
from perfdoctor.cli.report_output import ReportOutput, check_outputs, shown_path
from perfdoctor.errors import CaptureError

_DEFAULTS = CaptureOptions()


@parameters.command(
    "perfdoctor record perfdoctor-train-20261126-161500",
    "perfdoctor record capture --ranks 0,3",
    "perfdoctor record capture --timing 20 -o now.html",
)
def record(
    capture: Annotated[
        Path,
        typer.Argument(
            metavar="CAPTURE", show_default=False, help="The capture of a perfdoctor run --watch that still runs."
        ),
    ],
    *,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="N,N", help="Record only these ranks; all without it.")
    ] = None,
    base: parameters.WindowBase = _DEFAULTS.base,
    timing: parameters.WindowTiming = _DEFAULTS.timing,
    evidence: parameters.WindowEvidence = _DEFAULTS.evidence,
    no_report: parameters.NoReport = False,
    as_json: parameters.AsJson = False,
    output: parameters.Output,
    no_color: parameters.NoColor = False,
    quiet: parameters.Quiet = False,
    verbose: parameters.Verbose = False,
) -> None:
    """Record a window of a running program now, and say why its steps are slow.

    The program was started by perfdoctor run --watch; its steps go on, and nothing stays in it after the window. All
    ranks begin at the same step. The window is a capture of its own, CAPTURE/window-1 and so on, so that perfdoctor
    compare CAPTURE CAPTURE/window-1 says what has changed since the program began.
    """
    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    config = load_config([], [], [], Path.cwd())
    if verbosity >= 0:
        print_line("asked for a window: it begins within some steps; Ctrl-C leaves the program to finish it alone")
    window = record_window(
        capture, parameters.parse_numbers(ranks, "--ranks"), base=base, timing=timing, evidence=evidence
    )
    for rank, why in sorted(window.why_not.items()):
        print_line(f"rank {rank} was not recorded: {why}")
    if not window.ranks:
        raise CaptureError(f"No window of {capture} was recorded.")
    print_line(f"recorded in {shown_path(window.folder)}")
    if no_report:
        return
    shows_progress = not quiet and not as_json
    report = analyze_capture(window.folder, config, None, shows_progress=shows_progress)
    shown = ReportOutput("json" if as_json else "text", tuple(output), None, no_color, verbosity)
    write_capture_report(report, window.folder, shown)
    sys.stdout.flush()
