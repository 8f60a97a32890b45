"""The capture folder: its name, its markers, and the promise that nothing in it is overwritten without `--force`."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from pathlib import Path

from perfdoctor.capture.inject._perfdoctor_inject.hang_files import HANG_FOLDER
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import WINDOW_FOLDER, WORK_FOLDER
from perfdoctor.errors import CaptureError

MARKER_FOLDER_PREFIX = ".processes-"
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
REPORT_FILES = ("report.json", "report.html")


def launcher_rank() -> int | None:
    """The rank of this process when a launcher started perfdoctor itself as one of several ranks, else None."""
    for rank, size in RANK_VARIABLES:
        values = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(value.isdigit() for value in values) and int(values[1]) > 1:
            return int(values[0])
    return None


def default_folder_name(script: str, *, shared: bool) -> str:
    """`perfdoctor-<script>-<time>`, to the second.

    Every rank makes a `shared` name for itself: for all to come to the same one, the time is the start of their common
    parent, the launcher.
    """
    moment = time.time()
    if shared:
        with contextlib.suppress(OSError):
            moment = os.stat(f"/proc/{os.getppid()}").st_mtime
    return f"perfdoctor-{script}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(moment))}"


def make_folder(wanted: Path | None, script: str, *, force: bool, rank: int | None = None) -> Path:
    """Make the folder of one capture, writable and without any earlier capture in it.

    Args:
        wanted: The folder that the user named, or None.
        script: Name of the program, for a folder that nobody named.
        force: Remove what an earlier capture has left there: its ranks and reports, nothing else.
        rank: Rank of this process when the other ranks make the same folder for themselves. Only the rank's
            subfolder must be new then.

    Returns:
        The absolute path of the folder.

    Raises:
        CaptureError: The folder is not empty and `force` is not set, or the folder cannot be written.
    """
    name = default_folder_name(script, shared=rank is not None)
    folder = (wanted or (find_unused_path(name) if rank is None else Path(name))).absolute()
    target = folder if rank is None else folder / f"rank{rank}"
    try:
        if target.is_dir() and any(target.iterdir()):
            if not force:
                raise CaptureError(
                    f"{target} is not empty: name another folder, or add --force (force=True) to replace it."
                )
            remove_capture(folder, rank)
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CaptureError(
            f"{folder} cannot be written ({error.strerror or error}): name another folder with --out."
        ) from error
    return folder


def find_unused_path(name: str) -> Path:
    """The name, or the name with the first number that makes it new: two runs may start in one second."""
    path, number = Path(name), 1
    while path.exists():
        number += 1
        path = Path(f"{name}-{number}")
    return path


def remove_capture(folder: Path, rank: int | None = None) -> None:
    """Remove an earlier capture, or one rank of it, and leave every other file in the folder alone."""
    for entry in folder.iterdir():
        number = entry.name[4:] if entry.name.startswith("rank") else ""
        is_rank = number.isdigit() and rank in (None, int(number))
        # A perfdoctor that was killed has left its markers; those of other ranks are theirs.
        is_of_all = WINDOW_FOLDER.fullmatch(entry.name) is not None
        is_of_all |= entry.name.startswith(MARKER_FOLDER_PREFIX) or entry.name == HANG_FOLDER
        if entry.is_dir() and (is_rank or entry.name == WORK_FOLDER or (rank is None and is_of_all)):
            shutil.rmtree(entry)
        elif entry.name in REPORT_FILES:
            entry.unlink(missing_ok=True)


def make_marker_folder(folder: Path) -> Path:
    """Make the folder in which each process of the program leaves its markers; every perfdoctor parent has one."""
    markers = folder / f"{MARKER_FOLDER_PREFIX}{os.getpid()}"
    try:
        markers.mkdir(exist_ok=True)
    except OSError as error:
        raise CaptureError(f"{folder} cannot be written ({error.strerror}): name another folder with --out.") from error
    return markers


def collect_markers(markers: Path) -> frozenset[str]:
    """Read how far the program's processes came, and remove the folder of the markers.

    Returns:
        A subset of {"python", "torch", "duplicate", "perfdoctor"}. "python": at least one Python process loaded the
        recorder. "torch": at least one imported torch. "duplicate": at least one trained as a rank that another process
        was already recorded as. "perfdoctor": one recorded a program itself.
    """
    kinds = frozenset(path.suffix.lstrip(".") for path in markers.glob("*")) if markers.is_dir() else frozenset()
    shutil.rmtree(markers, ignore_errors=True)
    return kinds


def has_traces(folder: Path) -> bool:
    """Whether at least one rank has a timing trace, so that there is something to analyse."""
    return any(folder.glob("rank*/timing.json*"))


def list_ranks(folder: Path) -> tuple[int, ...]:
    """The ranks that have a folder in this capture, ascending."""
    names = [path.name[4:] for path in folder.glob("rank*") if path.is_dir()]
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def has_hang(folder: Path) -> bool:
    """Whether a capture has the states of ranks that stood still, or dumps that torch wrote at a timeout."""
    place = folder / HANG_FOLDER
    return place.is_dir() and any(os.scandir(place))
