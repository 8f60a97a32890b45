"""Ranks analysed by worker processes: the report is the same, and a process that dies costs only its rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fleet_helpers import BlockingPipe, content_of, needs_proc, wait_for

import perfdoctor
from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.api import FileProgress
from perfdoctor.errors import InputError, TraceError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import FailedFile, analyze_file
from perfdoctor.fleet.worker_process import can_copy_process
from perfdoctor.testing import TraceBuilder

pytestmark = pytest.mark.process


def test_two_processes_report_what_one_does(fleet: Path) -> None:
    alone, shared = (perfdoctor.analyze(fleet, jobs=jobs) for jobs in (1, 2))
    assert content_of(alone) == content_of(shared)
    assert "PD401" in {finding.rule for finding in alone.findings}
    assert alone.late_ns[2] == 200_000


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["v100-torchrec-4ranks", "rtx4090-llama-2ranks"])
def test_two_processes_report_what_one_does_of_real_ranks(corpus: Path, name: str) -> None:
    alone, shared = (perfdoctor.analyze(corpus / name, jobs=jobs) for jobs in (1, 2))
    assert content_of(alone) == content_of(shared)


def test_relative_paths_stay_as_the_user_wrote_them(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fleet.parent)
    assert perfdoctor.analyze("run", jobs=2).traces[3].path == os.path.join("run", "rank3.json")


def test_a_rank_that_cannot_be_read_is_missing_and_the_others_are_analysed(fleet: Path) -> None:
    (fleet / "rank3.json").write_text("no trace")
    alone, shared = (perfdoctor.analyze(fleet, jobs=jobs) for jobs in (1, 2))
    assert content_of(alone) == content_of(shared)
    (lost,) = shared.missing
    assert (lost.rank, lost.complete, lost.events) == (3, False, 0)
    assert lost.warnings[0].startswith("this rank is missing from the analysis: ")
    assert "rank3.json: not JSON" in lost.warnings[0]
    assert [account.rank for account in shared.account] == [0, 1, 2]


@pytest.mark.parametrize("jobs", [1, 2])
def test_when_no_file_can_be_read_the_first_reason_is_the_error(fleet: Path, jobs: int) -> None:
    for path in fleet.iterdir():
        path.write_text("no trace")
    with pytest.raises(TraceError, match=r"rank0\.json: not JSON"):
        perfdoctor.analyze(fleet, jobs=jobs)


@needs_proc
def test_a_process_that_is_killed_costs_its_rank(fleet: Path) -> None:
    pipe = BlockingPipe(fleet / "rank1.json")
    killer = threading.Thread(target=pipe.kill_reader, daemon=True)
    killer.start()
    report = perfdoctor.analyze(sorted(fleet.iterdir()), jobs=2)
    killer.join()
    assert [account.rank for account in report.account] == [0, 2, 3]
    (lost,) = report.missing
    assert lost.rank == 1
    assert "its worker process was ended by SIGKILL" in lost.warnings[0]


@needs_proc
def test_a_killed_process_is_replaced(fleet: Path) -> None:
    # Three deaths, and two processes.
    pipes = [BlockingPipe(fleet / f"rank{rank}.json") for rank in (0, 1, 2)]
    killers = [threading.Thread(target=pipe.kill_reader, daemon=True) for pipe in pipes]
    for killer in killers:
        killer.start()
    report = perfdoctor.analyze(sorted(fleet.iterdir()), jobs=2)
    for killer in killers:
        killer.join()
    assert [trace.rank for trace in report.missing] == [0, 1, 2]
    assert [account.rank for account in report.account] == [3]


@needs_proc
def test_an_interrupt_ends_all_processes_at_once(fleet: Path) -> None:
    pipes = [BlockingPipe(fleet / f"rank{rank}.json") for rank in (0, 1)]
    command = [sys.executable, "-m", "perfdoctor", "analyze", *(str(pipe.path) for pipe in pipes), "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        readers = [pipe.reader() for pipe in pipes]
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=300)
        finally:  # a shell's background jobs ignore interrupts, and so does what they start
            process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in readers))
    for pipe in pipes:
        pipe.close()


def test_progress_counts_ranks_whichever_process_reads_them(fleet: Path) -> None:
    for path in fleet.iterdir():  # readers report every 50 ms, and at the end
        assert path.stat().st_size
    states: list[FileProgress] = []
    perfdoctor.analyze(fleet, jobs=2, progress=states.append)
    assert {state.name for state in states} == {f"rank{rank}.json" for rank in range(4)}
    assert {state.files for state in states} == {4}
    assert [state.finished for state in states] == sorted(state.finished for state in states)
    assert 3 < states[-1].finished <= 4


def test_wrong_options_are_a_usage_error(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFDOCTOR_READER", "none")
    with pytest.raises(UsageError, match="PERFDOCTOR_READER=none: there is no such reader"):
        perfdoctor.analyze(fleet, jobs=2)


def test_processes_that_cannot_start_are_one_sentence(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfdoctor.fleet.pool.can_copy_process", lambda: False)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InputError, match=r"worker processes cannot be used: .* exit code 1; run with --jobs 1"):
        perfdoctor.analyze(fleet, jobs=2)


def test_a_fault_of_ours_on_one_rank_costs_that_rank(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TraceFile(fleet / "rank0.json", rank=0)
    (summary,) = analyze_file(file, AnalysisOptions())  # type: ignore[misc]
    assert summary.rank == 0
    monkeypatch.setattr("perfdoctor.fleet.rank_tasks.read_ranks", lambda *_: 1 / 0)
    lost = analyze_file(file, AnalysisOptions())
    assert isinstance(lost, FailedFile)
    assert lost.reason == "internal error, which is our fault: ZeroDivisionError: division by zero"
    with pytest.raises(ZeroDivisionError):
        perfdoctor.analyze(fleet / "rank0.json")


def test_one_file_of_several_ranks_is_one_task(tmp_path: Path) -> None:
    other = TraceBuilder(rank=1).step(0, 100).kernel("k", 5, 90).write(tmp_path / "b.json")
    first = TraceBuilder(rank=0).step(0, 100).kernel("k", 5, 80).write(tmp_path / "a.json")
    report = perfdoctor.analyze([first, other], jobs=8)
    assert [account.rank for account in report.account] == [0, 1]


def run_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`perfdoctor analyze` in a process of its own, which has one thread: its workers are copies of it."""
    command = [sys.executable, "-m", "perfdoctor", "analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def without_times(text: str) -> dict[str, object]:
    """A JSON report without how long the rules took."""
    plain: dict[str, Any] = json.loads(text)
    for outcome in plain["outcomes"]:
        outcome["seconds"] = 0
    return plain


def test_workers_of_the_command_line_report_what_one_process_does(fleet: Path) -> None:
    alone, shared = (run_command(fleet, "--json", "--jobs", jobs) for jobs in (1, 2))
    assert without_times(alone.stdout) == without_times(shared.stdout)
    assert (alone.stderr, shared.stderr) == ("", "")


@needs_proc
def test_workers_of_a_process_with_one_thread_are_copies_of_it(fleet: Path) -> None:
    pipes = [BlockingPipe(fleet / f"rank{rank}.json") for rank in (0, 1)]
    command = [sys.executable, "-m", "perfdoctor", "analyze", *(str(pipe.path) for pipe in pipes), "--jobs", "2"]
    # The library of numpy would start a thread for each core.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        workers = {pipe.reader() for pipe in pipes}
        lines = {Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (process.pid, *workers)}
        process.kill()
        process.wait()
        # They end with the process that they work for, however that ended.
        for pipe in pipes:
            pipe.close()
        process.communicate()
    assert len(workers) == 2
    assert lines == {b"\0".join(os.fsencode(part) for part in (*command, ""))}
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))


@needs_proc
def test_a_copy_that_is_killed_costs_its_rank(fleet: Path) -> None:
    pipe = BlockingPipe(fleet / "rank1.json")
    killer = threading.Thread(target=pipe.kill_reader, daemon=True)
    killer.start()
    done = run_command(*sorted(fleet.iterdir()), "--json", "--jobs", 2)
    killer.join()
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    (lost,) = [trace for trace in report["traces"] if not trace["complete"]]
    assert lost["rank"] == 1
    assert "its worker process was ended by SIGKILL" in lost["warnings"][0]


def test_a_process_with_other_threads_is_not_copied() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert not can_copy_process()
    finally:
        end.set()
        thread.join()
