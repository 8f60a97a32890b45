"""Sizes of windows, and the command line that is run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.capture.capture_notes import add_unrecorded, notes_of_rank
from perfdoctor.capture.capture_options import CaptureOptions, fit_windows
from perfdoctor.capture.command_line import find_isolating_flag, parse_target, script_name
from perfdoctor.errors import CaptureError, UsageError
from perfdoctor.facts.captured import CapturedFacts


def test_defaults_are_those_of_the_manual() -> None:
    options = CaptureOptions()
    assert (options.skip, options.base, options.warmup, options.timing, options.evidence) == (5, 10, 2, 8, 3)
    assert options.first_timing_step == 17
    assert options.steps == 29


@pytest.mark.parametrize("name", ["skip", "base", "warmup", "evidence"])
def test_a_window_may_be_left_out(name: str) -> None:
    assert getattr(CaptureOptions(**{name: 0}), name) == 0


@pytest.mark.parametrize(
    "wrong", [{"timing": 0}, {"skip": -1}, {"base": True}, {"evidence": 1.5}, {"ranks": ()}, {"ranks": (0, -1)}]
)
def test_impossible_sizes_are_one_sentence(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"^--\w+ .*\.$"):
        CaptureOptions(**wrong)  # type: ignore[arg-type]


@given(st.integers(0, 200))
def test_fitted_windows_fit(steps: int) -> None:
    fitted = fit_windows(steps)
    if steps < 4:
        assert fitted is None
    else:
        assert fitted is not None
        assert fitted.steps <= steps
        assert fitted.timing >= 2


def test_settings_travel_as_json(tmp_path: Path) -> None:
    values = json.loads(CaptureOptions(ranks=(0, 7), stop_after=True).to_json(tmp_path))
    assert values["folder"] == str(tmp_path)
    assert values["ranks"] == [0, 7]
    assert values["stop_after"] is True


def test_a_script_is_run_by_this_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert parse_target([str(script), "--lr", "1"]) == [sys.executable, str(script), "--lr", "1"]


def test_a_module_is_run_by_this_python() -> None:
    assert parse_target(["-m", "package.train", "-x"]) == [sys.executable, "-m", "package.train", "-x"]


def test_a_command_is_left_alone() -> None:
    assert parse_target(["--", "torchrun", "--", "x.py"]) == ["torchrun", "--", "x.py"]


@pytest.mark.parametrize("argv", [[], ["--"], ["-m"], ["--skipp", "3", "train.py"]])
def test_nothing_to_run_is_a_usage_error(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_target(argv)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"nosuch\.py: no such file"):
        parse_target([str(tmp_path / "nosuch.py")])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/python3.11", "dir/train model.py", "--lr"], "train-model"),
        (["python", "-m", "package.train", "x.py"], "train"),
        (["torchrun", "--nproc-per-node", "2", "job/pretrain.py"], "pretrain"),
        (["/bin/bash", "run.sh"], "bash"),
        (["python"], "python"),
    ],
)
def test_the_folder_is_named_after_the_program(command: list[str], name: str) -> None:
    assert script_name(command) == name


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["env", "python3", "-uE", "train.py"], "-E"),
        (["python", "train.py", "-I"], None),
        (["python", "-m", "train", "-S"], None),
        (["torchrun", "train.py"], None),
    ],
)
def test_isolated_interpreters_are_recognised(command: list[str], flag: str | None) -> None:
    assert find_isolating_flag(command) == flag


@pytest.mark.parametrize(
    ("note", "todo"),
    [
        ("the program's own profiler was running, so the windows waited for its end", True),
        ("recording failed: OSError()", False),
    ],
)
def test_a_note_on_the_programs_own_profiler_adds_what_to_do(note: str, todo: bool) -> None:
    *_, last = notes_of_rank(CapturedFacts.parse({"steps_seen": 40, "notes": [note]}), CaptureOptions())
    assert last.startswith("there is no trace of the timing window")
    assert ("run the program without its profiler" in last) == todo


@pytest.mark.parametrize("is_full", [True, False])
def test_facts_are_completed_whole_or_not_at_all(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "rank0" / "facts.json"
    facts.parent.mkdir()
    facts.write_text('{"run": {"unrecorded": []}}')
    write = Path.write_text

    def fill_disk(self: Path, text: str, **options: str) -> int:
        write(self, text[:5], **options)
        raise OSError("No space left on device")

    if is_full:
        monkeypatch.setattr(Path, "write_text", fill_disk)
    add_unrecorded(tmp_path, 0, "another process")
    assert json.loads(facts.read_bytes())["run"]["unrecorded"] == ([] if is_full else ["another process"])
