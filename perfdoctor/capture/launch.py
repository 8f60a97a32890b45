"""The parent process: start the user's command with the recorder in it, wait, and report what was recorded.

The program keeps its stdin, stdout, stderr and exit code. A failure of the recording becomes a note after the run; it
never becomes a failure of the program.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfdoctor.capture.capture_folder import (
    MARKER_FOLDER_PREFIX,
    collect_markers,
    has_hang,
    launcher_rank,
    list_ranks,
    make_folder,
    make_marker_folder,
)
from perfdoctor.capture.capture_notes import collect_notes, explain_empty_capture
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.child_process import MARKER_VARIABLE, build_environment, run_program
from perfdoctor.capture.command_line import parse_target, script_name
from perfdoctor.capture.hang_monitor import HangMonitor
from perfdoctor.capture.inject._perfdoctor_inject.messages import leave_marker
from perfdoctor.capture.process_group import find_processes, run_with_limit
from perfdoctor.errors import CaptureError
from perfdoctor.frozen_dataclass import frozen_dataclass

__all__ = ["CaptureResult", "TrialRun", "parse_target", "run", "run_trial"]

# Ranks of one job end within seconds of each other, saving included. A rank that was killed never removes its markers.
OTHER_RANKS_TIMEOUT_S = 20.0
# For scripts that care: they may leave out downloads, evaluation and checkpoints in a trial.
TRIAL_VARIABLE = "PERFDOCTOR_TRIAL"
# Of what a program writes to stderr: room for a traceback.
STDERR_TAIL_BYTES = 8192


@frozen_dataclass
class CaptureResult:
    """What came of a run.

    Attributes:
        exit_code: The program's exit code; 128 + the signal's number when a signal ended it.
        folder: The capture folder, or None when nothing was recorded. Also None in a rank other than 0 of a job whose
            every rank runs perfdoctor (`torchrun ... -m perfdoctor run train.py`), because rank 0 reports.
        ranks: The ranks recorded.
        notes: Sentences for the user: what is missing, why, and what to do about it.
        python: The Python that ran the program; None where the command line does not name one.
    """

    exit_code: int
    folder: Path | None
    ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    python: str | None = None


def run(
    command: Sequence[str],
    options: CaptureOptions | None = None,
    *,
    log: Path | None = None,
    judge_hang: Callable[[Path], bool] | None = None,
) -> CaptureResult:
    """Run a program to its end and record it.

    Args:
        command: The command line, as `parse_target` returns it.
        options: Windows and folder; None for the defaults.
        log: File for what the program writes to stdout, with stderr in the file of the same name with `.stderr`; the
            program reads nothing from stdin then, and all of its processes are ended when this one is interrupted.
        judge_hang: Called in another thread with the folder when ranks have stood still, or on SIGUSR1, and what they
            do stands in it: says it to the user, and returns whether it is a hang. None does not look for hangs.

    Raises:
        CaptureError: The program cannot be started, or the folder cannot be written. Nothing has run then.
    """
    options = options or CaptureOptions()
    if os.environ.get("PERFDOCTOR_DISABLE", "0") not in ("", "0"):
        code = run_program(command, None)
        return CaptureResult(code, None, (), ("PERFDOCTOR_DISABLE is set: nothing was recorded.",))
    if options.nvtx_only:
        return run_nvtx_only(command, options)
    rank_here = launcher_rank()
    folder = make_folder(options.out, script_name(command), force=options.force, rank=rank_here)
    leave_marker("perfdoctor")  # for one that runs this one
    marker_folder = make_marker_folder(folder)
    watches = judge_hang is not None and options.hang_after_s > 0
    environment = build_environment(
        marker_folder, (options if watches else replace(options, hang_after_s=0)).to_json(folder)
    )
    # Where every rank runs its own perfdoctor, that of rank 0 sees the beats of all.
    monitor = (
        HangMonitor(folder, options.hang_after_s, judge_hang).watch()
        if judge_hang is not None and watches and not rank_here
        else contextlib.nullcontext()
    )
    try:
        with monitor:
            code = run_program(command, environment) if log is None else run_into_log(command, environment, log)[0]
    finally:
        markers = collect_markers(marker_folder)
        ranks = list_ranks(folder)
        if not ranks:
            remove_if_empty(folder)
    if rank_here is not None:
        ranks = tuple(rank for rank in ranks if rank == rank_here)
    if rank_here == 0:
        wait_for_other_ranks(folder)
    left = [] if ranks else find_processes(f"{MARKER_VARIABLE}={environment[MARKER_VARIABLE]}")
    notes = collect_notes(command, options, folder, ranks, markers, code, len(left))
    if rank_here:
        # Every rank of the job runs its own perfdoctor; rank 0 reports on all ranks.
        return CaptureResult(code, None, ranks, notes)
    python = command[0] if os.path.basename(command[0]).startswith("python") else None
    return CaptureResult(code, folder if ranks or has_hang(folder) else None, ranks, notes, python)


def wait_for_other_ranks(folder: Path) -> None:
    """Wait until the perfdoctor of every other rank has removed its markers, at most `OTHER_RANKS_TIMEOUT_S`."""
    until = time.monotonic() + OTHER_RANKS_TIMEOUT_S
    while any(folder.glob(f"{MARKER_FOLDER_PREFIX}*")) and time.monotonic() < until:
        time.sleep(0.05)


def run_nvtx_only(command: Sequence[str], options: CaptureOptions) -> CaptureResult:
    """Run a program with NVTX ranges in it and nothing else; the profiler around it (nsys) records them."""
    with tempfile.TemporaryDirectory(prefix="perfdoctor-", ignore_cleanup_errors=True) as folder:
        marker_folder = make_marker_folder(Path(folder))
        try:
            code = run_program(command, build_environment(marker_folder, options.to_json(Path(folder))))
        finally:
            markers = collect_markers(marker_folder)
    notes = () if "torch" in markers else (explain_empty_capture(command, options, markers),)
    return CaptureResult(code, None, (), notes)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder without files; a folder with other files in it stays."""
    with contextlib.suppress(OSError):
        folder.rmdir()


@frozen_dataclass
class TrialRun:
    """What came of a trial.

    Attributes:
        exit_code: The program's exit code: 0 after a whole trial; 128 + the signal's number when a signal ended it.
        folder: The trial's folder, with `rank<R>/steps.jsonl` and `rank<R>/trial.json` of each rank that trained.
        timed_out: Whether the program was ended because its time was over.
        stderr_tail: The last lines that the program has written to stderr.
        seconds: Wall time of the whole program.
        ranks: The ranks that have left something.
    """

    exit_code: int
    folder: Path
    timed_out: bool
    stderr_tail: str
    seconds: float
    ranks: tuple[int, ...] = ()


def run_trial(
    command: Sequence[str],
    options: CaptureOptions,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    *,
    log: Path,
    cwd: Path | None = None,
) -> TrialRun:
    """Run a program as a trial: changed, timed for some steps without a profiler, and then ended.

    The program reads nothing from stdin. All of its processes are ended when its time is over, and when this process
    is interrupted while it waits.

    Args:
        command: The command line, as `parse_target` returns it.
        options: Skipped and timed steps, the folder (`out`), and `trial`.
        environment: Variables to set for the program beside those of this process.
        timeout_s: Seconds after which the program is ended; None for no limit.
        log: File for what the program writes to stdout; stderr goes to the file of the same name with `.stderr`.
        cwd: The folder in which it runs; None for that of this process.

    Raises:
        CaptureError: The program cannot be started, or the folder or the log cannot be written.
        ValueError: The options are not those of a trial.
    """
    if options.trial is None:
        raise ValueError("the options of a trial need the field trial")
    folder = make_folder(options.out, script_name(command), force=options.force)
    marker_folder = make_marker_folder(folder)
    variables = {**(environment or {}), TRIAL_VARIABLE: "1"}
    if options.trial.seed is not None:
        # The order of sets of strings depends on it, and with it that of parameters and batches in some programs.
        variables.setdefault("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", str(options.trial.seed)))
    start_s = time.monotonic()
    try:
        built = build_environment(marker_folder, options.to_json(folder), variables)
        code, timed_out = run_into_log(command, built, log, timeout_s, cwd)
    finally:
        collect_markers(marker_folder)
    seconds = time.monotonic() - start_s
    return TrialRun(code, folder, timed_out, read_tail(error_log_of(log)), seconds, list_ranks(folder))


def run_into_log(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float | None = None,
    cwd: Path | None = None,
) -> tuple[int, bool]:
    """Run a command without stdin, and with its output in files.

    Args:
        command: The command line.
        environment: Its environment.
        log: File for stdout; stderr goes to `error_log_of(log)`.
        timeout_s: Seconds after which all of its processes are ended; None for no limit.
        cwd: The folder in which it runs; None for that of this process.

    Returns:
        The exit code, and whether its time was over.

    Raises:
        CaptureError: The program cannot be started, or a file cannot be written.
    """
    try:
        with log.open("wb") as stdout, error_log_of(log).open("wb") as stderr:
            return run_with_limit(command, environment, timeout_s, stdout, stderr, MARKER_VARIABLE, cwd)
    except OSError as error:
        raise CaptureError(f"{log} cannot be written ({error.strerror}): name another folder.") from error


def error_log_of(log: Path) -> Path:
    """The file for stderr beside that for stdout."""
    return log.with_name(f"{log.name}.stderr")


def read_tail(path: Path, size: int = STDERR_TAIL_BYTES) -> str:
    """The last whole lines of a file, at most `size` bytes; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(length - size, 0))
            data = file.read()
    except OSError:
        return ""
    if length > size:
        data = data.partition(b"\n")[2] or data
    return data.decode(errors="replace")
