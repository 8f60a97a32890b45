"""`perfdoctor try`: run a program again and again, each time with one change, and say what each is really worth."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.cli import parameters
from perfdoctor.cli.program_target import PASS_THROUGH, PROGRAM_HELP, ProgramCommand, typed_target
from perfdoctor.cli.report_output import ReportOutput, check_outputs, print_analysis, save_outputs, shown_path
from perfdoctor.cli.try_progress import open_try_progress
from perfdoctor.errors import UsageError
from perfdoctor.reporters.clean_text import clean_line

if TYPE_CHECKING:
    from signal import Signals

    from perfdoctor.report.report import Report
    from perfdoctor.trials.try_program import TrySettings

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")
_DEFAULT_BUDGET = "10m"
_DEFAULT_PAIRS = 6
_MAX_PAIRS = 100
_MAX_WAIT_S = 60.0


def complete_changes(incomplete: str) -> parameters.Completions:
    """The changes, where those before the last comma stand already."""
    return parameters.match_start(parameters.read_names("perfdoctor.changes"), incomplete)


@parameters.command(
    "perfdoctor try train.py --epochs 1",
    "perfdoctor try --list",
    "perfdoctor try --only workers,fused train.py",
    "perfdoctor try --budget 30m --out trials train.py",
    "perfdoctor try --resume trials train.py      # goes on where it stopped",
    "perfdoctor try -- torchrun --nproc-per-node 2 train.py",
    name="try",
    cls=ProgramCommand,
    context_settings=PASS_THROUGH,
)
def try_(
    ctx: typer.Context,
    target: Annotated[list[str] | None, typer.Argument(metavar="PROGRAM", help=PROGRAM_HELP)] = None,
    *,
    lists: Annotated[bool, parameters.flag("--list", help="List what can be tried, and try nothing.")] = False,
    only: Annotated[
        list[str],
        parameters.repeated(
            "--only",
            metavar="CHANGE",
            autocompletion=complete_changes,
            help="Try these changes, such as workers,fused or workers=4, whatever the findings say.",
        ),
    ],
    try_all: Annotated[
        bool, parameters.flag("--all", help="Try every change that applies, not only what a finding advises.")
    ] = False,
    pairs: Annotated[
        int, typer.Option("--pairs", metavar="N", help="Compare at most N pairs of runs for each change.")
    ] = _DEFAULT_PAIRS,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Start no run after this time, such as 10m, 1h30m or 90s.")
    ] = _DEFAULT_BUDGET,
    allow_numerics: Annotated[
        bool, parameters.flag("--allow-numerics", help="Combine changes that alter numerics (autocast, compile), too.")
    ] = False,
    no_diagnose: Annotated[
        bool, parameters.flag("--no-diagnose", help="Do not record and analyse the program first.")
    ] = False,
    skip: Annotated[
        int | None, typer.Option("--skip", min=0, metavar="N", help="Leave the first N steps of each run alone.")
    ] = None,
    base: Annotated[int | None, typer.Option("--base", min=1, metavar="N", help="Time N steps of each run.")] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", metavar="TIME", help="End a run after this time; the default is five times the plain one."
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="TIME",
            help="Wait this long in all for other programs to leave the cores, 0 for not at all; the default is a "
            "tenth of the budget, a minute at most.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Keep everything in FOLDER; the default is perfdoctor-try-SCRIPT-TIME."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Go on where the trials in FOLDER stopped.")
    ] = None,
    as_json: Annotated[bool, parameters.flag("--json", help="Print the whole report as JSON.")] = False,
    output: parameters.Output,
    no_color: parameters.NoColor = False,
    quiet: parameters.Quiet = False,
    verbose: parameters.Verbose = False,
) -> int:
    """Run a program again and again, each time with one change from outside, and measure what the change is worth.

    The program is recorded once to see what its findings advise. Then the plain program and each change take turns,
    and each run is ended after some steps. What makes the step shorter is applied together at the end. No file of the
    program is changed; what the program itself writes it writes in each run, and PERFDOCTOR_TRIAL=1 tells it.

    Ctrl-C or SIGTERM ends the running trial and prints the table so far; --resume continues.
    """
    if lists:
        sys.stdout.write(list_changes())
        return 0
    from perfdoctor.capture.command_line import parse_target

    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    settings = make_settings(
        only,
        try_all,
        pairs,
        budget,
        timeout,
        wait,
        allow_numerics=allow_numerics,
        diagnose=not no_diagnose,
        skip=skip,
        base=base,
    )
    if not target:
        raise UsageError("Nothing to try: give a script, -m module, or -- command; --list says what can be tried.")
    command = parse_target(typed_target(ctx, target), "try")
    check_surroundings()
    if resume is not None and out is not None:
        raise UsageError("--resume continues in its own folder: leave --out away.")
    report, folder, ended_by = run_trials(command, settings, out, resume, quiet=quiet)
    print_trials(report, as_json=as_json, no_color=no_color, verbosity=verbosity)
    save_outputs(report, ReportOutput(files=tuple(output), verbosity=verbosity))
    if not quiet:
        hint = f"; to go on: perfdoctor try --resume {shown_path(folder)} ..." if ended_by else ""
        sys.stderr.write(f"perfdoctor: everything is in {shown_path(folder)}{hint}\n")
    return 128 + ended_by if ended_by else 0


def make_settings(
    only: Sequence[str],
    try_all: bool,
    pairs: int,
    budget: str,
    timeout: str | None,
    wait: str | None,
    *,
    allow_numerics: bool,
    diagnose: bool,
    skip: int | None,
    base: int | None,
) -> TrySettings:
    """The settings that the options mean.

    Raises:
        UsageError: A change does not exist, a time is malformed, or options exclude one another.
    """
    from perfdoctor.trials.load_changes import choose_changes, load_changes
    from perfdoctor.trials.try_program import TrySettings

    names = [name.strip() for text in only for name in text.split(",") if name.strip()]
    if only and not names:
        raise UsageError("--only names no change: give some, such as --only workers,fused; --list names them all.")
    if names and try_all:
        raise UsageError("--only and --all exclude each other: give one of them.")
    if not 1 <= pairs <= _MAX_PAIRS:
        raise UsageError(f"--pairs {pairs} must be from 1 to {_MAX_PAIRS}.")
    changes, broken = load_changes()
    for each in broken:
        sys.stderr.write(f"perfdoctor: the change {clean_line(each.name)} is left out: {clean_line(each.why)}\n")
    budget_s = parse_duration(budget, "--budget")
    if wait is None:
        quiet_s = min(budget_s / 10, _MAX_WAIT_S)
    else:
        quiet_s = 0.0 if wait == "0" else parse_duration(wait, "--wait")
    return TrySettings(
        wanted=choose_changes(names, changes) if names else tuple((each, None) for each in changes),
        asked=bool(names),
        only_advised=not (names or try_all) and diagnose,
        diagnose=diagnose,
        pairs=pairs,
        budget_s=budget_s,
        allow_numerics=allow_numerics,
        skip=skip,
        base=base,
        timeout_s=None if timeout is None else parse_duration(timeout, "--timeout"),
        quiet_s=quiet_s,
    )


def parse_duration(text: str, option: str) -> float:
    """Seconds in "10m", "1h30m", "90s" or "90".

    Raises:
        UsageError: It is no time above 0.
    """
    match = _DURATION.fullmatch(text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise UsageError(f"{option} {text} is not a time: give one such as {option} 10m, 1h30m or 90s.")
    return float(total)


def check_surroundings() -> None:
    """Check that programs can be measured from here.

    Raises:
        UsageError: perfdoctor is switched off, or is one of several ranks itself.
    """
    from perfdoctor.capture.capture_folder import launcher_rank

    if os.environ.get("PERFDOCTOR_DISABLE", "0") not in ("", "0"):
        raise UsageError("PERFDOCTOR_DISABLE is set, so that nothing can be measured: unset it to try changes.")
    if launcher_rank() is not None:
        raise UsageError(
            "try starts the whole job again and again, and is a rank of one itself here: put it in front of the "
            "launcher, as in perfdoctor try -- torchrun train.py."
        )


def run_trials(
    command: Sequence[str], settings: TrySettings, out: Path | None, resume: Path | None, *, quiet: bool
) -> tuple[Report, Path, Signals | None]:
    """Try the changes; returns the report, the folder of the trials, and the signal that has ended them early."""
    from perfdoctor.trials.run_log import read_state
    from perfdoctor.trials.try_program import make_trial_folder, try_program

    earlier = None if resume is None else read_state(resume)
    folder = make_trial_folder(command, out) if resume is None else resume.absolute()
    with open_try_progress(quiet=quiet) as progress:
        report, ended_by = try_program(command, settings, folder, progress, earlier)
    return report, folder, ended_by


def print_trials(report: Report, *, as_json: bool, no_color: bool, verbosity: int) -> None:
    """Print the trials, with -v the whole report, or all of it as JSON."""
    if as_json or verbosity > 0:
        shown = "json" if as_json else "text"
        print_analysis(report, ReportOutput(shown, no_color=no_color, verbosity=verbosity))
        return
    from perfdoctor.reporters.output import write_stdout
    from perfdoctor.reporters.trial_reports import TrialTerminal
    from perfdoctor.reporters.write_report import terminal_for

    write_stdout(TrialTerminal(width=terminal_for(sys.stdout).width).render(report))


def list_changes() -> str:
    """The table of what can be tried."""
    from perfdoctor.cli.plain_table import format_table
    from perfdoctor.trials.load_changes import load_changes

    changes, broken = load_changes()
    needs = {"": "", "cuda": " (needs a GPU)", "ranks": " (needs several ranks)"}
    rows = [
        (
            each.name,
            f"{each.change.summary}{needs[each.change.needs]}",
            f"{'numerics: ' if each.change.alters_numerics else ''}{each.change.effect_on_results}",
        )
        for each in changes
    ]
    table = format_table(("change", "what it does", "may change in results"), rows)
    return table + "".join(f"{clean_line(each.name)} is left out: {clean_line(each.why)}\n" for each in broken)
