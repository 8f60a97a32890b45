"""The door to this package: a path of any kind becomes a Trace."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from perfdoctor.errors import TraceError
from perfdoctor.trace import reader
from perfdoctor.trace.model import Trace
from perfdoctor.trace.nsight import is_nsight, read_nsight, refuse_report
from perfdoctor.trace.remote import Progress, fetched, is_remote, shown

_MAGIC = 16  # bytes that tell what a file is


def read(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:
    """Read a trace: of PyTorch's profiler (JSON, compressed or not), or an SQLite export of Nsight Systems.

    A file that is cut short, or damaged somewhere, is read as far as it goes: `complete` is False then, and `warnings`
    says so. What the file is and how it is compressed is told by its first bytes, not by its name.

    Args:
        path: A file, a URL that fsspec knows, or ``-`` for standard input.
        progress: Called now and then with the bytes that are read, and all there are where that is known.

    Returns:
        The Trace, with all times in int64 nanoseconds, exact.

    Raises:
        TraceError: it cannot be opened, is empty, or is no such trace.
    """
    refuse_report(path)
    if not is_remote(path):
        return _read_file(path, progress)
    with fetched(path, progress) as local:
        try:
            return replace(_read_file(local, None), path=shown(path))
        except TraceError as error:
            raise TraceError(str(error).replace(str(local), shown(path))) from error


def _read_file(path: str | os.PathLike[str], progress: Progress | None) -> Trace:
    if is_nsight(_first_bytes(path)):
        return read_nsight(path, progress)
    return reader.read(path, progress)


def _first_bytes(path: str | os.PathLike[str]) -> bytes:
    """How an ordinary file begins; nothing for what can be read once, or not at all: reading it then says why."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with Path(path).open("rb", buffering=0) as file:
            return file.read(_MAGIC)
    except (OSError, ValueError):
        return b""
