"""`perfdoctor try`: run a program again and again, each time with one change, and say what each is really worth."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.cli import parameters, trial_options
from perfdoctor.cli.program_target import PASS_THROUGH, PROGRAM_HELP, ProgramCommand, typed_target
from perfdoctor.cli.report_output import ReportOutput, check_outputs, save_outputs
from perfdoctor.cli.try_progress import open_try_progress
from perfdoctor.errors import UsageError
from perfdoctor.reporters.clean_text import clean_line

if TYPE_CHECKING:
    from signal import Signals

    from perfdoctor.report.report import Report
    from perfdoctor.trials.load_changes import LoadedChange
    from perfdoctor.trials.try_program import TrialKind, TrySettings


def complete_changes(incomplete: str) -> parameters.Completions:
    """The changes, where those before the last comma stand already."""
    return parameters.match_start(parameters.read_names("perfdoctor.changes"), incomplete)


@parameters.command(
    "perfdoctor try train.py --epochs 1",
    "perfdoctor try --list",
    "perfdoctor try --only workers,fused train.py",
    "perfdoctor try --budget 30m --out trials train.py",
    "perfdoctor try --resume trials train.py      # goes on where it stopped",
    "perfdoctor try --patch change.diff train.py  # anybody's change",
    "perfdoctor try --against main train.py       # another revision",
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
    patch: Annotated[
        Path | None,
        typer.Option("--patch", metavar="DIFF", help="Try this change of the source alone, in a copy of it."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="REVISION", help="Try the sources of another revision of git, in a copy."),
    ] = None,
    pairs: trial_options.Pairs = trial_options.DEFAULT_PAIRS,
    budget: trial_options.Budget = trial_options.DEFAULT_BUDGET,
    allow_numerics: Annotated[
        bool, parameters.flag("--allow-numerics", help="Combine changes that alter numerics (autocast, compile), too.")
    ] = False,
    no_diagnose: Annotated[
        bool, parameters.flag("--no-diagnose", help="Do not record and analyse the program first.")
    ] = False,
    skip: trial_options.Skip = None,
    base: trial_options.Base = None,
    timeout: trial_options.Timeout = None,
    wait: trial_options.Wait = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Keep everything in FOLDER; the default is perfdoctor-try-SCRIPT-TIME."
        ),
    ] = None,
    resume: trial_options.Resume = None,
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

    With --patch or --against a change of the source is measured instead, in a copy of the program's Python files.

    Ctrl-C or SIGTERM ends the running trial and prints the table so far; --resume continues.
    """
    if lists:
        sys.stdout.write(list_changes())
        return 0
    from perfdoctor.capture.command_line import parse_target

    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    limits = trial_options.parse_limits(pairs, budget, timeout, wait)
    of_source = patch is not None or against is not None
    if of_source and (only or try_all or (patch is not None and against is not None)):
        raise UsageError("--patch, --against, --only and --all exclude one another: give one of them.")
    wanted, is_asked = ((), True) if of_source else choose_wanted(only, try_all)
    settings = trial_options.make_settings(
        limits,
        wanted=wanted,
        asked=is_asked,
        only_advised=not (is_asked or try_all or no_diagnose),
        diagnose=not no_diagnose,
        allow_numerics=allow_numerics,
        skip=skip,
        base=base,
    )
    if not target:
        raise UsageError("Nothing to try: give a script, -m module, or -- command; --list says what can be tried.")
    command = parse_target(typed_target(ctx, target), "try")
    trial_options.check_surroundings("try")
    kind = None
    if of_source:
        from perfdoctor.fixes.try_patch import try_patch_kind

        kind, wanted = try_patch_kind(command, patch, against)
        settings = replace(settings, wanted=wanted)
    report, folder, ended_by = run_trials(command, settings, out, resume, kind, quiet=quiet)
    trial_options.print_trials(report, as_json=as_json, no_color=no_color, verbosity=verbosity)
    save_outputs(report, ReportOutput(files=tuple(output), verbosity=verbosity))
    return trial_options.end_trials(folder, "try", ended_by, quiet=quiet)


def choose_wanted(only: Sequence[str], try_all: bool) -> tuple[tuple[tuple[LoadedChange, str | None], ...], bool]:
    """The changes to choose from, each with its setting where one is given, and whether they were asked for by name.

    Raises:
        UsageError: A change does not exist, or options exclude one another.
    """
    from perfdoctor.trials.load_changes import choose_changes, load_changes

    names = [name.strip() for text in only for name in text.split(",") if name.strip()]
    if only and not names:
        raise UsageError("--only names no change: give some, such as --only workers,fused; --list names them all.")
    if names and try_all:
        raise UsageError("--only and --all exclude each other: give one of them.")
    changes, broken = load_changes()
    for each in broken:
        sys.stderr.write(f"perfdoctor: the change {clean_line(each.name)} is left out: {clean_line(each.why)}\n")
    return choose_changes(names, changes) if names else tuple((each, None) for each in changes), bool(names)


def run_trials(
    command: Sequence[str],
    settings: TrySettings,
    out: Path | None,
    resume: Path | None,
    kind: TrialKind | None = None,
    *,
    quiet: bool,
) -> tuple[Report, Path, Signals | None]:
    """Try the changes; returns the report, the folder of the trials, and the signal that has ended them early."""
    from perfdoctor.trials.try_program import try_program

    folder, earlier = trial_options.open_folder(command, "try", out, resume)
    with open_try_progress(quiet=quiet) as progress:
        report, ended_by = try_program(command, settings, folder, progress, earlier, kind)
    return report, folder, ended_by


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
