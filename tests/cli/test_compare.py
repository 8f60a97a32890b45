"""`perfdoctor compare` as a command: exit codes, the gate, outputs, and one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import Program


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("recorded")
    programs = {
        "before": Program(),
        "again": Program(seed=1),
        "third": Program(seed=2),
        "slower": Program(seed=3, norm_us=420.0),
        "no_steps": Program(seed=1, with_steps=False),
        "short": Program(seed=1, steps=2),
    }
    return {name: program.write(folder / f"{name}.json") for name, program in programs.items()}


@pytest.mark.parametrize(
    ("after", "limit", "code", "words"),
    [
        ("again", "5%", 0, ""),
        ("again", "0.05", 0, ""),
        ("slower", "20%", 0, ""),
        ("slower", "5%", 1, "--fail-over 5%: the step is slower by 9.9%"),
        ("no_steps", "5%", 1, "--fail-over 5% could not be judged: "),
        ("short", "5%", 1, "--fail-over 5% could not be judged: 12 and 2 steps are too few"),
        ("again", "0.1%", 1, "--fail-over 0.1% could not be judged: the difference lies between"),
    ],
)
def test_the_gate(perfdoctor, recorded, after, limit, code, words):
    ended = perfdoctor("compare", "-q", "--fail-over", limit, recorded["before"], recorded[after])
    assert ended.code == code
    assert ended.out
    assert words in (ended.line if code else ended.err)


def test_a_faster_step_passes_the_gate(perfdoctor, recorded):
    assert perfdoctor("compare", "--fail-over", "1%", recorded["slower"], recorded["before"]).code == 0


def test_json_is_pure_and_outputs_are_written(perfdoctor, recorded, tmp_path):
    ended = perfdoctor("compare", "--json", "-o", "c.md", "-o", "c.txt", recorded["before"], recorded["slower"])
    assert ended.code == 0
    assert json.loads(ended.out)["step"]["verdict"] == "slower"
    assert ended.err == "wrote c.md\nwrote c.txt\n"
    assert "became slower by" in (tmp_path / "c.md").read_text()
    assert "became slower by" in (tmp_path / "c.txt").read_text()


def test_quiet_is_the_verdict_and_verbose_has_all_tables(perfdoctor, recorded):
    quiet, usual, long = (
        perfdoctor("compare", *flags, "--no-color", recorded["before"], recorded["slower"]).out
        for flags in (["-q"], [], ["-v"])
    )
    assert quiet.startswith("The step became slower by 30")
    assert len(quiet.splitlines()) < len(usual.splitlines()) < len(long.splitlines())
    assert "By op" not in usual
    assert "By op" in long
    assert all(len(line) <= 80 for text in (quiet, usual, long) for line in text.splitlines())


def test_more_recordings_on_a_side(perfdoctor, recorded):
    ended = perfdoctor(
        "compare", "--json", recorded["before"], recorded["slower"], "--before", recorded["again"], "--before",
        recorded["third"],
    )  # fmt: skip
    comparison = json.loads(ended.out)
    assert [len(comparison[side]["paths"]) for side in ("before", "after")] == [3, 1]
    assert "3 and 1 recordings" in comparison["step"]["basis"]


def test_a_folder_of_captures_is_as_many_recordings(perfdoctor, recorded, tmp_path):
    for number, name in enumerate(("before", "again")):
        rank = tmp_path / "captures" / f"capture-{number}" / "rank0"
        rank.mkdir(parents=True)
        (rank / "timing.json").write_bytes(recorded[name].read_bytes())
        (rank / "facts.json").write_text("{}")
    comparison = json.loads(perfdoctor("compare", "--json", tmp_path / "captures", recorded["slower"]).out)
    assert len(comparison["before"]["paths"]) == 2


def test_steps_are_chosen(perfdoctor, recorded):
    ended = perfdoctor("compare", "--json", "--steps", "2:8", recorded["before"], recorded["slower"])
    assert [json.loads(ended.out)[side]["steps"] for side in ("before", "after")] == [6, 6]
    assert "no steps are left" in perfdoctor("compare", "--steps", "90:", recorded["before"], recorded["slower"]).line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["before"], "Missing argument 'AFTER'"),
        (["before", "before"], "given twice"),
        (["before", "missing.json"], "missing.json"),
        (["before", "slower", "--fail-over", "five"], "--fail-over five must be a share such as 5% or 0.05"),
        (["before", "slower", "--fail-over", "5"], "--fail-over 5 must be a share such as 5% or 0.05"),
        (["before", "slower", "--fail-over", "nan"], "--fail-over nan must be a share"),
        (["before", "slower", "--fail-over", "-1%"], "--fail-over -1% must be a share"),
        (["before", "slower", "-o", "c.html"], "suffix of a comparison must be one of .json, .md, .txt"),
        (["before", "slower", "-o", "nowhere/c.md"], "its folder does not exist"),
        (["before", "slower", "--device", "H999"], "not in the table of devices"),
        (["before", "slower", "--jobs", "0"], "jobs cannot be 0"),
        (["before", "slower", "-q", "-v"], "-q and -v exclude each other"),
        (["before", "empty"], "no traces in this folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(perfdoctor, recorded, tmp_path, argv, words):
    (tmp_path / "empty").mkdir()
    ended = perfdoctor("compare", *(recorded.get(each, each) for each in argv))
    assert ended.code == 2
    assert words in ended.line
    assert ended.out == ""
