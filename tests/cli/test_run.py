"""`perfdoctor run`: the program's output and exit code come first, the report after them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfdoctor.cli import program_target

pytest.importorskip("torch")

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

ARGUMENTS = """\
import sys
print("arguments:", sys.argv[1:])
sys.exit(7)
"""


@pytest.fixture
def arguments(tmp_path) -> Path:
    path = tmp_path / "arguments.py"
    path.write_text(ARGUMENTS)
    return path


def test_everything_behind_the_program_is_the_programs(perfdoctor, arguments):
    ended = perfdoctor("run", "--skip", "2", arguments, "--json", "-v", "--", "--help", "--out")
    assert ended.code == 7
    assert ended.out == "arguments: ['--json', '-v', '--', '--help', '--out']\n"
    assert "nothing was recorded" in ended.line


def test_a_module_is_run_as_python_does(perfdoctor, arguments):
    ended = perfdoctor("run", "--no-report", "-m", arguments.stem, "-m", "x")
    assert ended.code == 7
    assert ended.out == "arguments: ['-m', 'x']\n"


def test_behind_two_dashes_stands_any_command(perfdoctor):
    ended = perfdoctor("run", "--", "sh", "-c", "echo here; exit 3", "--json")
    assert (ended.code, ended.out) == (3, "here\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--forse", "train.py"], "--forse"),
        (["missing.py"], "missing.py: no such file"),
        (["--ranks", "a,b", "train.py"], "--ranks a,b must be numbers"),
        (["--timing", "0", "train.py"], "--timing 0"),
        (["-o", "r.pdf", "train.py"], "suffix of an output file must be one of"),
        (["--", ""], "cannot be"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_and_exit_code_2(perfdoctor, argv, words):
    ended = perfdoctor("run", *argv)
    assert ended.code == 2
    assert words in ended.line
    assert ended.out == ""
    assert list(Path().glob("perfdoctor-*")) == []


@pytest.mark.parametrize(
    ("arguments", "target", "typed"),
    [
        (["--out", "x", "--", "cmd", "a"], ["cmd", "a"], ["--", "cmd", "a"]),
        (["--out", "x", "train.py", "--", "a"], ["train.py", "--", "a"], ["train.py", "--", "a"]),
        (["-m", "mod", "--", "a"], ["-m", "mod", "--", "a"], ["-m", "mod", "--", "a"]),
        (["train.py"], ["train.py"], ["train.py"]),
    ],
)
def test_the_dashes_before_a_command_are_restored(arguments, target, typed):
    context = SimpleNamespace(meta={program_target.ARGUMENTS: arguments})
    assert program_target.typed_target(context, target) == typed


def test_a_training_is_recorded_and_reported(perfdoctor, training, short):
    ended = perfdoctor("run", *short, "--out", "capture", "-o", "r.md", training, "5")
    assert ended.code == 5
    first, _, rest = ended.out.partition("\n")
    assert first == "trained"
    # On a busy machine other programs come first.
    assert re.match(r"\n(Training: a step takes .* on the CPU|Other programs had the cores )", rest, re.DOTALL)
    assert re.search(r"waits .* of each .* step for training\.py:[0-9]+", rest.replace("\n", " "))
    assert "num_workers" in rest
    assert "perfdoctor: recorded in capture\n" in ended.err
    assert "perfdoctor export capture -o annotated.json.gz" in ended.err
    assert json.loads(Path("capture/report.json").read_bytes())["findings"][0]["rule"] == "PD101"
    assert "PD101" in Path("r.md").read_text(encoding="utf-8")


def test_a_report_that_fails_leaves_the_programs_exit_code(perfdoctor, training, short):
    Path("pyproject.toml").write_text("[tool.perfdoctor]\nnonsense = 1\n")
    ended = perfdoctor("run", *short, training, "5")
    assert ended.code == 5
    assert ended.out == "trained\n"
    assert ended.err.splitlines()[-1].startswith("perfdoctor: the recording was not reported: ")
    assert "Traceback" not in ended.err


def test_a_program_with_fewer_steps_than_asked_for_gets_one_line_of_what_to_do(perfdoctor, training):
    ended = perfdoctor("run", "--skip", "10", "--out", "capture", training, "5")
    assert (ended.code, ended.out) == (5, "trained\n")
    lines = [line for line in ended.err.splitlines() if line.startswith("perfdoctor: ")]
    assert "before the timing window begins at step 22: let it run for 34 steps; windows that fit: " in lines[0]
    assert lines[1:] == ["perfdoctor: there is nothing to report on; the times of steps are in capture"]


def test_without_a_report_the_recording_stays(perfdoctor, training, short):
    ended = perfdoctor("run", *short, "--out", "capture", "--no-report", training)
    assert (ended.code, ended.out) == (0, "trained\n")
    assert list(Path("capture").glob("rank0/timing.json*"))
    assert not Path("capture/report.json").exists()
    again = perfdoctor("run", *short, "--out", "capture", training)
    assert again.code == 2
    assert "--force" in again.line
