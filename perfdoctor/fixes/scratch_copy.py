"""A copy of the user's sources in which edits are made: Python files are copied, all else is linked."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfdoctor.errors import InputError
from perfdoctor.fixes.project import OURS, Project

# Nobody's program has more files of its own, and copying them for each run would take longer than the run.
MAX_FILES = 20_000


def copy_sources(project: Project, to: Path, edited: Mapping[str, bytes]) -> None:
    """Copy the Python files of a project, with some of them edited; data and libraries are linked.

    Nothing outside of the folder `to` is written. What the program itself writes into a folder without sources of its
    own goes to where it always does.

    Args:
        project: The user's program.
        to: The folder of the copy; it must not exist.
        edited: The bytes of edited files, by their paths from the project's folder.

    Raises:
        InputError: The project has too many files, or the copy cannot be written.
    """
    sources = project.sources
    if len(sources) > MAX_FILES:
        raise InputError(
            f"{project.root} has more than {MAX_FILES:,} Python files: start in the folder of the program, or make it "
            "a repository of its own (git init)."
        )
    try:
        to.mkdir(parents=True)
        folders = {parent for source in sources for parent in source.parents}
        for folder in sorted({project.root, *(each for each in folders if each.is_relative_to(project.root))}):
            here = to / folder.relative_to(project.root)
            here.mkdir(exist_ok=True)
            for entry in os.scandir(folder):
                path = Path(entry.path)
                if path in folders or _is_left_out(entry) or to.is_relative_to(path):
                    continue
                if path.suffix != ".py" or path.is_symlink():
                    (here / entry.name).symlink_to(path)
        for source in sources:
            name = source.relative_to(project.root).as_posix()
            copy = to / name
            if name in edited:
                copy.write_bytes(edited[name])
            else:
                shutil.copyfile(source, copy)
            copy.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IWUSR)
    except OSError as error:
        raise InputError(
            f"{to} cannot be written ({error.strerror}): free some space, or name another --out."
        ) from None


def own_file(copy: Path, name: str) -> None:
    """Make a file of a copy one of its own, where it is a link or lies in a folder that is one."""
    path = copy
    for part in Path(name).parts:
        path /= part
        if not path.is_symlink():
            continue
        target = path.resolve()
        path.unlink()
        if target.is_dir():
            path.mkdir()
            for entry in target.iterdir():
                (path / entry.name).symlink_to(entry)
        elif target.exists():
            shutil.copyfile(target, path)


def map_command(command: Sequence[str], project: Project, copy: Path) -> tuple[str, ...]:
    """The command line with paths of the project's sources replaced by those of the copy."""
    words = []
    for word in command:
        path = Path(word)
        is_source = path.is_absolute() and path.suffix == ".py" and path.resolve().is_relative_to(project.root)
        words.append(str(copy / path.resolve().relative_to(project.root)) if is_source else word)
    return tuple(words)


def map_folder(folder: Path, project: Project, copy: Path) -> Path | None:
    """Where the program runs: the same folder of the copy; None where it runs outside of the project."""
    return copy / folder.relative_to(project.root) if folder.is_relative_to(project.root) else None


def _is_left_out(entry: os.DirEntry[str]) -> bool:
    return entry.name in (".git", "__pycache__") or (entry.name.startswith(OURS) and entry.is_dir())
