"""`perfdoctor run`: record an unmodified program, then analyse the recording.

The program comes first: its output, its exit code, its signals. A failure on our side becomes a line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfdoctor.capture.capture_folder import has_traces
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.cli import parameters
from perfdoctor.cli.progress_bar import open_progress_bar
from perfdoctor.cli.report_output import check_outputs, print_analysis, save_outputs
from perfdoctor.errors import PerfdoctorError
from perfdoctor.reporters.clean_text import clean_line

if TYPE_CHECKING:
    from perfdoctor.capture.launch import CaptureResult

_DEFAULTS = CaptureOptions()
_ARGUMENTS = "perfdoctor.arguments"


class RunCommand(click.Command):
    """Keeps a copy of its arguments: the parser removes the `--` that tells a command from a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, after copying them to the context."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


@click.command(
    cls=RunCommand,
    short_help="Run a program as it is, record it, and say why it is slow.",
    # What follows the program belongs to the program.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("target", nargs=-1, required=True, metavar="PROGRAM...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the capture to FOLDER; the default is perfdoctor-SCRIPT-TIME.",
)
@click.option("--force", is_flag=True, help="Replace a capture that is already in the folder.")
@click.option("--skip", default=_DEFAULTS.skip, show_default=True, metavar="N", help="Leave the first N steps alone.")
@click.option(
    "--base", default=_DEFAULTS.base, show_default=True, metavar="N", help="Then time N steps without the profiler."
)
@click.option(
    "--warmup",
    default=_DEFAULTS.warmup,
    show_default=True,
    metavar="N",
    help="Then let the profiler warm up in N steps.",
)
@click.option(
    "--timing", default=_DEFAULTS.timing, show_default=True, metavar="N", help="Then record N steps for their times."
)
@click.option(
    "--evidence",
    default=_DEFAULTS.evidence,
    show_default=True,
    metavar="N",
    help="Then record N steps with shapes and source lines.",
)
@click.option("--stop-after", is_flag=True, help="End the program once everything is recorded.")
@click.option("--ranks", metavar="N,N", help="Record only these ranks.")
@click.option(
    "--nvtx-only", is_flag=True, help="Record nothing; mark steps and phases as NVTX ranges, for use under nsys."
)
@click.option("--no-report", is_flag=True, help="Record, but do not analyse.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, after the program's output.")
@parameters.output
@parameters.no_color
@parameters.quiet
@parameters.verbose
@click.pass_context
def run(
    ctx: click.Context,
    target: tuple[str, ...],
    out: Path | None,
    force: bool,
    skip: int,
    base: int,
    warmup: int,
    timing: int,
    evidence: int,
    stop_after: bool,
    ranks: str | None,
    nvtx_only: bool,
    no_report: bool,
    as_json: bool,
    output: tuple[str, ...],
    no_color: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Run a program as it is, record its training steps, and say why they are slow.

    PROGRAM is a script, a module after -m, or any command after --, with its arguments:

    \b
    perfdoctor run train.py --epochs 1
    perfdoctor run -m package.train
    perfdoctor run -- torchrun --nproc-per-node 2 train.py

    What follows the program belongs to the program, and the exit code is the program's. Some 30 steps are enough: the
    first are left alone, the next are timed without the profiler, then steps are recorded for their times, then steps
    with shapes and source lines. The rest of the run is left alone as well, unless --stop-after ends it there.
    """  # noqa: D301 - the backspace is click's mark of a paragraph that keeps its lines
    from perfdoctor.capture import launch

    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    options = CaptureOptions(
        out,
        force,
        skip,
        base,
        warmup,
        timing,
        evidence,
        stop_after,
        parameters.parse_numbers(ranks, "--ranks"),
        nvtx_only,
    )
    result = launch.run(launch.parse_target(restore_dashes(ctx.meta[_ARGUMENTS], target)), options)
    _print_notes(result)
    if result.folder is not None and has_traces(result.folder) and not no_report:
        try:
            _report(result.folder, output, as_json=as_json, no_color=no_color, verbosity=verbosity)
        except Exception as error:  # the program has run: its exit code stands, even if the report fails
            kind = "" if isinstance(error, PerfdoctorError) else f"{type(error).__name__}: "
            message = clean_line(f"{kind}{error}")
            sys.stderr.write(f"perfdoctor: the recording was not reported: {message}\n")
    return result.exit_code


def restore_dashes(arguments: Sequence[str], target: Sequence[str]) -> list[str]:
    """The target with the `--` in front of it, where the user typed one.

    Args:
        arguments: All arguments of `run` as typed.
        target: Those that the parser left as PROGRAM: the last ones.
    """
    before = arguments[: len(arguments) - len(target)]
    return ["--", *target] if list(before[-1:]) == ["--"] else list(target)


def _print_notes(result: CaptureResult) -> None:
    sys.stdout.flush()
    for note in result.notes:
        sys.stderr.write(f"perfdoctor: {clean_line(note)}\n")
    if result.folder is not None:
        recorded = "recorded" if has_traces(result.folder) else "there is nothing to report on; the times of steps are"
        sys.stderr.write(f"perfdoctor: {recorded} in {_relative(result.folder)}\n")
    sys.stderr.flush()


def _report(folder: Path, output: Sequence[str], *, as_json: bool, no_color: bool, verbosity: int) -> None:
    """Analyse the capture, write report.json into it, and print the report."""
    from perfdoctor.api import analyze as analyze_traces
    from perfdoctor.cli.config import load_config
    from perfdoctor.reporters.write_report import save_report

    config = load_config((), (), (), Path.cwd())
    with open_progress_bar(enabled=verbosity >= 0 and not as_json) as progress:
        report = analyze_traces(
            folder, select=config.select, ignore=config.ignore, settings=config.settings, progress=progress
        )
    save_report(report, folder / "report.json")
    if not as_json:
        sys.stdout.write("\n")
    print_analysis(report, as_json=as_json, no_color=no_color, verbosity=verbosity)
    save_outputs(report, output, verbosity=verbosity)
    sys.stderr.write(
        f"perfdoctor: to see it on a time line: perfdoctor export {_relative(folder)} -o annotated.json.gz\n"
    )


def _relative(folder: Path) -> str:
    """The folder as one would type it from here."""
    here = Path.cwd()
    return clean_line(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))
