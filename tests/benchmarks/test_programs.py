"""The outside-style programs: their truths fit their scripts, verdicts are right, and some are run for real."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.programs import __main__ as driver
from benchmarks.programs.truths import SCRIPTS, Edit, Program, read_programs
from benchmarks.programs.verdicts import COLUMNS, Row, Said, first_said, format_table, list_cells

pytestmark = pytest.mark.process

PROGRAMS = {program.name: program for program in read_programs()}


def test_there_are_39_programs_and_no_script_without_a_truth() -> None:
    assert len(PROGRAMS) >= 39
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda each: each.name)
def test_truths_fit_their_script(program: Program) -> None:
    source = program.path.read_text(encoding="utf-8")
    assert len(program.line_numbers(source)) == len(program.lines)
    assert program.healthy == (program.right_edit is None) == (not program.rules) == (not program.lines)
    assert not program.saves or not program.healthy
    assert list(program.saves) == sorted(share for share in program.saves if 0 < share < 1)
    for edit in program.edits:
        changed = edit.fill_in("2").apply(source)
        compile(changed, program.name, "exec")
        assert changed != source
        assert "$1" not in changed


def test_rules_exist_and_no_script_knows_perfdoctor() -> None:
    for program in PROGRAMS.values():
        assert all(re.fullmatch(r"PD\d{3}", rule) for rule in program.rules)
        assert "perfdoctor" not in program.path.read_text(encoding="utf-8")


def test_an_edit_must_find_its_text_once() -> None:
    edit = Edit("e", "PD101", True, (("a = 1", "a = 2"),))
    assert edit.apply("a = 1\n") == "a = 2\n"
    for source in ("", "a = 1; a = 1"):
        with pytest.raises(ValueError, match=r"a = 1.* stands there"):
            edit.apply(source)


def program(*edits: Edit, healthy: bool = False) -> Program:
    lines = () if healthy else ("loader = DataLoader(",)
    return Program("toy", "toys", "the loader", healthy, () if healthy else ("PD101",), lines, (), (), 0, edits)


WORKERS = Edit("num_workers=$1", r"num_workers=(\d+)", False, (("data)", "data, num_workers=$1)"),))
CHEAPER = Edit("cheaper", "^PD101", True, (("slow", "fast"),))


def test_the_first_edit_that_follows_an_advice_is_made_with_its_number() -> None:
    toy = program(WORKERS, CHEAPER)
    workers = toy.edit_for("PD101", "DataLoader(..., num_workers=3)", "Use workers.")
    assert workers is not None
    assert (workers.name, workers.apply("DataLoader(data)")) == ("num_workers=3", "DataLoader(data, num_workers=3)")
    assert toy.edit_for("PD101", "", "Make the batch\ncheaper.") == CHEAPER
    assert toy.edit_for("PD303", "fused=True", "") is None


def finding(rule: str, severity: str = "high", line: int | None = 2, **more: Any) -> dict[str, Any]:
    saving = {"low_ns": 0, "expected_ns": 2_000_000, "high_ns": 4_000_000, "alone": None, "basis": "bounded"}
    location = {"file": "/x/toy.py", "line": line, "function": "main"} if line else None
    said = {"rule": rule, "title": "t", "severity": severity, "location": location, "saving": saving}
    return {**said, "fix": None, "advice": "Do it.", "cost_ns": 5_000_000, **more}


def test_the_first_finding_that_asks_for_something_counts() -> None:
    report = {"findings": [finding("PD001", "low"), finding("PD303", covered_by=0), finding("PD101")]}
    said = first_said(report)
    assert said is not None
    assert (said.rule, said.place, said.promise) == ("PD101", "toy.py:2", "0, 2, 4")
    assert first_said({"findings": [finding("PD001", "low"), finding("PD003", "info")]}) is None


def said(rule: str = "PD101", low: float | None = 0.0, high: float | None = 4.0) -> Said:
    return Said(rule, "t", "high", "toy.py", 2, "", "Do it.", low, None, high, 5.0)


def test_a_row_is_right_with_cause_line_and_a_fix_that_is_not_slower() -> None:
    good = Row(program(CHEAPER), said(), True, CHEAPER, True, (10.0, 10.2, 10.1), (8.0, 8.1, 8.1), ())
    assert good.right
    assert good.promise_kept
    assert good.quiet_after
    assert good.came_ms == pytest.approx(2.0)
    assert not Row(program(CHEAPER), said("PD303"), True, CHEAPER, True, (10.0,), (8.0,)).right
    assert not Row(program(CHEAPER), said(), False, CHEAPER, True, (10.0,), (8.0,)).right
    slower = Row(program(CHEAPER), said(), True, CHEAPER, True, (10.0, 10.1), (11.0, 11.1))
    assert slower.is_slower
    assert not slower.fix_right
    assert not slower.promise_kept
    assert not Row(program(CHEAPER), said(), True, WORKERS, True, (10.0,), (8.0,)).right
    assert not Row(program(CHEAPER), said(), True, CHEAPER, False, (10.0,), (8.0,)).right
    assert not Row(program(CHEAPER)).right


def test_a_healthy_program_is_right_when_its_report_is_quiet() -> None:
    assert Row(program(healthy=True)).right
    assert not Row(program(healthy=True), said()).right


def test_noise_is_half_the_range_of_runs_and_hides_what_is_within() -> None:
    row = Row(program(CHEAPER), said(), True, CHEAPER, True, (10.0, 12.0), (11.0, 12.4))
    assert row.noise_ms == pytest.approx(1.0)
    assert not row.is_slower
    assert Row(program(), plain_ms=(10.0, 10.0), fixed_ms=(9.0, 9.0)).noise_ms == pytest.approx(0.3)


def test_the_table_counts_and_lists_what_was_not_run() -> None:
    right = Row(program(CHEAPER), said(), True, CHEAPER, True, (10.0,), (8.0,), ())
    wrong = Row(program(healthy=True), said(), False, WORKERS, True, (10.0,), (12.0,), ("PD101",))
    missing = Row(program(), ran=False, note="skorch is missing")
    table = format_table([right, wrong, missing])
    assert "1 of 2 first findings are right" in table
    assert "1 fix makes its program slower" in table
    assert "not run: skorch is missing" in table
    assert all(len(list_cells(row)) == len(COLUMNS) for row in (right, wrong, missing))


def test_a_program_whose_library_is_missing_is_not_run() -> None:
    toy = Program("toy", "toys", "t", True, (), (), (), ("surely_not_installed",), 0, ())
    row = driver.measure_program(toy, pairs=1)
    assert not row.ran
    assert not row.right
    assert row.note == "surely_not_installed is missing"


def test_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["programs", "--only", "nothing"])
    with pytest.raises(SystemExit):
        driver.main()
    assert "no program is called nothing" in capsys.readouterr().err


def test_a_busy_program_is_measured_beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    class Loop:
        ended = False

        def __init__(self, command: list[str]) -> None:
            started.append(command)

        def kill(self) -> None:
            self.ended = True

        def wait(self) -> None:
            assert self.ended

    monkeypatch.setattr(driver.subprocess, "Popen", Loop)
    with driver.take_core(busy=False):
        assert not started
    with driver.take_core(busy=True):
        assert len(started) == 1


def test_a_program_that_fails_is_not_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "toy.py").write_text("raise SystemExit('out of memory')\n")
    monkeypatch.setattr("benchmarks.programs.truths.SCRIPTS", tmp_path)
    row = driver.measure_program(program(healthy=True), pairs=1, keep=tmp_path / "kept")
    assert not row.ran
    assert "out of memory" in row.note


# Without libraries of its own, and with a cause that other programs on the machine hardly hide; the clinic has more.
REAL = ("mnist_gan",)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("name", REAL)
def test_the_first_finding_of_a_real_program(name: str, tmp_path: Path) -> None:
    """Cause, line, fix, and silence after the fix; times are left to the benchmark."""
    pytest.importorskip("torch")
    real = PROGRAMS[name]
    if real.missing_libraries:
        pytest.skip(f"{real.missing_libraries} is missing")
    source = real.path.read_text(encoding="utf-8")
    first = first_said(driver.record_program(real, driver.write_script(tmp_path / "plain", real, source)))
    if real.healthy:
        assert first is None, first
        return
    assert first is not None
    assert first.rule in real.rules
    assert driver.is_line_right(real, first, source), first.place
    edit = real.edit_for(first.rule, first.fix, first.advice)
    assert edit is not None, first
    assert edit.right
    fixed = driver.record_program(real, driver.write_script(tmp_path / "fixed", real, edit.apply(source)))
    after = first_said(fixed)
    assert after is None or after.rule not in real.rules, after
