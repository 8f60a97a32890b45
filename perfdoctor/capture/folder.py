"""The capture folder: its name, and the promise that nothing in it is overwritten unasked."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from perfdoctor.errors import CaptureError

PROCESSES = ".processes"
PRODUCTS = ("report.json", "report.html")


def default_name(script: str) -> str:
    """`perfdoctor-<script>-<time>`, to the second."""
    return f"perfdoctor-{script}-{time.strftime('%Y%m%d-%H%M%S')}"


def make_folder(wanted: Path | None, script: str, *, force: bool) -> Path:
    """Make the folder of one capture, writable and empty of other captures.

    Args:
        wanted: The folder that the user named, or None.
        script: Name of the program, for a folder that nobody named.
        force: Remove what an earlier capture has left there (its ranks and reports, nothing else).

    Returns:
        Its absolute path.

    Raises:
        CaptureError: It holds something already and `force` is not set, or it cannot be written.
    """
    folder = (wanted if wanted is not None else free_name(default_name(script))).absolute()
    try:
        if folder.is_dir() and any(folder.iterdir()):
            if not force:
                raise CaptureError(f"{folder} is not empty: name another folder, or add --force to replace it.")
            remove_capture(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PROCESSES).mkdir(exist_ok=True)
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


def remove_capture(folder: Path) -> None:
    """Remove an earlier capture and leave everything else in the folder alone."""
    for entry in folder.iterdir():
        if entry.name == PROCESSES or (entry.is_dir() and entry.name.startswith("rank") and entry.name[4:].isdigit()):
            shutil.rmtree(entry)
        elif entry.name in PRODUCTS:
            entry.unlink()


def take_processes(folder: Path) -> frozenset[str]:
    """How far the program's processes came, and remove the marks.

    Returns:
        A subset of {"python", "torch"}: some Python said hello, some Python imported torch.
    """
    marks = folder / PROCESSES
    kinds = frozenset(path.suffix.lstrip(".") for path in marks.glob("*")) if marks.is_dir() else frozenset()
    shutil.rmtree(marks, ignore_errors=True)
    return kinds


def recorded_ranks(folder: Path) -> tuple[int, ...]:
    """The ranks that have a folder here, in order."""
    names = [path.name[4:] for path in folder.glob("rank*") if path.is_dir()]
    return tuple(sorted(int(name) for name in names if name.isdigit()))
