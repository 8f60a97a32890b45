"""The capture folder: its name, and the promise that nothing in it is overwritten unasked."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from pathlib import Path

from perfdoctor.errors import CaptureError

MARKS = ".processes-"
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
PRODUCTS = ("report.json", "report.html")


def launched_rank() -> int | None:
    """Our own rank when a launcher started this very process as one of several, else None."""
    for rank, size in RANK_VARIABLES:
        values = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(value.isdigit() for value in values) and int(values[1]) > 1:
            return int(values[0])
    return None


def default_name(script: str, *, shared: bool) -> str:
    """`perfdoctor-<script>-<time>`, to the second.

    Args:
        script: Name of the program.
        shared: Several ranks make this name, each for itself: the time is that of the launcher above them all.
    """
    moment = time.time()
    if shared:
        with contextlib.suppress(OSError):
            moment = os.stat(f"/proc/{os.getppid()}").st_mtime
    return f"perfdoctor-{script}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(moment))}"


def make_folder(wanted: Path | None, script: str, *, force: bool, rank: int | None = None) -> Path:
    """Make the folder of one capture, writable and empty of other captures.

    Args:
        wanted: The folder that the user named, or None.
        script: Name of the program, for a folder that nobody named.
        force: Remove what an earlier capture has left there (its ranks and reports, nothing else).
        rank: Our rank when other ranks make the same folder for themselves: only the rank's own part must be new.

    Returns:
        Its absolute path.

    Raises:
        CaptureError: It holds something already and `force` is not set, or it cannot be written.
    """
    name = default_name(script, shared=rank is not None)
    folder = (wanted or (free_name(name) if rank is None else Path(name))).absolute()
    taken = folder if rank is None else folder / f"rank{rank}"
    try:
        if taken.is_dir() and any(taken.iterdir()):
            if not force:
                raise CaptureError(f"{taken} is not empty: name another folder, or add --force to replace it.")
            remove_capture(folder, rank)
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be written ({error.strerror or error}): name another folder with --out."
        ) from error
    return folder


def free_name(name: str) -> Path:
    """The name, or the name with the first number that makes it new: two runs may start in one second."""
    path, number = Path(name), 1
    while path.exists():
        number += 1
        path = Path(f"{name}-{number}")
    return path


def remove_capture(folder: Path, rank: int | None = None) -> None:
    """Remove an earlier capture, or one rank of it, and leave everything else in the folder alone."""
    for entry in folder.iterdir():
        number = entry.name[4:] if entry.name.startswith("rank") else ""
        if entry.is_dir() and number.isdigit() and rank in (None, int(number)):
            shutil.rmtree(entry)
        elif entry.name in PRODUCTS:
            entry.unlink(missing_ok=True)


def make_marks(folder: Path) -> Path:
    """The folder in which each process of the program leaves a mark; one for each parent."""
    marks = folder / f"{MARKS}{os.getpid()}"
    try:
        marks.mkdir(exist_ok=True)
    except OSError as error:
        raise CaptureError(f"{folder} cannot be written ({error.strerror}): name another folder with --out.") from error
    return marks


def take_marks(marks: Path) -> frozenset[str]:
    """How far the program's processes came, and remove the marks.

    Returns:
        A subset of {"python", "torch", "again"}: some Python said hello, some Python imported torch, and one trained
        as a rank that another process had been recorded as.
    """
    kinds = frozenset(path.suffix.lstrip(".") for path in marks.glob("*")) if marks.is_dir() else frozenset()
    shutil.rmtree(marks, ignore_errors=True)
    return kinds


def has_traces(folder: Path) -> bool:
    """Whether any rank came to its timing window, so that there is something to analyse."""
    return any(folder.glob("rank*/timing.json*"))


def recorded_ranks(folder: Path) -> tuple[int, ...]:
    """The ranks that have a folder here, in order."""
    names = [path.name[4:] for path in folder.glob("rank*") if path.is_dir()]
    return tuple(sorted(int(name) for name in names if name.isdigit()))
