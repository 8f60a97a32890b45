"""`perfdoctor try --patch` and `--against`: what is made of a program, and what is said where nothing is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from perfdoctor.errors import InputError, UsageError
from perfdoctor.fixes.try_patch import PatchedProcess, try_patch_kind
from perfdoctor.trials.run_log import Choice
from perfdoctor.trials.step_counts import StepCounts

pytestmark = pytest.mark.process  # git

PATCH = """\
--- a/train.py
+++ b/train.py
@@ -1 +1 @@
-rows = [each for each in data]
+rows = data
--- a/conf/run.yaml
+++ b/conf/run.yaml
@@ -1 +1 @@
-workers: 0
+workers: 2
--- /dev/null
+++ b/fast.py
@@ -0,0 +1 @@
+pass
"""
COMMAND = ("python", "train.py")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with a configuration that is no Python, in a folder of its own."""
    root = tmp_path / "program"
    (root / "conf").mkdir(parents=True)
    (root / "train.py").write_text("rows = [each for each in data]\n")
    (root / "conf" / "run.yaml").write_text("workers: 0\n")
    (root / "conf" / "other.yaml").write_text("seed: 1\n")
    monkeypatch.chdir(root)
    return root


def read_tree(folder: Path) -> dict[str, str]:
    """The files of a program by name, behind links too; without those of git."""
    found = [
        Path(at) / name for at, _, names in os.walk(folder, followlinks=True) for name in names if ".git" not in at
    ]
    return {str(each.relative_to(folder)): each.read_text() for each in found}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.email=a@b.c", "-c", "user.name=a")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def start_both(project: Path, patch: Path | None, revision: str | None) -> list[dict[str, str]]:
    """The sources of the plain run, and of that with the change."""
    kind, [(change, _)] = try_patch_kind(COMMAND, patch, revision)
    process = kind.make_process(COMMAND, project.parent / "out" / "runs", StepCounts(), None)
    assert isinstance(process, PatchedProcess)
    starts = [process.prepare(arm) for arm in ((), (Choice(change, ""),))]
    assert [each.cwd is not None for each in starts] == [True, True]
    return [read_tree(each.cwd or Path()) for each in starts]


def test_a_patch_is_made_in_a_copy_configurations_and_new_files_too(project: Path, tmp_path: Path) -> None:
    before = read_tree(project)
    plain, changed = start_both(project, write(tmp_path / "c.diff", PATCH), None)
    assert plain == before == read_tree(project)
    assert changed == {
        "train.py": "rows = data\n",
        "conf/run.yaml": "workers: 2\n",
        "conf/other.yaml": "seed: 1\n",
        "fast.py": "pass\n",
    }


def test_a_patch_fits_a_program_in_a_repository(project: Path, tmp_path: Path) -> None:
    git(project, "init", "-q")
    plain, changed = start_both(project, write(tmp_path / "c.diff", PATCH), None)
    assert (plain["train.py"], changed["train.py"]) == ("rows = [each for each in data]\n", "rows = data\n")


def test_another_revision_is_made_in_a_copy(project: Path) -> None:
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    (project / "train.py").write_text("rows = data\n")
    plain, changed = start_both(project, None, "HEAD")
    assert (plain["train.py"], changed["train.py"]) == ("rows = data\n", "rows = [each for each in data]\n")


def test_the_program_tells_which_of_its_python_files_it_loads(project: Path, tmp_path: Path) -> None:
    kind, [(change, _)] = try_patch_kind(COMMAND, write(tmp_path / "c.diff", PATCH), None)
    start = kind.make_process(COMMAND, tmp_path / "out" / "runs", StepCounts(), None).prepare((Choice(change, ""),))
    assert [each.setting.count(".py") for each in start.changes] == [2]
    assert ".yaml" not in start.changes[0].setting
    assert project.name == "program"


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        (
            PATCH.replace("each for", "one for"),
            r"c.diff does not fit the sources in .*program \(patch failed: train.py:1",
        ),
        ("", "c.diff changes no file"),
        ("no diff at all\n", "does not fit the sources"),
        (PATCH.replace("train.py", "../train.py"), "does not fit the sources"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    project: Path, tmp_path: Path, patch: str, says: str
) -> None:
    before = read_tree(project)
    with pytest.raises(InputError, match=says) as error:
        try_patch_kind(COMMAND, write(tmp_path / "c.diff", patch), None)
    assert "\n" not in str(error.value)
    assert read_tree(project) == before


def test_a_file_or_a_revision_that_is_not_there_is_one_sentence(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.diff cannot be read"):
        try_patch_kind(COMMAND, tmp_path / "none.diff", None)
    with pytest.raises(UsageError, match="HEAD cannot be compared with"):
        try_patch_kind(COMMAND, None, "HEAD")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    with pytest.raises(UsageError, match="v9 cannot be compared with"):
        try_patch_kind(COMMAND, None, "v9")
    with pytest.raises(InputError, match="HEAD changes no file"):
        try_patch_kind(COMMAND, None, "HEAD")


def test_without_git_one_sentence_says_so(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for patch, revision in ((write(tmp_path / "c.diff", PATCH), None), (None, "HEAD")):
        with pytest.raises(InputError, match="git cannot be started"):
            try_patch_kind(COMMAND, patch, revision)
    assert project.is_dir()
