"""`perfdoctor try --patch` and `--against`: a change of the source by anybody, measured in turns with the program."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import TrialChange
from perfdoctor.errors import InputError, UsageError
from perfdoctor.fixes import edited_source
from perfdoctor.fixes.fix_program import SOURCES_FOLDER, CopyProcess, keeps_results, project_of
from perfdoctor.fixes.patch import explain_git, run_git
from perfdoctor.fixes.project import Project
from perfdoctor.fixes.scratch_copy import copy_sources, own_file
from perfdoctor.report.trial_result import Trial
from perfdoctor.trials.change import ChangeDefaults
from perfdoctor.trials.load_changes import LoadedChange
from perfdoctor.trials.run_log import Arm, Choice
from perfdoctor.trials.run_trials import Start, TrialProcess
from perfdoctor.trials.trial_rounds import Candidate
from perfdoctor.trials.try_program import TrialKind, TrialState, TrySettings

Wanted: TypeAlias = tuple[tuple[LoadedChange, str | None], ...]
"""What `TrySettings.wanted` is."""


class PatchChange(ChangeDefaults):
    """A patch as trials know what they try.

    Attributes:
        patch: Its bytes.
        digest: What tells them from others.
        files: The files that it changes, from the project's folder.
    """

    rules: tuple[str, ...] = ()
    effect_on_results = "whatever it changes"

    def __init__(self, name: str, patch: bytes, files: Sequence[str]) -> None:
        self.name, self.patch, self.files = name, patch, tuple(files)
        self.summary = f"the sources with {name}"
        self.digest = hashlib.sha256(patch).hexdigest()[:12]

    def settings(self, facts: Any, findings: Any) -> tuple[str, ...]:  # noqa: ARG002
        """The one setting: none."""
        return ("",)

    def apply(self, setting: str, program: Any) -> None:
        """Nothing: the copy of the source has the patch."""

    def fix(self, setting: str) -> str:  # noqa: ARG002
        """How it is taken over."""
        return f"git apply {self.name}" if self.name.endswith((".diff", ".patch")) else f"git checkout {self.name} -- ."


class PatchedProcess(CopyProcess):
    """Runs a copy of the program's sources, with the patch and without."""

    def prepare(self, arm: Arm) -> Start:
        """Make the copy, with the patch or without, and say how to start it."""
        changes = [choice.loaded for choice in arm]
        copy = self.folder.parent / SOURCES_FOLDER / ("-".join(patch_of(each).digest for each in changes) or "plain")
        if not copy.is_dir():
            copy_sources(self.project, copy, {})
            for each in changes:
                for name in patch_of(each).files:
                    own_file(copy, name)
                apply_in(copy, given=patch_of(each).patch)
        wanted = [str((copy / name).resolve()) for each in changes for name in patch_of(each).files]
        files = [name for name in wanted if name.endswith(".py")]
        setting = json.dumps([*(each.name for each in changes), *files])
        return self.start(copy, tuple(TrialChange(each.name, each.file, each.class_name, setting) for each in changes))


def try_patch_kind(command: Sequence[str], patch: Path | None, revision: str | None) -> tuple[TrialKind, Wanted]:
    """How trials measure a patch, or the sources of another revision of the repository, and what is tried.

    Raises:
        UsageError: There is no such file or revision.
        InputError: The patch does not fit the program's sources, or changes nothing.
    """
    project = project_of(command)
    name, data = read_patch(patch) if patch is not None else diff_revision(project, revision or "HEAD")
    if not data.strip():
        raise InputError(f"{name} changes no file of {project.root}: there is nothing to measure.")
    apply_in(project.root, "--check", given=data, name=name)
    listed = apply_in(project.root, "--numstat", "-z", given=data).split("\0")
    files = [line.split("\t", 2)[-1] for line in listed if line]
    change = LoadedChange(PatchChange(name, data, files), edited_source.__file__, "EditedSource")

    def make_process(*arguments: Any) -> TrialProcess:
        process = PatchedProcess(*arguments)
        process.project = project
        return process

    def choose(state: TrialState, settings: TrySettings) -> tuple[list[Candidate], list[Trial]]:  # noqa: ARG001
        return [Candidate(Choice(change, ""), answers=())], []

    return TrialKind(make_process, choose, keeps_results, ""), ((change, patch_of(change).digest),)


def patch_of(loaded: LoadedChange) -> PatchChange:
    """The patch that a change stands for."""
    assert isinstance(loaded.change, PatchChange)
    return loaded.change


def read_patch(path: Path) -> tuple[str, bytes]:
    """The name and the bytes of a patch.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give a diff, as git diff writes it.") from None


def diff_revision(project: Project, revision: str) -> tuple[str, bytes]:
    """What makes the files of another revision of those that are there.

    Raises:
        UsageError: The program is in no repository, or that has no such revision.
    """
    ended = run_git(project.root, "diff", "--binary", "-R", revision, "--")
    if ended.returncode:
        why = explain_git(ended)
        raise UsageError(f"{revision} cannot be compared with ({why}): give a revision of {project.root}.")
    return revision, ended.stdout


def apply_in(folder: Path, *options: str, given: bytes, name: str = "the patch") -> str:
    """What `git apply` says of a patch in a folder, whatever repository that is in.

    Raises:
        InputError: The patch does not fit, or git cannot be started.
    """
    here = {each: value for each, value in os.environ.items() if each not in ("GIT_DIR", "GIT_WORK_TREE")}
    here["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
    ended = run_git(folder, "apply", *options, "-", given=given, environment=here)
    if ended.returncode:
        why = explain_git(ended).removeprefix("error: ")
        raise InputError(f"{name} does not fit the sources in {folder} ({why}).")
    return ended.stdout.decode(errors="replace")
