"""`perfdoctor analyze`: traces in, a ranked report out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.cli import parameters as par
from perfdoctor.cli.config import load_config
from perfdoctor.cli.progress_bar import reading_bar
from perfdoctor.errors import GateError, InputError, UsageError
from perfdoctor.reporters.output import emit, rendered, save, suffix_of, terminal_for
from perfdoctor.reporters.wording import clean

if TYPE_CHECKING:
    from perfdoctor.report.report import Report


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
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", help="Processes to share the ranks among; 1 for none but this one."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option("--dask", metavar="ADDRESS", help="Let a Dask cluster do it: its tcp://scheduler:8786."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 2 if a rank is missing, after the report over the others.")
    ] = False,
    fail_on: Annotated[
        par.Level | None, typer.Option("--fail-on", help="Exit with 1 if a finding is this severe, or more.")
    ] = None,
    no_color: par.NoColor = False,
    quiet: par.Quiet = False,
    verbose: par.Verbose = False,
) -> None:
    """Say why the step is slow: what each trace spends its time on, and what to change.

    The traces of many ranks become one report: a folder, a pattern or a URL that names them is enough. A rank whose
    trace cannot be read, or whose worker dies, is missing in it and the others are analysed.

    Thresholds and rules can also stand in pyproject.toml, in [tool.perfdoctor].
    """
    level = par.verbosity(quiet, verbose)
    if jobs is not None and dask is not None:
        raise UsageError("--jobs and --dask exclude each other: the cluster decides how many workers it has")
    check_outputs(output)
    config = load_config(select, ignore, settings, Path.cwd())
    # Nothing here multiplies matrices; numpy's library would start a thread a core for it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
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
            jobs=jobs,
            dask=dask,
            progress=progress,
        )
    show(report, as_json=as_json, no_color=no_color, verbosity=level)
    for path in output:
        save(report, path, rank=rank)
        sys.stderr.write(f"wrote {clean(path)}\n")
    if strict:
        check_all_there(report, rank)
    if fail_on is not None:
        judge(report, fail_on)


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


def check_all_there(report: Report, rank: int | None) -> None:
    """The gate of --strict: every rank of the job, or the only one that was asked for.

    Raises:
        InputError: a rank could not be analysed, or has no trace.
    """
    from perfdoctor.report.merge_findings import format_ranges

    if report.missing:
        first, *others = report.missing
        more = f", and {len(others)} more" if others else ""
        raise InputError(f"--strict: {clean(first.path)}: {clean(first.warnings[0])}{more}")
    world = max((trace.world_size or 1 for trace in report.traces), default=1)
    lost = set(range(world)) - {account.rank or 0 for account in report.account}
    if rank is None and world > 1 and lost:
        raise InputError(
            f"--strict: of the job's {world} ranks there is no trace of {format_ranges(lost)}; give them, too"
        )


def judge(report: Report, level: par.Level) -> None:
    """The gate of --fail-on.

    Raises:
        GateError: a finding is as severe as `level` or more, or not every chosen rule could judge.
    """
    from perfdoctor.report.finding import SEVERITIES

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
