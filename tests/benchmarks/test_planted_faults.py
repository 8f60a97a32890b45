"""The planted faults of benchmarks/planted_faults run with and without their fix, and their table is right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import config as dynamo

from benchmarks.planted_faults import __main__ as driver
from benchmarks.planted_faults.faults import FAULTS, Fault, Setting
from benchmarks.planted_faults.program import measure_step_ns
from benchmarks.planted_faults.table import Promise, Row, format_table, promise_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _settings_of_torch() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), dynamo.recompile_limit, dynamo.accumulated_recompile_limit
    yield
    torch.set_float32_matmul_precision(before[0])
    dynamo.recompile_limit, dynamo.accumulated_recompile_limit = before[1:]
    torch._dynamo.reset()


@pytest.mark.parametrize("fixed", [False, True], ids=["faulty", "fixed"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_program_runs_with_and_without_its_fault(fault: Fault, fixed: bool) -> None:
    assert measure_step_ns(fault.name, Setting("cpu", 0.05, fixed), warmup=1, timed=2) > 0


def test_there_are_at_least_ten_faults_and_every_rule_exists() -> None:
    from perfdoctor.rules import registry

    names = {fault.name for fault in FAULTS}
    assert len(names) == len(FAULTS) >= 10
    assert {rule for fault in FAULTS for rule in fault.rules} <= {a.rule for a in registry.load_analyzers()}


def finding(rule: str, *saving_ns: int | None, basis: str = "bounded") -> dict[str, Any]:
    figures = dict(zip(("low_ns", "expected_ns", "high_ns"), saving_ns, strict=True))
    return {"rule": rule, "title": f"says {rule}", "saving": {**figures, "basis": basis}}


def test_a_promise_adds_up_the_findings_of_the_rules_and_no_others() -> None:
    report = {
        "findings": [
            finding("PD303", 1, 20, 300),
            finding("PD101", 5, 5, 5),
            finding("PD104", 2, 30, 400, basis="replayed"),
        ]
    }
    promise = promise_of(report, ("PD303", "PD104"))
    assert promise == Promise(("PD303", "PD104"), 3, 50, 700, "bounded, replayed", ("says PD303", "says PD104"))
    assert promise_of(report, ("PD201",)) == Promise()


def test_one_unknown_figure_makes_the_sum_unknown() -> None:
    report = {"findings": [finding("PD303", 0, None, 300), finding("PD303", 2, 30, 400)]}
    promise = promise_of(report, ("PD303",))
    assert (promise.low_ns, promise.expected_ns, promise.high_ns) == (2, None, 700)


def row(low: int | None, expected: int | None, high: int | None, *saved_ms: int, note: str = "") -> Row:
    """A row whose fix took the step from 10 ms and more to 10 ms less `saved_ms`, in each pair."""
    million = 1_000_000
    faulty = tuple((10 + n) * million for n in range(len(saved_ms)))
    fixed = tuple(ns - saved * million for ns, saved in zip(faulty, saved_ms, strict=True))
    figures = [None if ns is None else ns * million for ns in (low, expected, high)]
    return Row("fault", "fix", Promise(("PD101",), *figures, "bounded"), faulty, fixed, note)


def test_the_saving_is_the_median_of_the_pairs() -> None:
    assert row(0, None, 9, 3, 1, 8).saved_ns == 3_000_000
    assert Row("fault", "fix").saved_ns is None


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (row(1, 4, 6, 3, 3, 3), "kept, expected +1.00 ms off"),
        (row(1, 2, 6, 3, 3, 3), "kept, expected -1.00 ms off"),
        (row(4, 5, 6, 3, 2, 4), "kept, expected +2.00 ms off"),
        (row(4, 5, 6, 3, 2, 3), "**missed**: 1.00 ms less than the low end, expected +2.00 ms off"),
        (row(0, None, 2, 3, 4, 5), "**missed**: 2.00 ms more than the high end"),
        (row(None, None, None, 3), "found, nothing promised"),
        (Row("fault", "fix", Promise(), (2,), (1,), "a CPU"), "no finding; a CPU"),
        (Row("fault", "fix", note="needs a GPU"), "needs a GPU"),
    ],
)
def test_a_verdict_says_whether_the_promise_was_kept(measured: Row, verdict: str) -> None:
    assert measured.verdict == verdict


def test_the_table_has_a_line_a_fault_with_all_its_cells() -> None:
    lines = format_table([row(0, None, 9, 3, 1, 8), Row("other", "fix", note="needs a GPU")]).splitlines()
    assert {line.count("|") for line in lines} == {9}
    assert lines[2] == (
        "| fault: fix | PD101 | 11.00 | 7.00 | **3.00** (1.00 to 8.00) | 0.00, n/a, 9.00 | bounded | kept |"
    )
    assert lines[3] == "| other: fix |  |  |  |  |  |  | needs a GPU |"


def test_faults_of_a_gpu_and_those_out_of_time_are_named_and_not_run() -> None:
    rows = list(driver.measure_faults(FAULTS, "cpu", rounds=1, scale=1.0, seconds=-1))
    assert [row.fault for row in rows] == [fault.name for fault in FAULTS]
    assert {row.verdict for row in rows} == {"needs a GPU", "out of time"}
    assert all(not row.faulty_ns for row in rows)


def test_a_program_that_fails_costs_its_row_only() -> None:
    broken = Fault("no-such-program", ("PD101",), "", FAULTS[0].steps, "proof")
    (row,) = driver.measure_faults([broken], "cpu", rounds=1, scale=1.0, seconds=60)
    assert row.verdict.startswith("failed: ")


def test_the_driver_records_reads_the_promise_and_measures(tmp_path: Path) -> None:
    figures = tmp_path / "faults.json"
    command = ["-m", "benchmarks.planted_faults", "loader-without-workers", "--rounds", "1", "--scale", "0.1"]
    process = subprocess.run(
        [sys.executable, *command, "--json", str(figures)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (row,) = json.loads(figures.read_text())
    assert row["rules"] == ["PD101"]
    assert row["promised_ns"][2] > 4_000_000  # 16 rows of half a millisecond
    assert len(row["faulty_ns"]) == len(row["fixed_ns"]) == 1
    assert "| loader-without-workers: num_workers=2" in process.stdout


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.setattr(sys, "argv", ["planted_faults", "--device", "cuda"])
    assert driver.main() == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
