"""The door to this package: a path of any kind becomes a Trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from perfdoctor.errors import InputError, TraceError
from perfdoctor.trace.io.stream import Progress, Stream, ended_early
from perfdoctor.trace.kineto import reader
from perfdoctor.trace.nsight.export_files import is_nsight, refuse_report
from perfdoctor.trace.scanner.window import BLOCK
from perfdoctor.trace.tables.model import Trace


def read(path: str | os.PathLike[str], progress: Progress | None = None, *, threads: int | None = None) -> Trace:
    """Read a trace: of PyTorch's profiler (JSON, compressed or not), or an SQLite export of Nsight Systems.

    A file that is cut short, or damaged somewhere, is read as far as it goes: `complete` is False then, and `warnings`
    says so. What the file is and how it is compressed is told by its first bytes, not by its name. JSON is read as it
    comes, from a URL and from a pipe, too; only a database that lies elsewhere is copied to a temporary file.

    Args:
        path: A file, a URL that fsspec knows, or ``-`` for standard input.
        progress: Called now and then with the bytes that are read, and all there are where that is known.
        threads: Threads to read JSON with; two, or one where the machine has one core, unless told.

    Returns:
        The Trace, with all times in int64 nanoseconds, exact.

    Raises:
        TraceError: it cannot be opened, is empty, or is no such trace.
        InputError: there is no room for a copy.
    """
    refuse_report(path)
    with Stream(path, progress) as stream:
        if is_nsight(stream.head):
            return _read_database(stream, path, progress)
        return reader.read_stream(stream, threads=threads)


def _read_database(stream: Stream, path: str | os.PathLike[str], progress: Progress | None) -> Trace:
    """Read an export of Nsight Systems; one that can be read but once, or lies elsewhere, as a copy."""
    from perfdoctor.trace.nsight.read_export import read_nsight  # most files are none, and do without SQLite

    if stream.regular:
        return read_nsight(path, progress)
    with _copied(stream) as local:
        try:
            return replace(read_nsight(local), path=stream.path)
        except TraceError as error:
            raise TraceError(str(error).replace(str(local), stream.path)) from error


@contextmanager
def _copied(stream: Stream) -> Iterator[Path]:
    """A temporary copy on disk; it is removed in the end.

    Raises:
        TraceError: it cannot be read to its end.
        InputError: there is no room for it.
    """
    import tempfile

    read_into, block = stream.source(), memoryview(bytearray(BLOCK))
    with tempfile.TemporaryDirectory(prefix="perfdoctor-") as folder:
        local = Path(folder) / "trace"
        try:
            with local.open("wb") as out:
                while count := read_into(block):
                    out.write(block[:count])
        except OSError as error:
            raise InputError(
                f"{stream.path}: no room for a copy of it in {Path(folder).parent} ({error.strerror or error}); "
                "set TMPDIR to a folder on another disk"
            ) from error
        stream.tell(last=True)
        if stream.broken:
            raise ended_early(stream)
        yield local
