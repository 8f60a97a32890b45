"""`perfdoctor analyze`: traces in, a ranked report out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.cli import parameters as par
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress import reading_bar
from perfdoctor.errors import GateError, InputError, UsageError
from perfdoctor.reporters.output import emit, rendered, save, suffix_of, terminal_for

if TYPE_CHECKING:
    from perfdoctor.diagnosis.report import Report


def analyze(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Traces, folders of them, captures, globs, URLs; - is stdin.")
    ],
    as_json: par.AsJson = False,
    output: par.Output = [],  # noqa: B006 (Typer takes the default of a repeated option as it stands)
    select: par.Select = [],  # noqa: B006
    ignore: par.Ignore = [],  # noqa: B006
    settings: par.Settings = [],  # noqa: B006
    device: par.Device = None,
    rank: par.Rank = None,
    steps: par.Steps = None,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", help="Comes in a later version.")] = None,
    dask: Annotated[str | None, typer.Option("--dask", metavar="ADDRESS", help="Comes in a later version.")] = None,
    fail_on: Annotated[
        par.Level | None, typer.Option("--fail-on", help="Exit with 1 if a finding is this severe, or more.")
    ] = None,
    no_color: par.NoColor = False,
    quiet: par.Quiet = False,
    verbose: par.Verbose = False,
) -> None:
    """Say why the step is slow: what each trace spends its time on, and what to change.

    Thresholds and rules can also stand in pyproject.toml, in [tool.perfdoctor].
    """
    level = par.verbosity(quiet, verbose)
    refuse_later(jobs, dask)
    check_outputs(output)
    config = load_config(select, ignore, settings, Path.cwd())
    from perfdoctor.api import analyze as analyze_traces

    silent = quiet or (as_json and not sys.stdout.isatty())
    with reading_bar(wanted=not silent) as progress:
        report = analyze_traces(
            paths,
            select=config.select,
            ignore=config.ignore,
            device=device,
            rank=rank,
            steps=par.step_slice(steps),
            settings=config.settings,
            progress=progress,
        )
    show(report, as_json=as_json, no_color=no_color, verbosity=level)
    for path in output:
        save(report, path, rank=rank)
        sys.stderr.write(f"wrote {path}\n")
    if fail_on is not None:
        judge(report, fail_on)


def refuse_later(jobs: int | None, dask: str | None) -> None:
    """Refuse the options whose machinery does not exist yet.

    Raises:
        UsageError: one of them was given.
    """
    if dask is not None:
        raise UsageError("--dask comes in a later version; ranks are read one after another now")
    if jobs is not None and jobs != 1:
        raise UsageError("--jobs comes in a later version; ranks are read one after another now")


def check_outputs(paths: Sequence[str]) -> None:
    """See before the work that every output can be written.

    Raises:
        UsageError: a suffix that is not known.
        InputError: a folder that does not exist.
    """
    for path in paths:
        suffix_of(path)
        if not Path(path).absolute().parent.is_dir():
            raise InputError(f"{path} cannot be written: its folder does not exist; make it first")


def show(report: Report, *, as_json: bool, no_color: bool, verbosity: int) -> None:
    """Print the report on standard output."""
    if as_json:
        emit(rendered(report, ".json"))
    else:
        terminal = terminal_for(sys.stdout, color=False if no_color else None, verbosity=verbosity)
        emit(terminal.render(report))


def judge(report: Report, level: par.Level) -> None:
    """The gate of --fail-on.

    Raises:
        GateError: a finding is as severe as `level` or more, or not every chosen rule could judge.
    """
    from perfdoctor.diagnosis.finding import SEVERITIES

    failed = [outcome.rule for outcome in report.outcomes if outcome.status == "failed"]
    least = SEVERITIES.index(level.value)
    severe = [f.rule for f in report.findings if SEVERITIES.index(f.severity) >= least and f.rule != "PD901"]
    if severe:
        rules = ", ".join(sorted(set(severe)))
        count = f"{len(severe)} finding{'s are' if len(severe) > 1 else ' is'}"
        raise GateError(f"--fail-on {level.value}: {count} of this severity or more ({rules})")
    if failed:
        raise GateError(f"--fail-on {level.value} could not be judged: {', '.join(failed)} failed")
    if not any(outcome.status == "ran" for outcome in report.outcomes):
        raise GateError(f"--fail-on {level.value} could not be judged: no rule could run; -v says what they lack")
