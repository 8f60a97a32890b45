"""Ranks over processes of this machine: the same report, and a process that dies costs its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from reports import Endless, needs_proc, said, until

import perfdoctor
from perfdoctor.api import FileProgress
from perfdoctor.errors import InputError, TraceError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import Missing, Plan, work
from perfdoctor.testing import TraceBuilder


def test_two_processes_report_what_one_does(fleet: Path) -> None:
    alone, shared = (perfdoctor.analyze(fleet, jobs=jobs) for jobs in (1, 2))
    assert said(alone) == said(shared)
    assert "PD401" in {finding.rule for finding in alone.findings}
    assert alone.late_ns[2] == 200_000


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["v100-torchrec-4ranks", "rtx4090-llama-2ranks"])
def test_two_processes_report_what_one_does_of_real_ranks(corpus: Path, name: str) -> None:
    assert said(perfdoctor.analyze(corpus / name, jobs=1)) == said(perfdoctor.analyze(corpus / name, jobs=2))


def test_relative_paths_are_named_as_given(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fleet.parent)
    assert perfdoctor.analyze("run", jobs=2).traces[3].path == os.path.join("run", "rank3.json")


def test_a_rank_that_cannot_be_read_is_missing_and_the_others_are_analysed(fleet: Path) -> None:
    (fleet / "rank3.json").write_text("no trace")
    alone, shared = (perfdoctor.analyze(fleet, jobs=jobs) for jobs in (1, 2))
    assert said(alone) == said(shared)
    (lost,) = shared.missing
    assert (lost.rank, lost.complete, lost.events) == (3, False, 0)
    assert lost.warnings[0].startswith("this rank is missing from the analysis: ")
    assert "rank3.json: not JSON" in lost.warnings[0]
    assert [account.rank for account in shared.account] == [0, 1, 2]


@pytest.mark.parametrize("jobs", [1, 2])
def test_where_nothing_can_be_read_the_first_reason_is_the_error(fleet: Path, jobs: int) -> None:
    for path in fleet.iterdir():
        path.write_text("no trace")
    with pytest.raises(TraceError, match=r"rank0\.json: not JSON"):
        perfdoctor.analyze(fleet, jobs=jobs)


@needs_proc
def test_a_process_that_is_killed_costs_its_rank(fleet: Path) -> None:
    stuck = Endless(fleet / "rank1.json")
    killer = threading.Thread(target=stuck.kill_reader, daemon=True)
    killer.start()
    report = perfdoctor.analyze(sorted(fleet.iterdir()), jobs=2)
    killer.join()
    assert [account.rank for account in report.account] == [0, 2, 3]
    (lost,) = report.missing
    assert lost.rank == 1
    assert "its worker process was ended by SIGKILL" in lost.warnings[0]


@needs_proc
def test_a_killed_process_is_replaced(fleet: Path) -> None:
    # Three processes' worth of deaths, and two processes.
    stuck = [Endless(fleet / f"rank{rank}.json") for rank in (0, 1, 2)]
    killers = [threading.Thread(target=pipe.kill_reader, daemon=True) for pipe in stuck]
    for killer in killers:
        killer.start()
    report = perfdoctor.analyze(sorted(fleet.iterdir()), jobs=2)
    for killer in killers:
        killer.join()
    assert [trace.rank for trace in report.missing] == [0, 1, 2]
    assert [account.rank for account in report.account] == [3]


@needs_proc
def test_an_interrupt_ends_all_processes_at_once(fleet: Path) -> None:
    stuck = [Endless(fleet / f"rank{rank}.json") for rank in (0, 1)]
    command = [sys.executable, "-m", "perfdoctor", "analyze", *(str(pipe.path) for pipe in stuck), "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        readers = [pipe.reader() for pipe in stuck]
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=20)
        finally:  # a shell's background jobs ignore interrupts, and so does what they start
            process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in readers))
    for pipe in stuck:
        pipe.close()


def test_progress_counts_ranks_whichever_process_reads_them(fleet: Path) -> None:
    for path in fleet.iterdir():  # readers tell every 50 ms, and at the end
        assert path.stat().st_size
    told: list[FileProgress] = []
    perfdoctor.analyze(fleet, jobs=2, progress=told.append)
    assert {state.name for state in told} == {f"rank{rank}.json" for rank in range(4)}
    assert {state.files for state in told} == {4}
    assert [state.finished for state in told] == sorted(state.finished for state in told)
    assert 3 < told[-1].finished <= 4


def test_a_plan_that_cannot_be_followed_is_an_error_of_usage(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFDOCTOR_READER", "none")
    with pytest.raises(UsageError, match="PERFDOCTOR_READER=none: there is no such reader"):
        perfdoctor.analyze(fleet, jobs=2)


def test_processes_that_cannot_start_are_one_sentence(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InputError, match=r"worker processes cannot be used: .* exit code 1; run with --jobs 1"):
        perfdoctor.analyze(fleet, jobs=2)


def test_a_fault_of_ours_on_one_rank_costs_that_rank(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TraceFile(fleet / "rank0.json", rank=0)
    (summary,) = work(file, Plan())  # type: ignore[misc]
    assert summary.rank == 0
    monkeypatch.setattr("perfdoctor.fleet.rank_tasks.ranks_of", lambda *_: 1 / 0)
    lost = work(file, Plan())
    assert isinstance(lost, Missing)
    assert lost.why == "internal error, which is our fault: ZeroDivisionError: division by zero"
    with pytest.raises(ZeroDivisionError):
        perfdoctor.analyze(fleet / "rank0.json")


def test_one_file_of_several_ranks_is_one_task(tmp_path: Path) -> None:
    other = TraceBuilder(rank=1).step(0, 100).kernel("k", 5, 90).write(tmp_path / "b.json")
    first = TraceBuilder(rank=0).step(0, 100).kernel("k", 5, 80).write(tmp_path / "a.json")
    report = perfdoctor.analyze([first, other], jobs=8)
    assert [account.rank for account in report.account] == [0, 1]
