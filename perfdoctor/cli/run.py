"""`perfdoctor run`: record an unmodified program, then analyse what was recorded.

The program comes first: its output, its exit code, its signals. Whatever goes wrong on our side afterwards is a line
on stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from perfdoctor.capture.capture_folder import has_traces
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.cli import parameters as par
from perfdoctor.cli.analyze import check_outputs, show
from perfdoctor.cli.progress_bar import reading_bar
from perfdoctor.errors import PerfdoctorError
from perfdoctor.reporters.wording import clean

if TYPE_CHECKING:
    from perfdoctor.capture.launch import CaptureResult

_USUAL = CaptureOptions()
_RAW = "perfdoctor.arguments"


class RunCommand(TyperCommand):
    """Keeps the arguments as typed: the parser eats the `--` that tells a command from a script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual, after taking a copy."""
        ctx.meta[_RAW] = list(args)
        return super().parse_args(ctx, args)


def run(
    ctx: typer.Context,
    target: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="script.py args, -m module args, or -- command args.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The capture folder; perfdoctor-SCRIPT-TIME if left out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a capture that is in the folder.")] = False,
    skip: Annotated[int, typer.Option("--skip", help="Steps left alone at the start.")] = _USUAL.skip,
    base: Annotated[int, typer.Option("--base", help="Steps timed without a profiler.")] = _USUAL.base,
    warmup: Annotated[int, typer.Option("--warmup", help="Steps for the profiler to warm up.")] = _USUAL.warmup,
    timing: Annotated[int, typer.Option("--timing", help="Steps recorded for their times.")] = _USUAL.timing,
    evidence: Annotated[
        int, typer.Option("--evidence", help="Steps recorded with shapes and source lines.")
    ] = _USUAL.evidence,
    stop_after: Annotated[bool, typer.Option("--stop-after", help="End the program once all is recorded.")] = False,
    ranks: Annotated[str | None, typer.Option("--ranks", metavar="N,N", help="Record these ranks only.")] = None,
    nvtx_only: Annotated[
        bool, typer.Option("--nvtx-only", help="Record nothing; mark steps and phases for nsys, as NVTX ranges.")
    ] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Record only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON, behind the program's output.")] = False,
    output: par.Output = [],  # noqa: B006 (Typer takes the default of a repeated option as it stands)
    no_color: par.NoColor = False,
    quiet: par.Quiet = False,
    verbose: par.Verbose = False,
) -> int:
    """Run a program as it is, record its training steps, and say why they are slow.

    \b
    perfdoctor run train.py --epochs 1
    perfdoctor run -m package.train
    perfdoctor run -- torchrun --nproc-per-node 2 train.py

    Everything behind the program belongs to the program, and so does the exit code. Some 30 steps are enough: they are
    first left alone, then timed without a profiler, then recorded for their times, then with shapes and source lines.
    The rest of the run is left alone, too; --stop-after ends it there.
    """  # noqa: D301 - the backspace is Click's mark of a paragraph that keeps its lines
    from perfdoctor.capture import launch

    level = par.verbosity(quiet, verbose)
    check_outputs(output)
    options = CaptureOptions(
        out, force, skip, base, warmup, timing, evidence, stop_after, par.numbers(ranks, "--ranks"), nvtx_only
    )
    result = launch.run(launch.parse_target(as_typed(ctx.meta.get(_RAW, ()), target)), options)
    _tell(result)
    if result.folder is not None and has_traces(result.folder) and not no_report:
        try:
            _report(result.folder, output, as_json=as_json, no_color=no_color, verbosity=level)
        except Exception as error:  # the program has run: its exit code stands, whatever became of the report
            ours = "" if isinstance(error, PerfdoctorError) else f"{type(error).__name__}: "
            sys.stderr.write(f"perfdoctor: the recording was not reported: {clean(f'{ours}{error}')}\n")
    return result.exit_code


def as_typed(arguments: Any, target: list[str]) -> list[str]:
    """The target with the `--` in front of it, when there was one."""
    before = list(arguments)[: len(arguments) - len(target)]
    return ["--", *target] if before[-1:] == ["--"] else target


def _tell(result: CaptureResult) -> None:
    sys.stdout.flush()
    for note in result.notes:
        sys.stderr.write(f"perfdoctor: {clean(note)}\n")
    if result.folder is not None:
        recorded = "recorded" if has_traces(result.folder) else "there is nothing to report on; the times of steps are"
        sys.stderr.write(f"perfdoctor: {recorded} in {_near(result.folder)}\n")
    sys.stderr.flush()


def _report(folder: Path, output: list[str], *, as_json: bool, no_color: bool, verbosity: int) -> None:
    """Analyse the capture, write report.json into it, and print the report."""
    from perfdoctor.api import analyze as analyze_traces
    from perfdoctor.cli.config import load_config
    from perfdoctor.reporters.output import save

    config = load_config((), (), (), Path.cwd())
    with reading_bar(wanted=verbosity >= 0 and not as_json) as progress:
        report = analyze_traces(
            folder, select=config.select, ignore=config.ignore, settings=config.settings, progress=progress
        )
    save(report, folder / "report.json")
    if not as_json:
        sys.stdout.write("\n")
    show(report, as_json=as_json, no_color=no_color, verbosity=verbosity)
    for path in output:
        save(report, path)
        sys.stderr.write(f"wrote {clean(path)}\n")
    sys.stderr.write(f"perfdoctor: to see it on a time line: perfdoctor export {_near(folder)} -o annotated.json.gz\n")


def _near(folder: Path) -> str:
    """The folder as one would type it from here."""
    here = Path.cwd()
    return clean(str(folder.relative_to(here) if folder.is_relative_to(here) else folder))
