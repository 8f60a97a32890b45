"""`perfdoctor attach`: one set of windows of a program that was started without perfdoctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdoctor.capture.attach_process import attach as attach_recorder
from perfdoctor.capture.capture_folder import has_traces, make_folder
from perfdoctor.capture.capture_notes import notes_of_rank, read_facts
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.cli import parameters
from perfdoctor.cli.capture_report import analyze_capture, print_line, write_capture_report
from perfdoctor.cli.config import load_config
from perfdoctor.cli.report_output import ReportOutput, check_outputs, shown_path
from perfdoctor.errors import CaptureError

_DEFAULTS = CaptureOptions()


@parameters.command(
    "perfdoctor attach 4711",
    "perfdoctor attach 4711 --timeout 600 -o now.html",
    "perfdoctor attach 4711 --gdb    # a Python before 3.14",
)
def attach(
    pid: Annotated[
        int, typer.Argument(metavar="PID", min=1, show_default=False, help="The number of the process that trains.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write the capture there; the default is perfdoctor-PID-TIME."),
    ] = None,
    force: Annotated[bool, parameters.flag("--force", help="Replace a capture that is already in the folder.")] = False,
    gdb: Annotated[
        bool,
        parameters.flag("--gdb", help="Let gdb put the recorder into a Python before 3.14: it stops for a moment."),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="Leave the program after so long, windows or not."),
    ] = 300,
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
    """Record a window of a program that runs already, and say why its steps are slow.

    The recorder is put into the process at a step border, records one set of windows, and is taken out again: the
    program goes on as before, with the same results. Python 3.14 allows that by itself (PEP 768), to the same user;
    with --gdb it works in older ones. Of a job with several ranks one is recorded; perfdoctor run --watch records all.
    """
    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    config = load_config([], [], [], Path.cwd())
    options = CaptureOptions(out, force, 1, base, 1, timing, evidence)
    folder = make_folder(out, str(pid), force=force)
    try:
        ranks = attach_recorder(pid, options, folder, timeout_s=timeout, uses_gdb=gdb)
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    if not has_traces(folder):
        facts = read_facts(folder, ranks[0]) if ranks else None
        notes = () if facts is None else notes_of_rank(facts, options)
        why = " ".join(notes) or "its steps could not be found, or none has ended"
        raise CaptureError(f"Process {pid} was not recorded in {timeout:g} s: {why}")
    print_line(f"recorded in {shown_path(folder)}; process {pid} runs on without the recorder")
    if no_report:
        return
    report = analyze_capture(folder, config, None, shows_progress=not quiet and not as_json)
    shown = ReportOutput("json" if as_json else "text", tuple(output), None, no_color, verbosity)
    write_capture_report(report, folder, shown)
