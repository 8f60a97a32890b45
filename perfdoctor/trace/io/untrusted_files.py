"""Reads files that a recording brings along or names, which may come from anybody: no pipe, no device, not too much."""

from __future__ import annotations

import linecache
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from pathlib import Path

from perfdoctor.trace.io.remote_path import RemotePath

# More is no source file that somebody wrote: the largest of torch has 1 MB.
_MAX_SOURCE_BYTES = 4_000_000
# A million steps of a capture, which take a second to read.
_MAX_BYTES_BESIDE = 256_000_000
_roots: ContextVar[tuple[Path, ...]] = ContextVar("roots", default=())


@contextmanager
def quote_only_under(roots: Sequence[Path]) -> Iterator[None]:
    """Meanwhile lines are quoted of files in these resolved folders alone, where there are any."""
    token = _roots.set(tuple(roots))
    try:
        yield
    finally:
        _roots.reset(token)


def read_beside_trace(path: Path | RemotePath, trace: Path | RemotePath | None = None) -> bytes:
    """The content of a file that lies beside a trace, such as a capture's facts; of a huge one the beginning.

    Caches of data sets keep all files of a capture as links into one folder: a file may link to where its trace does.

    Args:
        path: The file.
        trace: The trace; with it the file may link to nothing outside of their folders.

    Raises:
        OSError: It cannot be read, is no regular file, or links out of the folders.
        TraceError: It cannot be read from a URL.
    """
    check_beside_trace(path, trace)
    if isinstance(path, RemotePath):
        return path.read_bytes(_MAX_BYTES_BESIDE)
    with path.open("rb") as file:
        return file.read(_MAX_BYTES_BESIDE)


def check_beside_trace(path: Path | RemotePath, trace: Path | RemotePath | None = None) -> None:
    """Check that a file may be read as one that lies beside a trace, as `read_beside_trace` does.

    Raises:
        OSError: It is not there, is no regular file, or links out of the folders.
    """
    if isinstance(path, RemotePath):
        return
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: a pipe blocks, and a device acts
        raise OSError("it is no regular file")
    if isinstance(trace, Path):
        folders = {path.absolute().parent, trace.resolve().parent}
        if not any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
            raise OSError("it links out of the capture")


def find_root(start: Path) -> Path:
    """The root of the repository that a folder is in; the folder itself where it is in none."""
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)


def make_line_reader(traces: Iterable[object], program_folders: Iterable[str | None]) -> Callable[[str, int], str]:
    """A function that returns the text of a line of a file, "" where it may not be quoted or there is none.

    A trace names the file, and may come from anybody. Lines are quoted of notebook cells that ran in this process, and
    of regular .py files, links followed, that lie in the repository or folder that one works in or that a trace lies
    in, or where a capture says that its program lies and runs. Neither may make a home folder or more readable.

    Args:
        traces: The traces; only those with a local path count.
        program_folders: The folders of the program, as captured.
    """
    of_traces = {find_root(_resolve(path).parent) for path in traces if isinstance(path, Path)}
    named = {_resolve(folder) for folder in program_folders if folder and os.path.isabs(folder)}
    home = _resolve(os.path.expanduser("~"))
    folders = [folder for folder in sorted(of_traces | named) if not home.is_relative_to(folder)]
    return partial(_read_line, (find_root(_resolve(os.curdir)), *folders))


def _read_line(folders: tuple[Path, ...], file: str, line: int) -> str:
    return linecache.getline(file, line) if _is_cell(file) or _may_be_quoted(file, _roots.get() or folders) else ""


def _is_cell(file: str) -> bool:
    return file in linecache.cache and not os.path.isabs(file)


@lru_cache(maxsize=1024)  # a report quotes many lines of few files
def _may_be_quoted(file: str, folders: tuple[Path, ...]) -> bool:
    resolved = _resolve(file)
    try:
        status = resolved.stat()
    except OSError:
        return False
    is_source = resolved.suffix == ".py" and stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_SOURCE_BYTES
    return is_source and any(resolved.is_relative_to(folder) for folder in folders)


def _resolve(path: str | os.PathLike[str]) -> Path:
    """The path with links followed; a folder that does not exist for a name that cannot be one, or was deleted."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return Path(os.devnull, "none")
