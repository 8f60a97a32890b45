"""The parent: start the user's own command with the recorder in it, wait, and say what was recorded.

The program keeps its stdin, stdout, stderr and exit code. Whatever goes wrong with the recording is said in notes
afterwards and never becomes a failure of the program.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoctor.capture.folder import MARKS, launched_rank, make_folder, make_marks, recorded_ranks, take_marks
from perfdoctor.capture.notes import explain, why_nothing
from perfdoctor.capture.options import CaptureOptions
from perfdoctor.capture.process import environment, run_program
from perfdoctor.capture.target import parse_target, script_name

__all__ = ["CaptureResult", "parse_target", "run"]

# Ranks of one job end within seconds of each other, saving included; one that was killed never says that it has ended.
OTHERS_S = 20.0


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What came of a run.

    Attributes:
        exit_code: The program's own; 128 + the signal's number when a signal ended it.
        folder: The capture folder; None when nothing was recorded, and in a rank other than 0 of a job whose every
            rank runs perfdoctor (`torchrun ... -m perfdoctor run train.py`), because rank 0 reports.
        ranks: The ranks recorded.
        notes: Sentences for the user: what is missing, why, and what to do about it.
    """

    exit_code: int
    folder: Path | None
    ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def run(command: Sequence[str], options: CaptureOptions | None = None) -> CaptureResult:
    """Run a program to its end and record it.

    Args:
        command: The command line, as `parse_target` returns it.
        options: Windows and folder; None for the defaults.

    Raises:
        CaptureError: The program cannot be started, or the folder cannot be written; nothing has run then.
    """
    options = options or CaptureOptions()
    if os.environ.get("PERFDOCTOR_DISABLE", "0") not in ("", "0"):
        code = run_program(command, None)
        return CaptureResult(code, None, (), ("PERFDOCTOR_DISABLE is set: nothing was recorded.",))
    if options.nvtx_only:
        return mark_only(command, options)
    own_rank = launched_rank()
    folder = make_folder(options.out, script_name(command), force=options.force, rank=own_rank)
    marks = make_marks(folder)
    try:
        code = run_program(command, environment(marks, options.to_json(folder)))
    finally:
        kinds = take_marks(marks)
        ranks = recorded_ranks(folder)
        if not ranks:
            remove_if_empty(folder)
    if own_rank is not None:
        ranks = tuple(rank for rank in ranks if rank == own_rank)
    if own_rank == 0:
        wait_for_others(folder)
    notes = explain(command, options, folder, ranks, kinds)
    if own_rank:
        # Each rank of the job runs its own perfdoctor; the first one reports on all that is there.
        return CaptureResult(code, None, ranks, notes)
    return CaptureResult(code, folder if ranks else None, ranks, notes)


def wait_for_others(folder: Path) -> None:
    """Until the perfdoctor of every other rank has taken its marks away, or has had time enough for it."""
    until = time.monotonic() + OTHERS_S
    while any(folder.glob(f"{MARKS}*")) and time.monotonic() < until:
        time.sleep(0.05)


def mark_only(command: Sequence[str], options: CaptureOptions) -> CaptureResult:
    """Run a program with ranges in it and nothing else; whoever profiles it (nsys) writes what they mark."""
    with tempfile.TemporaryDirectory(prefix="perfdoctor-", ignore_cleanup_errors=True) as folder:
        marks = make_marks(Path(folder))
        try:
            code = run_program(command, environment(marks, options.to_json(Path(folder))))
        finally:
            kinds = take_marks(marks)
    notes = () if "torch" in kinds else (why_nothing(command, options, kinds),)
    return CaptureResult(code, None, (), notes)


def remove_if_empty(folder: Path) -> None:
    """Leave no empty folder behind; one with other files in it stays."""
    with contextlib.suppress(OSError):
        folder.rmdir()
