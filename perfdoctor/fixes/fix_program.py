"""`perfdoctor fix` as a function: diagnose, edit a copy of the source, measure it in turns, and write the patch."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import TrialChange
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.fixes import edited_source, other_random_numbers
from perfdoctor.fixes.choose_edits import FoundEdit, RefusedEdit, apply_edits, choose_edits
from perfdoctor.fixes.other_random_numbers import OtherRandomNumbers
from perfdoctor.fixes.patch import PATCH_FILE, make_patch
from perfdoctor.fixes.project import Project, find_script
from perfdoctor.fixes.scratch_copy import copy_sources, map_command, map_folder
from perfdoctor.fixes.source_edit import SourceEdit
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.report import Report
from perfdoctor.report.trial_result import Trial
from perfdoctor.reporters.output import open_atomically
from perfdoctor.reporters.trial_table import INTENDED, describe_trials, format_losses, verdict_of_trials
from perfdoctor.reporters.write_report import save_report
from perfdoctor.trials.change import ChangeDefaults
from perfdoctor.trials.load_changes import LoadedChange, load_changes
from perfdoctor.trials.make_trials import compare_plain_losses, is_rounding, largest_loss_difference
from perfdoctor.trials.program_run import ProgramRun, compare_losses
from perfdoctor.trials.run_log import Arm, Choice
from perfdoctor.trials.run_trials import Start, TrialProcess
from perfdoctor.trials.trial_rounds import Candidate
from perfdoctor.trials.try_program import (
    LOUD_NOISE,
    Listener,
    TrialKind,
    TrialState,
    TrySettings,
    make_report,
    measure_program,
    plain_findings,
)

SOURCES_FOLDER = "sources"
# Edits that are measured to pay on these cores, as they are used now.
FOR_THESE_CORES = ("threads", "workers")
# What plain runs that draw other random numbers from the second step on are seeded with; each other run has seed 0.
OTHER_NUMBERS = (1, 2)
# So few runs do not show the largest difference that other numbers make: workers of the README's example, which draw
# others for the first batch already, made 1.6 times that of two seeds.
_SPREAD_FACTOR = 2.0
NOTHING_TO_EDIT = "no finding advises an edit that can be made here"


class EditChange(ChangeDefaults):
    """An edit as trials know what they try."""

    rules: tuple[str, ...] = ()

    def __init__(self, edit: SourceEdit, name: str) -> None:
        self.edit, self.name = edit, name
        self.summary = edit.code
        self.alters_numerics, self.intended_change = edit.alters_numerics, edit.intended_change
        self.effect_on_results = "a repair" if edit.intended_change == "results" else "none"

    def settings(self, facts: Any, findings: Any) -> tuple[str, ...]:  # noqa: ARG002
        """The one setting of the edit."""
        return (self.edit.setting,)

    def apply(self, setting: str, program: Any) -> None:
        """Nothing: the copy of the source has the edit."""

    def fix(self, setting: str) -> str:  # noqa: ARG002
        """The edited line."""
        return self.edit.code


class DrawOthers(ChangeDefaults):
    """Other random numbers, as trials know what they try; no fix of anything."""

    name, summary, effect_on_results = OtherRandomNumbers.name, "draws other random numbers", "all"
    rules: tuple[str, ...] = ()

    def settings(self, facts: Any, findings: Any) -> tuple[str, ...]:  # noqa: ARG002
        """The seeds."""
        return tuple(map(str, OTHER_NUMBERS))

    def apply(self, setting: str, program: Any) -> None:
        """Nothing here: `OtherRandomNumbers` does it in the program."""


class CopyProcess(TrialProcess):
    """Runs copies of the program's sources; the plain program runs from one, too.

    Attributes:
        project: The program whose sources are copied.
    """

    project: Project

    def start(self, copy: Path, changes: tuple[TrialChange, ...]) -> Start:
        """How the program is started from a copy."""
        command = map_command(self.command, self.project, copy)
        cwd = map_folder(self.project.cwd, self.project, copy)
        return Start(command, {"PYTHONPATH": make_search_path(self.project, copy)}, changes, cwd)


class EditedProcess(CopyProcess):
    """Runs a copy with each set of edits."""

    def run(self, name: str, arm: Arm) -> ProgramRun:
        """Run the program once with the edits of an arm; where an edit was met is its line in the user's file."""
        run = super().run(name, arm)
        met = {
            choice.loaded.name: replace(found, locations=((str(edit.source.path), edit.line, None),))
            for choice, edit in edits_of(arm)
            if (found := run.changes.get(choice.loaded.name)) is not None
        }
        return replace(run, changes={**run.changes, **met})

    def prepare(self, arm: Arm) -> Start:
        """Make the copy with the edits of an arm, and say how to start it."""
        edited = apply_edits(edit for _, edit in edits_of(arm))
        digest = hashlib.sha256(repr(sorted(edited.items())).encode()).hexdigest()
        copy = self.folder.parent / SOURCES_FOLDER / (digest[:12] if edited else "plain")
        if not copy.is_dir():
            copy_sources(self.project, copy, edited)
        settings = {choice.loaded.name: choice.setting for choice in arm}
        for choice, edit in edits_of(arm):
            settings[choice.loaded.name] = json.dumps([choice.loaded.name, str((copy / edit.source.name).resolve())])
        loaded = [choice.loaded for choice in arm]
        return self.start(
            copy, tuple(TrialChange(each.name, each.file, each.class_name, settings[each.name]) for each in loaded)
        )


@frozen_dataclass
class Fixed:
    """What `perfdoctor fix` has found.

    Attributes:
        report: The report of the diagnosis, with the trials of the edits.
        patch: The patch; None where no edit is worth it.
        root: The folder of the project, to which it is applied.
        ended_by: The signal that has ended the trials early.
    """

    report: Report
    patch: Path | None
    root: Path
    ended_by: signal.Signals | None = None


def project_of(command: Sequence[str]) -> Project:
    """The program of a command line that is typed in this folder."""
    return Project(find_script(command, Path.cwd()), Path.cwd(), command=command)


def fix_program(
    command: Sequence[str], settings: TrySettings, folder: Path, listener: Listener, earlier: Mapping[str, Any] | None
) -> Fixed:
    """Find the edits that a program's findings advise, measure them in a copy of its source, and write what pays.

    Arguments and errors are those of `measure_program`; no file of the project is written.
    """
    project = project_of(command)

    def make_process(*arguments: Any) -> TrialProcess:
        process = EditedProcess(*arguments)
        process.project = project
        return process

    def choose(state: TrialState, settings: TrySettings) -> tuple[list[Candidate], list[Trial]]:  # noqa: ARG001
        project.device_kind = "cuda" if state.diagnosis.facts.devices else "cpu"
        found, refused = choose_edits(plain_findings(state), project)
        names = [each.edit.action for each in found]
        return (
            [make_candidate(each, is_alone=names.count(each.edit.action) == 1) for each in found],
            [make_refusal(each) for each in refused],
        )

    kind = TrialKind(make_process, choose, keeps_results, NOTHING_TO_EDIT)
    state = measure_program(command, settings, folder, listener, earlier, kind)
    report = make_report(state, settings)
    save_report(report, folder / "report.json")
    kept = [edit_of(each.choice) for each in state.combination.kept]
    if not kept:
        return Fixed(report, None, project.root, state.ended_by)
    patch = folder / PATCH_FILE
    with open_atomically(patch, "free some space, or name another --out") as file:
        file.write(make_patch(kept, describe_proof(report, kept, command, state.diagnosis.facts)))
    return Fixed(report, patch, project.root, state.ended_by)


def describe_proof(report: Report, kept: Iterable[SourceEdit], command: Sequence[str], facts: CapturedFacts) -> str:
    """The message of a patch: what was measured and where, of which edits, and what it did to the losses."""
    lines = [
        f"perfdoctor: {verdict_of_trials(report)}",
        "",
        describe_trials(report),
        f"Measured: {describe_command(command)}{describe_machine(facts)}",
    ]
    codes = {(each.action, each.code): each.place for each in kept}
    for trial in report.trials:
        place = codes.get((trial.change.partition("@")[0], trial.fix))
        if place is not None and trial.ratio is not None:
            ratio = trial.ratio
            between = f"{ratio.median:.2f} of the step ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.pairs} pairs)"
            on_purpose = f"; {INTENDED[trial.intended_change]}" if trial.intended_change else ""
            lines.append(f"- {place}: {trial.fix}\n  {between}; losses {format_losses(trial)}{on_purpose}")
    return "\n".join(lines)


def describe_machine(facts: CapturedFacts) -> str:
    """Where it was measured, as the end of a sentence; "" where that is not known."""
    names = [each.name for each in facts.devices if each.name]
    where = [names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"] if names else []
    if not names and facts.cores.available:
        where = [f"{facts.cores.available:g} cores"]
    where += [f"PyTorch {facts.torch}"] if facts.torch else []
    return f", on {', '.join(where)}" if where else ""


def describe_command(command: Sequence[str]) -> str:
    """The command with which the patch was measured, as one types it; without the path of Python."""
    is_python = command[0] == sys.executable
    return shlex.join(["perfdoctor", "fix", *(command[1:] if is_python else ("--", *command))])


def keeps_results(candidate: Candidate, state: TrialState) -> bool:
    """Whether losses are the same to rounding, or to what other random numbers make of them.

    Where they cannot be compared, whether such an edit keeps them. Settings of threads and workers that were measured
    beside other programs are left out, too: on quiet cores they may be worse than nothing.
    """
    change, label = candidate.choice.loaded.change, candidate.choice.label
    plain = [*state.plain, *(pair.plain for pair in candidate.pairs)]
    is_disturbed = any(not each.is_undisturbed for each in plain if each.core_share is not None)
    if change.name.partition("@")[0] in FOR_THESE_CORES and is_disturbed and state.log.noise > LOUD_NOISE:
        state.notes[label] = (
            f"Not combined: {label}, because other programs used the cores: measure it again when they are quiet."
        )
        return False
    plain_difference = compare_plain_losses(state.plain)
    difference = largest_loss_difference(candidate.pairs, plain_difference)
    if difference is None:
        return not change.alters_numerics
    if is_rounding(difference, plain_difference):
        return True
    spread = measure_other_numbers(state) if _draws_others(change.name) and not change.alters_numerics else 0.0
    if difference > _SPREAD_FACTOR * spread:
        return False
    change.effect_on_results = "other random numbers"
    state.notes[label] = (
        f"{label} draws other random numbers: its losses differ by {difference:.0e} from those of the plain program, "
        f"and those of plain runs that draw others by {spread:.0e}."
    )
    return True


def measure_other_numbers(state: TrialState) -> float:
    """The largest relative difference of losses among plain runs that draw other random numbers; 0 without time."""
    other = LoadedChange(DrawOthers(), other_random_numbers.__file__, OtherRandomNumbers.__name__)
    choices = [Choice(other, str(seed)) for seed in OTHER_NUMBERS]
    if state.ended_by is not None or not state.log.has_time_for(len(choices)):
        return 0.0
    runs = [state.plain[0], *(state.log.run("numbers", (choice,)) for choice in choices)]
    return max(compare_losses(one, two) or 0.0 for one, two in itertools.combinations(runs, 2))


def _draws_others(name: str) -> bool:
    """Whether a change of the name of an edit says that it may make a program draw other random numbers."""
    changes = {each.name: each.change for each in load_changes()[0]}
    change = changes.get(name.partition("@")[0])
    return change is not None and "random numbers" in change.effect_on_results


def make_candidate(found: FoundEdit, *, is_alone: bool) -> Candidate:
    """What is measured of an edit; its name says the place where others do the same elsewhere."""
    name = found.edit.action if is_alone else f"{found.edit.action}@{found.edit.place}"
    loaded = LoadedChange(EditChange(found.edit, name), edited_source.__file__, "EditedSource")
    # What a repair does to the step answers no finding.
    answers = () if found.edit.intended_change == "results" else found.answers
    return Candidate(Choice(loaded, found.edit.setting), answers=answers)


def make_refusal(refused: RefusedEdit) -> Trial:
    """The row of what has no edit."""
    return Trial(refused.action, refused.setting, "not applicable", why=refused.why)


def edits_of(arm: Arm) -> list[tuple[Choice, SourceEdit]]:
    """The edits of an arm."""
    return [(choice, choice.loaded.change.edit) for choice in arm if isinstance(choice.loaded.change, EditChange)]


def edit_of(choice: Choice) -> SourceEdit:
    """The edit that a choice stands for."""
    change = choice.loaded.change
    assert isinstance(change, EditChange)
    return change.edit


def make_search_path(project: Project, copy: Path) -> str:
    """PYTHONPATH with the folders of the copy for those of the project, so that they precede an editable install."""
    folders = [Path(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if any((project.root / name).exists() for name in ("pyproject.toml", "setup.py")):
        folders = [project.root, project.root / "src", *folders]
    mapped = [map_folder(each.resolve(), project, copy) or each for each in folders]
    return os.pathsep.join(map(str, mapped))
