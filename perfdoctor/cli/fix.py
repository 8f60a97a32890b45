"""`perfdoctor fix`: edit a copy of the source as the findings advise, measure it, and write what pays as a patch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfdoctor.cli import parameters, trial_options
from perfdoctor.cli.program_target import PASS_THROUGH, PROGRAM_HELP, ProgramCommand, typed_target
from perfdoctor.cli.report_output import ReportOutput, check_outputs, save_outputs, shown_path
from perfdoctor.cli.try_progress import open_try_progress
from perfdoctor.errors import UsageError

if TYPE_CHECKING:
    from perfdoctor.fixes.fix_program import Fixed
    from perfdoctor.trials.try_program import TrySettings


@parameters.command(
    "perfdoctor fix train.py --epochs 1",
    "perfdoctor fix --apply train.py              # to a clean git tree",
    "perfdoctor fix --apply perfdoctor.patch      # one that is there",
    "perfdoctor fix --undo perfdoctor.patch",
    "perfdoctor fix -o fix.pr.md train.py         # a comment for a pull request",
    "perfdoctor fix capture/                      # for a recording, not measured",
    cls=ProgramCommand,
    context_settings=PASS_THROUGH,
)
def fix(
    ctx: typer.Context,
    target: Annotated[
        list[str] | None, typer.Argument(metavar="PROGRAM", help=f"{PROGRAM_HELP} Or a recording, or a patch to apply.")
    ] = None,
    *,
    apply: Annotated[
        bool, parameters.flag("--apply", help="Apply the patch, to a git tree without changes and only there.")
    ] = False,
    undo: Annotated[
        bool, parameters.flag("--undo", help="Take a patch back that was applied, by default the latest.")
    ] = False,
    pairs: trial_options.Pairs = trial_options.DEFAULT_PAIRS,
    budget: trial_options.Budget = trial_options.DEFAULT_BUDGET,
    allow_numerics: Annotated[
        bool, parameters.flag("--allow-numerics", help="Take edits in that change the losses, too.")
    ] = False,
    allow_changes: Annotated[
        bool, parameters.flag("--allow-changes", help="Take repairs of results in, and edits that write less.")
    ] = False,
    skip: trial_options.Skip = None,
    base: trial_options.Base = None,
    timeout: trial_options.Timeout = None,
    wait: trial_options.Wait = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Keep everything in FOLDER; the default is perfdoctor-fix-SCRIPT-TIME."
        ),
    ] = None,
    resume: trial_options.Resume = None,
    as_json: Annotated[bool, parameters.flag("--json", help="Print the whole report as JSON.")] = False,
    output: parameters.Output,
    no_color: parameters.NoColor = False,
    quiet: parameters.Quiet = False,
    verbose: parameters.Verbose = False,
) -> int:
    """Edit a copy of the program as its findings advise, measure each edit, and write a patch of what pays.

    The program is recorded once. Then each edit is made in a copy of its sources, and copy and plain program take
    turns, as with try; what makes the step shorter by more than the noise is measured together, and its losses are
    compared. What changes them is left out unless --allow-numerics says otherwise, and what is to change results or
    files on purpose unless --allow-changes does. No file of the program is changed without --apply.

    Of a recording the patch holds the edits that its findings advise, and nothing of it is measured.
    """
    verbosity = parameters.parse_verbosity(quiet, verbose)
    check_outputs(output)
    if apply and undo:
        raise UsageError("--apply and --undo exclude each other: give one of them.")
    if not target and not undo:
        raise UsageError("Nothing to fix: give a script, -m module, or -- command; or a recording.")
    words = typed_target(ctx, target) if target else [find_latest_patch()]
    first = Path(words[0])
    if undo or first.suffix == ".patch":
        return change_tree(first, undo=undo, is_asked=apply)
    if first.suffix != ".py" and not (first / "__main__.py").exists() and words[0] not in ("--", "-m"):
        if apply:
            raise UsageError("--apply takes what was measured: give the program, not a recording of it.")
        return propose_for_recording(first, out, allow_changes=allow_changes, quiet=quiet)
    limits = trial_options.parse_limits(pairs, budget, timeout, wait)
    settings = trial_options.make_settings(
        limits, wanted=(), allow_numerics=allow_numerics, allow_changes=allow_changes, skip=skip, base=base
    )
    trial_options.check_surroundings("fix")
    fixed, folder = fix_words(words, settings, out, resume, applies=apply, quiet=quiet)
    trial_options.print_trials(fixed.report, as_json=as_json, no_color=no_color, verbosity=verbosity)
    save_outputs(fixed.report, ReportOutput(files=tuple(output), verbosity=verbosity))
    take_patch(fixed, applies=apply, shows=not as_json)
    return trial_options.end_trials(folder, "fix", fixed.ended_by, quiet=quiet)


def fix_words(
    words: list[str], settings: TrySettings, out: Path | None, resume: Path | None, *, applies: bool, quiet: bool
) -> tuple[Fixed, Path]:
    """Measure the edits of a program; returns what was found, and the folder of the trials."""
    from perfdoctor.capture.command_line import parse_target
    from perfdoctor.fixes.fix_program import fix_program, project_of
    from perfdoctor.fixes.patch import check_clean

    command = parse_target(words, "fix")
    if applies:
        check_clean(project_of(command).root)  # said before the trials, not after them
    folder, earlier = trial_options.open_folder(command, "fix", out, resume)
    with open_try_progress(quiet=quiet) as progress:
        return fix_program(command, settings, folder, progress, earlier), folder


def take_patch(fixed: Fixed, *, applies: bool, shows: bool) -> None:
    """Show the patch, and apply it where that was asked for, else say where it is."""
    from perfdoctor.fixes.patch import apply_patch
    from perfdoctor.reporters.output import write_stdout

    if fixed.patch is not None and shows:
        write_stdout(f"\n{fixed.patch.read_text(errors='replace')}")
    if fixed.patch is None:
        sys.stderr.write("perfdoctor: no edit makes the step shorter by more than the noise: there is no patch\n")
    elif applies and fixed.ended_by is None:
        report_changes("changed", apply_patch(fixed.patch, fixed.root))
    else:
        patch = shown_path(fixed.patch)
        sys.stderr.write(f"perfdoctor: the patch is {patch}; to apply it: perfdoctor fix --apply {patch}\n")


def find_latest_patch() -> str:
    """The patch that was written last below this folder; a name that is not there where there is none."""
    found = [*Path.cwd().glob("perfdoctor-fix-*/perfdoctor.patch"), Path("perfdoctor.patch")]
    return str(max((each for each in found if each.exists()), key=lambda each: each.stat().st_mtime, default=found[-1]))


def change_tree(patch: Path, *, undo: bool, is_asked: bool) -> int:
    """Apply a patch that is there, or take it back.

    Raises:
        UsageError: Neither was asked for.
    """
    from perfdoctor.fixes.patch import apply_patch, undo_patch

    if not undo and not is_asked:
        raise UsageError(f"{patch} is a patch: give --apply or --undo with it.")
    report_changes("changed back" if undo else "changed", (undo_patch if undo else apply_patch)(patch, Path.cwd()))
    return 0


def report_changes(what: str, names: list[str]) -> None:
    """Say on stderr which files were changed."""
    sys.stderr.write(f"perfdoctor: {what}: {', '.join(names)}\n")


def propose_for_recording(path: Path, out: Path | None, *, allow_changes: bool, quiet: bool) -> int:
    """Print the patch for a recording, and say that nothing of it was measured."""
    from perfdoctor.capture.capture_folder import make_folder
    from perfdoctor.fixes.patch import PATCH_FILE
    from perfdoctor.fixes.propose_patch import propose_patch
    from perfdoctor.reporters.output import open_atomically, write_stdout

    proposed = propose_patch(path, allow_changes=allow_changes)
    for each in proposed.refused:
        if not quiet:
            sys.stderr.write(f"perfdoctor: {each.label} has no edit: {each.why}\n")
    if not proposed.edits:
        sys.stderr.write("perfdoctor: no finding of this recording has an edit that fits the source\n")
        return 0
    if out is not None:
        with open_atomically(make_folder(out, "fix", force=False) / PATCH_FILE, "name another --out") as file:
            file.write(proposed.patch)
    write_stdout(proposed.patch.decode(errors="replace"))
    sys.stderr.write("perfdoctor: nothing of this was measured: give the program in place of its recording\n")
    return 0
