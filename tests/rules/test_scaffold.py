"""`perfdoctor new-rule`: the files that it writes work at once, and existing files stay as they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perfdoctor.errors import InputError, UsageError
from perfdoctor.rules.scaffold import write_new_rule

ROOT = Path(__file__).resolve().parents[2]
GROUP = "perfdoctor.analyzers"


def run_tests(folder: Path, test_file: Path) -> None:
    """Run the test of a new rule as its author does, in a process of its own."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    paths = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test_file)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def entry_points(folder: Path) -> dict[str, str]:
    points: dict[str, str] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    return points


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def lint(folder: Path, *options: str) -> None:
    """Check the new files with ruff, where it is installed."""
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if ruff is not None:
        for command in (["check"], ["format", "--check"]):
            done = subprocess.run(
                [ruff, *command, "--no-cache", *options, "."], cwd=folder, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_an_empty_folder_becomes_a_package_whose_test_passes(tmp_path: Path) -> None:
    written = write_new_rule(tmp_path, "XX101", "slow-widgets")
    assert written.rule_file == tmp_path / "perfdoctor_slow_widgets" / "xx101_slow_widgets.py"
    assert written.test_file == tmp_path / "tests" / "test_xx101_slow_widgets.py"
    assert written.other_files == (tmp_path / "perfdoctor_slow_widgets" / "__init__.py", tmp_path / "pyproject.toml")
    assert entry_points(tmp_path) == {"XX101": "perfdoctor_slow_widgets.xx101_slow_widgets:SlowWidgets"}
    lint(tmp_path)
    run_tests(tmp_path, written.test_file)


@pytest.mark.process
def test_a_second_rule_stands_beside_the_first(tmp_path: Path) -> None:
    write_new_rule(tmp_path, "XX101", "slow-widgets")
    before = files_of(tmp_path)
    written = write_new_rule(tmp_path, "XX100", "wide-copies")
    assert written.other_files == (tmp_path / "pyproject.toml",)
    after = files_of(tmp_path)
    assert {name for name in after if after[name] != before.get(name)} == {
        "pyproject.toml",
        "perfdoctor_slow_widgets/xx100_wide_copies.py",
        "tests/test_xx100_wide_copies.py",
    }
    assert list(entry_points(tmp_path)) == ["XX100", "XX101"]
    run_tests(tmp_path, written.test_file)


@pytest.mark.process
def test_in_this_repository_it_takes_the_folders_that_rules_and_their_tests_are_in(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    before = (ROOT / "pyproject.toml").read_text()
    for folder in ("analyzers", "tests/analyzers", "docs/rules/examples", "perfdoctor/testing"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "perfdoctor" / "testing" / "__init__.py").write_text('"""As ruff finds it."""\n', encoding="utf-8")
    try:
        (tmp_path / "perfdoctor" / "analyzers").symlink_to(Path("..", "analyzers"), target_is_directory=True)
    except OSError as error:
        pytest.skip(f"no links here: {error}")
    written = write_new_rule(tmp_path, "PD299", "slow-widgets")
    assert written.rule_file == tmp_path / "analyzers" / "pd299_slow_widgets.py"
    assert written.test_file == tmp_path / "tests" / "analyzers" / "test_pd299_slow_widgets.py"
    assert "from perfdoctor.analyzers.pd299_slow_widgets import SlowWidgets\n" in written.test_file.read_text()
    line = 'PD299 = "perfdoctor.analyzers.pd299_slow_widgets:SlowWidgets"\n'
    after = (tmp_path / "pyproject.toml").read_text()
    assert after.replace(line, "") == before
    assert list(entry_points(tmp_path)) == sorted(entry_points(tmp_path))
    lint(tmp_path, "--config", str(ROOT / "pyproject.toml"))
    page = tmp_path / "docs" / "rules" / "examples" / "PD299.md"
    assert page in written.other_files
    torch = pytest.importorskip("torch")
    text = page.read_text()
    assert re.findall("^###.*", text, re.MULTILINE) == ["### Bad", "### Good"]
    for code in re.findall("```python\n(.*?)```", text, re.DOTALL):
        exec(code, {"torch": torch, "F": torch.nn.functional, "device": torch.device("cpu")})


def test_a_package_without_rules_gets_the_group_of_entry_points(tmp_path: Path) -> None:
    text = '[project]\nname = "My-Models"\nversion = "1"  # ours\n\n[tool.other]\nx = 1\n'
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "src" / "my_models").mkdir(parents=True)
    written = write_new_rule(tmp_path, "XX101", "slow-widgets")
    assert written.rule_file == tmp_path / "src" / "my_models" / "xx101_slow_widgets.py"
    assert (tmp_path / "pyproject.toml").read_text().startswith(text)
    assert entry_points(tmp_path) == {"XX101": "my_models.xx101_slow_widgets:SlowWidgets"}


@pytest.mark.parametrize(
    ("rule", "name", "sentence"),
    [
        ("xx101", "slow-widgets", "the id of a rule is two or more capitals and three digits"),
        ("XX1", "slow-widgets", "the id of a rule"),
        ("XX101", "Slow Norms", "the name of a rule is in small letters with hyphens"),
        ("XX101", "3d-norms", "the name of a rule"),
        ("PD101", "slow-widgets", "there is a rule PD101 dataloader-stall already"),
        ("XX101", "dataloader-stall", "there is a rule PD101 dataloader-stall already"),
        ("PD802", "slow-widgets", "the id PD802 is reserved. The rule went"),
    ],
)
def test_a_malformed_or_taken_id_or_name_writes_nothing(tmp_path: Path, rule: str, name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        write_new_rule(tmp_path, rule, name)
    assert files_of(tmp_path) == {}


def test_a_project_without_its_package_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'elsewhere'\n")
    before = files_of(tmp_path)
    with pytest.raises(UsageError, match="has no package 'elsewhere' for the rule"):
        write_new_rule(tmp_path, "XX101", "slow-widgets")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("taken", ["perfdoctor_mine/xx101_slow_widgets.py", "tests/test_xx101_slow_widgets.py"])
def test_no_file_is_overwritten(tmp_path: Path, taken: str) -> None:
    write_new_rule(tmp_path, "XX100", "mine")
    (tmp_path / taken).write_text("mine")
    before = files_of(tmp_path)
    with pytest.raises(InputError, match="is there already"):
        write_new_rule(tmp_path, "XX101", "slow-widgets")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[project\n", "is no TOML file"),
        (
            '[project]\nname = "mine"\nentry-points = {"perfdoctor.analyzers" = {XX1 = "mine.one:One"}}\n',
            'add this one there: XX101 = "mine.xx101_slow_widgets:SlowWidgets"',
        ),
    ],
)
def test_a_pyproject_that_cannot_be_edited_stays_as_it_is(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "mine").mkdir()
    before = files_of(tmp_path)
    with pytest.raises(InputError, match=sentence):
        write_new_rule(tmp_path, "XX101", "slow-widgets")
    assert files_of(tmp_path) == before


def test_a_full_disk_leaves_the_pyproject_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_new_rule(tmp_path, "XX101", "slow-widgets")
    before = files_of(tmp_path)

    def write_half(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text.encode()[: len(text) // 2 if path.name.endswith("toml.part") else None])
        if "toml" in path.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(InputError, match=r"pyproject.toml cannot be written \(No space left on device\)"):
        write_new_rule(tmp_path, "XX102", "slow-gadgets")
    assert before.items() <= files_of(tmp_path).items()
    assert not list(tmp_path.rglob("*.part"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        write_new_rule(tmp_path / "file", "XX103", "slow-gears")
