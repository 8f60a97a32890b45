"""The clinic: its programs fit its table, its arithmetic is right, and the six programs of CI are run for real."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clinic import __main__ as driver
from benchmarks.clinic import cases as case_table
from benchmarks.clinic import run_case as runner
from benchmarks.clinic.cases import KINDS, PROGRAMS, Case, choose_cases, read_cases
from benchmarks.clinic.table import Score, format_table, read_rows, score_rows, write_rows
from benchmarks.clinic.verdicts import (
    Row,
    from_cells,
    judge_fixed_report,
    judge_pairs,
    judge_report,
    judge_trials,
    start_row,
    to_cells,
)
from benchmarks.promises import TimedPairs
from benchmarks.run_python import ProgramFailedError, run_python
from perfdoctor.rules import registry

pytestmark = pytest.mark.process

CASES = {case.name: case for case in read_cases()}
SHORT = choose_cases(short=True)


# What clinic.toml says fits the programs.


def test_there_are_thirty_faults_ten_healthy_programs_and_six_for_ci() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(CASES)
    assert sum(not case.healthy for case in CASES.values()) >= 30
    assert sum(case.healthy for case in CASES.values()) >= 10
    assert len({case.style for case in CASES.values()}) >= 15
    assert {case.kind for case in CASES.values()} == set(KINDS)
    assert len(SHORT) == 6
    assert any(case.healthy for case in SHORT)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_program_fits_its_table(case: Case) -> None:
    source = case.path.read_text(encoding="utf-8")
    code = compile(source, case.name, "exec")
    assert not re.search(r"^\s*(?:from|import) (?:perfdoctor|benchmarks)", source, re.MULTILINE)
    assert {"--fixed", "--device", "--scale", "step_ns"} <= set(re.findall(r"--\w+|step_ns", source))
    assert bool(case.planted_lines) == (not case.healthy)
    assert bool(case.fix) == bool(case.rules or case.no_rule) == (not case.healthy)
    re.compile(case.follows)
    # Marks stand on lines of code: a finding names nothing else.
    blank = {number for number, line in enumerate(source.splitlines(), 1) if line.split("#")[0].strip() == ""}
    assert not case.planted_lines & blank
    assert code.co_filename == case.name


def test_rules_exist_and_rules_to_come_do_not() -> None:
    """Whoever adds the rule of a `no_rule` moves it to `rules`."""
    existing = {analyzer.rule for analyzer in registry.load_analyzers()}
    assert {rule for case in CASES.values() for rule in case.rules} <= existing
    assert not {case.no_rule for case in CASES.values()} & existing


def test_changes_are_those_of_try() -> None:
    changes = {each.name for each in importlib.metadata.entry_points(group="perfdoctor.changes")}
    if not changes:
        pytest.skip("this version has no changes to try")
    assert {case.change for case in CASES.values() if case.change} <= changes
    # The programs are not diagnosed again, so that no facts tell which setting is meant.
    assert all(bool(case.change) == bool(case.setting) for case in CASES.values())


def test_a_key_or_a_table_that_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_table, "FOLDER", tmp_path)
    for text, message in (("[a]\nsort = 1\n", "a has the key sort"), ('[a]\nkind = "loader"\n', "a: .*'style'")):
        (tmp_path / "clinic.toml").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_cases.__wrapped__()


def test_programs_are_chosen_by_name_and_kind() -> None:
    assert [case.name for case in choose_cases(["tiny_ops"])] == ["tiny_ops"]
    assert {case.kind for case in choose_cases(kinds=["sync", "healthy"])} == {"sync", "healthy"}
    assert choose_cases(["tiny_ops"], ["sync"]) == ()
    with pytest.raises(ValueError, match="no program is called nothing"):
        choose_cases(["nothing"])


# What is made of reports, times and trials.

TOY = Case("toy", "loader", "toys", "no workers", rules=("PD101", "PD114"), fix="workers", follows=r"num_workers=\d")
HEALTHY = Case("toy", "healthy", "toys", "nothing")
SOURCE = "import torch\n\nloader = DataLoader(data)  # planted\nfor batch in loader:\n    step(batch)\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script of TOY, whose third line is planted."""
    monkeypatch.setattr(case_table, "PROGRAMS", tmp_path)
    path = tmp_path / "toy.py"
    path.write_text(SOURCE)
    return path


def finding(rule: str, severity: str = "high", line: int | None = 3, *, ms: float = 2.0, **more: Any) -> dict[str, Any]:
    figures = {"low_ns": round(ms * 0.5e6), "expected_ns": round(ms * 1e6), "high_ns": round(ms * 2e6)}
    return {
        "rule": rule,
        "severity": severity,
        "location": {"file": "/x/toy.py", "line": line, "function": "main"} if line else None,
        "fix": "DataLoader(..., num_workers=2)",
        "advice": "Use workers.",
        "saving": {**figures, "basis": "replayed", "alone": {name: 2 * ns for name, ns in figures.items()}},
        "covered_by": None,
        **more,
    }


def judge(*findings: dict[str, Any], case: Case = TOY) -> Row:
    return judge_report(start_row(case, "cpu"), case, {"findings": list(findings)})


@pytest.mark.usefixtures("toy")
def test_a_planted_fault_is_found_with_its_place_rank_fix_and_promise() -> None:
    row = judge(finding("PD303", "medium", 9), finding("PD101"))
    assert (row.found, row.rule, row.severity, row.place, row.place_right) == (True, "PD101", "high", "toy.py:3", True)
    assert (row.position, row.fix_right, row.alarms) == (2, True, "PD303 medium toy.py:9")
    # One finding: what it promises if only its fix is made.
    assert (row.low_ms, row.expected_ms, row.high_ms, row.basis) == (2.0, 4.0, 8.0, "replayed")


@pytest.mark.usefixtures("toy")
def test_of_several_findings_at_planted_lines_the_savings_in_turn_add_up() -> None:
    row = judge(finding("PD101", ms=3.0), finding("PD114"), finding("PD101", line=4, ms=50.0))
    assert (row.low_ms, row.expected_ms, row.high_ms) == (2.5, 5.0, 10.0)
    unknown = finding("PD114")
    unknown["saving"]["expected_ns"] = None
    assert judge(finding("PD101"), unknown).expected_ms is None


@pytest.mark.usefixtures("toy")
def test_what_is_not_found_or_found_elsewhere_is_said() -> None:
    assert judge().found is False
    assert judge(finding("PD101", "info")).found is False
    assert judge(finding("PD303")).found is False
    elsewhere = judge(finding("PD101", line=4))
    assert (elsewhere.found, elsewhere.place_right) == (True, False)
    assert judge(finding("PD101", line=None)).place == "nowhere"
    assert judge(finding("PD101", fix=None, advice="Buy a disk.")).fix_right is False
    # The planted line counts, although another finding of the rule comes before it.
    assert judge(finding("PD101", line=4), finding("PD101")).position == 2


@pytest.mark.usefixtures("toy")
def test_alarms_are_findings_that_ask_for_something_else() -> None:
    low, covered = finding("PD303", "low"), finding("PD303", covered_by=0)
    assert judge(finding("PD101"), low, covered).alarms == ""
    assert judge(low, case=HEALTHY).quiet is True
    row = judge(finding("PD303", "medium", None), case=HEALTHY)
    assert (row.quiet, row.alarms, row.ran) == (False, "PD303 medium nowhere", True)


@pytest.mark.usefixtures("toy")
def test_a_fixed_program_is_quiet_when_its_rules_are() -> None:
    row = judge(finding("PD101"))
    assert judge_fixed_report(row, TOY, {"findings": [finding("PD303"), finding("PD101", "info")]}).quiet is True
    still = judge_fixed_report(row, TOY, {"findings": [finding("PD114", "low")]})
    assert (still.quiet, still.after) == (False, "PD114 low toy.py:3")


def row_with(low: float | None, expected: float | None, high: float | None, *saved: float) -> Row:
    row = Row("toy", "loader", "toys", "cpu", found=True, low_ms=low, expected_ms=expected, high_ms=high)
    before = tuple(1e7 + n * 1e5 for n in range(len(saved)))
    return judge_pairs(row, TimedPairs(before, tuple(ns - ms * 1e6 for ns, ms in zip(before, saved, strict=True))))


def test_the_saving_is_the_median_of_the_pairs() -> None:
    row = row_with(0, 4, 9, 3, 1, 8)
    assert (row.saved_ms, row.min_ms, row.max_ms, row.step_ms) == (3.0, 1.0, 8.0, 10.1)
    assert row.ratio == pytest.approx(4 / 3)
    assert row_with(0, 4, 9).saved_ms is None


@pytest.mark.parametrize(
    ("row", "inside"),
    [
        (row_with(2, 3, 4, 3), "yes"),
        (row_with(None, None, 4, 3), "yes"),
        (row_with(3.2, 4, 5, 3), "within noise"),  # 3 % of a step of 10 ms are 0.3 ms
        (row_with(3.4, 4, 5, 3), "no"),
        (row_with(0, 1, 2.5, 3), "no"),
        (row_with(None, None, None, 3), ""),
        (row_with(0, 1, 2), ""),
    ],
)
def test_a_measured_saving_lies_in_the_range_or_not(row: Row, inside: str) -> None:
    assert row.inside == inside


PEAK = Case("toy", "peak", "toys", "a list grows", rules=("PD707",), fix="item()")


@pytest.mark.usefixtures("toy")
def test_of_a_peak_bytes_are_promised_and_information_counts_as_found() -> None:
    saved = {"low": 300, "expected": 350, "high": 400, "alone": 350, "of": "allocated"}
    row = judge(finding("PD303", "info", 9), finding("PD707", "info", saved_bytes=saved), case=PEAK)
    assert (row.found, row.place_right, row.position) == (True, True, 2)

    def came(saved_bytes: int) -> Row:
        return replace(row, peak_bytes=2000, fixed_bytes=2000 - saved_bytes)

    assert [came(each).inside for each in (300, 400, 299, 450, 461, 239)] == [
        *("yes", "yes", "within noise", "within noise", "no", "no")  # 3 % of the peak are 60
    ]
    assert (row.inside, came(175).ratio) == ("", 2.0)
    assert "| 0.0 MB of 0.0 MB | yes |" in format_table([came(300)])
    unknown = judge(finding("PD707", "info", saved_bytes=None), case=PEAK)
    assert (unknown.found, unknown.amounts.high, unknown.inside) == (True, None, "")
    still = judge_fixed_report(row, PEAK, {"findings": [finding("PD707", "info")]})
    assert (still.quiet, still.after) == (False, "PD707 info toy.py:3")


def test_the_trial_of_the_right_change_counts() -> None:
    def trial(change: str, setting: str, saved_ns: int | None, verdict: str = "faster") -> dict[str, Any]:
        figures = {"saved_ns": saved_ns, "low_ns": saved_ns, "high_ns": saved_ns}
        return {"change": change, "setting": setting, "verdict": verdict, **figures}

    trials = [trial("workers", "1", 4_000_000), trial("workers", "2", 3_000_000), trial("all", "", 9_000_000)]
    case = Case("toy", "loader", "toys", "f", change="workers")
    row = start_row(case, "cpu")
    assert judge_trials(row, case, trials).tried_ms == 4.0
    of_setting = Case("toy", "loader", "toys", "f", change="workers", setting="2")
    assert judge_trials(row, of_setting, trials).tried_ms == 3.0
    broke = judge_trials(row, case, [trial("workers", "1", None, "broke")])
    assert (broke.tried, broke.tried_ms) == ("broke", None)
    assert judge_trials(row, case, []).tried == "no trial"


# The table.


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [
        row_with(0, None, 9, 3, 1, 8),
        Row("other", "healthy", 'a, "b"', "cpu", quiet=False, alarms="PD303 high x.py:1, PD104 medium y.py:2"),
        Row("gone", "sync", "toys", "cpu", note="needs a GPU"),
    ]
    path = tmp_path / "deep" / "clinic.csv"
    write_rows(path, rows)
    assert read_rows(path) == rows
    assert [row.ran for row in rows] == [True, True, False]
    assert read_rows(tmp_path / "none.csv") == []
    with pytest.raises(ValueError, match="has no column"):
        from_cells({"name": "toy"})
    assert to_cells(rows[0])["inside"] == "yes"


def test_the_score_counts_what_it_says() -> None:
    found = row_with(2, 3, 4, 3)
    rows = [
        judge_fixed_report(found, TOY, {"findings": []}),
        Row("missed", "loader", "toys", "cpu", found=False, quiet=True),
        Row("h1", "healthy", "toys", "cpu", quiet=True),
        Row("h2", "healthy", "toys", "cpu", quiet=False, alarms="PD303 high x.py:1, PD104 medium y.py:2"),
        Row("gone", "sync", "toys", "cpu", note="needs a GPU"),
    ]
    scores = {score.name: (score.count, score.of, score.reached) for score in score_rows(rows)}
    assert scores["found"] == (1, 2, False)
    assert scores["quiet when fixed, of those found"] == (1, 1, True)
    assert scores["medium or high findings on healthy programs"] == (2, 2, False)
    assert scores["expected within 0.5 to 2 times of measured"] == (1, 1, True)
    assert scores["measured inside the range"] == (1, 1, True)
    assert str(Score("found", 0, 0, 0.9)) == "found: n/a"
    assert str(Score("alarms", 0, 3, None)) == "alarms: 0 of 3 (0%; goal none, reached)"
    table = format_table(rows).splitlines()
    assert {line.count("|") for line in table[: 2 + len(rows)]} == {table[0].count("|")}
    assert "**not found**" in table[3]
    assert "not run: needs a GPU" in table[6]


# The runner.


def test_what_a_machine_cannot_run_is_named_and_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_python", lambda *_, **__: pytest.fail("it was started"))
    row = runner.run_case(Case("toy", "sync", "toys", "f", rules=("PD102",), on_cpu=False), "cpu", 1)
    assert (row.note, row.ran) == ("needs a GPU", False)
    row = runner.run_case(Case("toy", "loader", "toys", "f", libraries=("surely_missing",)), "cuda", 1)
    assert row.note == "surely_missing is missing"


def test_a_program_that_fails_costs_its_row_only(toy: Path) -> None:
    toy.write_text("raise SystemExit('out of memory')  # planted\n")
    row = runner.run_case(TOY, "cpu", 1)
    assert not row.ran
    assert row.note.startswith("failed: ")


def test_a_faulty_program_without_a_report_is_not_found_and_is_timed(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.write_text("import sys\nprint('step_ns', 5000000 if '--fixed' in sys.argv else 12000000)\n")

    def record(*arguments: object) -> dict[str, Any]:
        if "--fixed" not in arguments:
            raise runner.NoReportError("no report")
        return {"findings": []}

    monkeypatch.setattr(runner, "record_case", record)
    row = runner.run_case(TOY, "cpu", 1, with_try=False)
    assert (row.found, row.quiet, row.saved_ms) == (False, True, 7.0)
    assert "there is no report" in row.note


def test_faulty_and_fixed_take_turns_and_tell_their_steps(toy: Path) -> None:
    toy.write_text("import sys\nprint('loss 0.1')\nprint('step_ns', 5 if '--fixed' in sys.argv else 12)\n")
    assert runner.time_pairs(TOY, "cpu", toy.parent, 2) == TimedPairs((12, 12), (5, 5))
    toy.write_text("print('step_ns is what I forgot')\n")
    with pytest.raises(ProgramFailedError, match="printed no step_ns"):
        runner.time_case(TOY, "cpu", toy.parent)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_meter_knows_the_peak_of_a_program_and_of_its_workers(toy: Path) -> None:
    """The faulty program fills 100 MB and ends with 1; the fixed one has two children that fill 40 MB each."""
    toy.write_text(
        "import subprocess, sys\n"
        "fill = [sys.executable, '-c', 'import time; kept = b\\'x\\' * 40_000_000; time.sleep(3)']\n"
        "if '--fixed' in sys.argv:\n"
        "    [each.wait() for each in [subprocess.Popen(fill), subprocess.Popen(fill)]]\n"
        "else:\n"
        "    kept = b'x' * 100_000_000\n"
        "    sys.exit(1)\n"
    )
    peaks = runner.measure_peaks(replace(PEAK, fails=True), "cpu", toy.parent)
    assert 100e6 <= peaks["peak_bytes"] <= 140e6
    assert 80e6 <= peaks["fixed_bytes"] <= 150e6
    with pytest.raises(ProgramFailedError):
        runner.measure_peaks(PEAK, "cpu", toy.parent)


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'child'); time.sleep(900)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    for seconds in (2, 20, 300):  # until it has come so far
        with pytest.raises(ProgramFailedError, match=f"not done after {seconds} s"):
            run_python(["-c", script], tmp_path, seconds=seconds)
        if (tmp_path / "child").exists():
            break
    child_id = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 60
    while is_running(child_id):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(process_id: int) -> bool:
    """Whether a process runs: one that ended and that nobody waits for has the state Z."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_trial_asks_for_the_change_and_reads_its_report(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def write_trials(arguments: list[str], folder: Path, **_: object) -> str:
        commands.append(arguments)
        (folder / "try").mkdir(exist_ok=True)
        (folder / "try" / "report.json").write_text('{"trials": [{"change": "workers"}]}')
        return ""

    monkeypatch.setattr(runner, "run_python", write_trials)
    case = Case("toy", "loader", "toys", "f", rules=("PD101",), change="workers", setting="2")
    assert runner.try_case(case, "cpu", toy.parent / "try", 3) == [{"change": "workers"}]
    assert commands[0][:3] == ["-m", "perfdoctor", "try"]
    assert "workers=2" in commands[0]
    assert commands[0][-3:] == [str(toy), "--device", "cpu"]


def test_programs_of_the_table_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    ran: list[str] = []

    def pretend(case: Case, device: str, *_: object, **__: object) -> Row:
        ran.append(case.name)
        return Row(case.name, case.kind, case.style, device, found=True, quiet=True)

    monkeypatch.setattr(driver, "run_case", pretend)
    chosen = ["--only", "tiny_ops", "slow_disk", "--out", str(tmp_path)]
    assert driver.main([*chosen, "--seconds", "-1"]) == 0
    assert "out of time" in (tmp_path / "clinic.md").read_text()
    assert driver.main(chosen) == 0
    assert sorted(ran) == ["slow_disk", "tiny_ops"]
    assert driver.main(chosen) == 0
    assert len(ran) == 2
    assert driver.main([*chosen, "--again"]) == 0
    assert len(ran) == 4
    assert "* found: 2 of 2 (100%; goal 90%, reached)" in capsys.readouterr().out


def test_a_missing_gpu_or_program_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        assert driver.main(["--device", "cuda"]) == 2
        assert capsys.readouterr().err == "torch sees no GPU here; --device cpu measures what a CPU can show\n"
    with pytest.raises(SystemExit):
        driver.main(["--only", "nothing"])
    assert "no program is called nothing" in capsys.readouterr().err


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.name)
def test_the_short_form(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found at its line with its fix, silent after it, quiet on what is healthy; times are the clinic's."""
    pytest.importorskip("torch")
    if case.missing_libraries:
        pytest.skip(f"{case.missing_libraries} is missing")
    # Threads that spin while they wait take the core of the tests that run beside.
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    # What a test before left there, or whoever runs the tests: one thread beside an idle core is a fault (PD115).
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if not case.healthy:
        # Threads that wait for each other's cores would hide the fault. A healthy program with one may use two.
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
    row = judge_report(start_row(case, "cpu"), case, runner.record_case(case, "cpu", tmp_path / "faulty"))
    if case.healthy:
        assert row.quiet, row.alarms
        return
    assert row.found, row.alarms
    assert (row.place_right, row.fix_right) == (True, True), (row.place, row.fix)
    fixed = judge_fixed_report(row, case, runner.record_case(case, "cpu", tmp_path / "fixed", "--fixed"))
    assert fixed.quiet, fixed.after
