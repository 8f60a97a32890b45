"""One program of the clinic: recorded with and without its fault, timed in turns, and given to `perfdoctor try`."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.clinic.cases import Case
from benchmarks.clinic.verdicts import Row, judge_fixed_report, judge_pairs, judge_report, judge_trials, start_row
from benchmarks.promises import TimedPairs
from benchmarks.run_python import ROOT, SECONDS, ProgramFailedError, run_python

STEP = re.compile(r"^step_ns (\d+)\s*$", re.MULTILINE)
PEAK_BYTES = re.compile(r"^peak_bytes (\d+)\s*$", re.MULTILINE)
TRY_SECONDS = 60


class NoReportError(ProgramFailedError):
    """A program ran to its end, but there is no report on it."""


def run_case(case: Case, device: str, pairs: int, keep: Path | None = None, *, with_try: bool = True) -> Row:
    """Everything about one program: two reports, pairs of runs without perfdoctor, and the trial of its change.

    What fails is said in the row's `note`; what was measured before stays.
    """
    started = time.monotonic()
    row = start_row(case, device)
    why = case.why_not_on(device)
    if why:
        return replace(row, note=why)
    with tempfile.TemporaryDirectory(prefix="clinic-") as scratch:
        folder = keep / case.name if keep else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            row = _judge_faulty(row, case, device, folder / "faulty")
            if not case.healthy:
                row = judge_fixed_report(row, case, record_case(case, device, folder / "fixed", "--fixed"))
                if case.of_peak:
                    row = replace(row, **measure_peaks(case, device, folder))
                else:
                    row = judge_pairs(row, time_pairs(case, device, folder, pairs))
                row = _try_change(row, case, device, folder, pairs) if with_try else replace(row, tried="not asked")
        except ProgramFailedError as error:
            row = replace(row, note=f"failed: {_last_line(error)}")
    return replace(row, seconds=round(time.monotonic() - started, 1))


def _judge_faulty(row: Row, case: Case, device: str, folder: Path) -> Row:
    """The row with what the report says; a fault that leaves nothing to report on was not found."""
    try:
        return judge_report(row, case, record_case(case, device, folder))
    except NoReportError:
        if case.healthy:
            raise
        return replace(row, found=False, note="; ".join(filter(None, (row.note, "there is no report"))))


def record_case(case: Case, device: str, folder: Path, *options: str) -> dict[str, Any]:
    """Run a program under `perfdoctor run` as a user would; returns the report as JSON.

    Raises:
        ProgramFailedError: it failed.
        NoReportError: it ran, and there is no report.
    """
    target, memory = target_of(case, device, *options), ["--memory"] * case.of_peak
    command = ["-m", "perfdoctor", "run", "--force", *memory, "--out", str(folder), *target]
    run_python(command, folder.parent, accept=_exit_codes(case, *options))
    return _read_report(folder)


def measure_peaks(case: Case, device: str, folder: Path) -> dict[str, int]:
    """The peak of memory of the faulty and the fixed program, without perfdoctor, in bytes, by their names in a row.

    Raises:
        ProgramFailedError: one failed.
    """
    figures = {}
    for name, options in (("peak_bytes", ()), ("fixed_bytes", ("--fixed",))):
        command = ["-m", "benchmarks.clinic.peak_meter", *target_of(case, device, *options)]
        output = run_python(command, folder, accept=_exit_codes(case, *options))
        figures[name] = int(PEAK_BYTES.findall(output)[-1])
    return figures


def _exit_codes(case: Case, *options: str) -> tuple[int, ...]:
    return (1,) if case.fails and "--fixed" not in options else (0,)


def time_pairs(case: Case, device: str, folder: Path, pairs: int) -> TimedPairs:
    """Run the faulty and the fixed program in turns, without perfdoctor; returns the steps that they print, in ns."""
    times = [(time_case(case, device, folder), time_case(case, device, folder, "--fixed")) for _ in range(pairs)]
    return TimedPairs(tuple(before for before, _ in times), tuple(after for _, after in times))


def time_case(case: Case, device: str, folder: Path, *options: str) -> int:
    """Run a program by itself; returns the step in ns that it prints.

    Raises:
        ProgramFailedError: it failed, or printed none.
    """
    target = target_of(case, device, *options)
    output = run_python(target[2:] if case.ranks else target, folder)
    found = STEP.findall(output)
    if not found:
        raise ProgramFailedError(f"{case.name} printed no step_ns")
    return int(found[-1])


def try_case(case: Case, device: str, folder: Path, pairs: int) -> list[dict[str, Any]]:
    """The trials of the change that does what --fixed does.

    Raises:
        ProgramFailedError: `perfdoctor try` failed, or left no report.
    """
    # A folder of an earlier run is not resumed: the program may have changed since.
    shutil.rmtree(folder, ignore_errors=True)
    change = f"{case.change}={case.setting}" if case.setting else case.change
    # The report of this program was read before, so that the trial need not diagnose it again.
    options = ("--no-diagnose", "--only", change, "--pairs", str(pairs), "--budget", f"{TRY_SECONDS}s")
    run_python(
        ["-m", "perfdoctor", "try", *options, "--out", str(folder), *target_of(case, device)],
        folder.parent,
        seconds=TRY_SECONDS + SECONDS,
    )
    trials: list[dict[str, Any]] = _read_report(folder)["trials"]
    return trials


@cache
def has_try() -> bool:
    """Whether this perfdoctor has the command `try`."""
    try:
        run_python(["-m", "perfdoctor", "try", "--help"], ROOT)
    except ProgramFailedError:
        return False
    return True


def target_of(case: Case, device: str, *options: str) -> list[str]:
    """The program with its arguments, as `perfdoctor run` takes it."""
    script = [str(case.path), "--device", device, *options]
    if not case.ranks:
        return script
    # A port of its own for each launch: a rendezvous on a fixed one would meet that of the launch before.
    return [
        *("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)),
        *script,
    ]


def _try_change(row: Row, case: Case, device: str, folder: Path, pairs: int) -> Row:
    if not case.change:
        return replace(row, tried="no change does it")
    if not has_try():
        return replace(row, tried="no try")
    try:
        return judge_trials(row, case, try_case(case, device, folder / "try", pairs))
    except ProgramFailedError as error:
        return replace(row, tried="failed", note=f"try: {_last_line(error)}")


def _read_report(folder: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise NoReportError(f"no report: {error}") from error
    return report


def _last_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__
