"""The door to this package: a path of any kind becomes a Trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from perfdoctor.errors import InputError, TraceError
from perfdoctor.trace.io.stream import DEFAULT_MAX_TEXT_BYTES, Progress, TextStream, disconnect_error
from perfdoctor.trace.kineto import reader
from perfdoctor.trace.nsight.export_files import is_nsight, refuse_report
from perfdoctor.trace.scanner.text_window import BLOCK
from perfdoctor.trace.tables.model import Trace


def read(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    threads: int | None = None,
    max_text_bytes: int = DEFAULT_MAX_TEXT_BYTES,
) -> Trace:
    """Read a trace: of PyTorch's profiler (JSON, compressed or not), an SQLite export of Nsight Systems, or a snapshot.

    A snapshot of PyTorch's CUDA allocator is a pickle, of which nothing is executed, or a page of memory_viz; its Trace
    holds memory events only.

    A file that is cut short or damaged is read as far as it goes: `complete` is False then, and `warnings` says so. The
    first bytes of a file decide about its format and compression, not its name. JSON is streamed, from a URL and from a
    pipe, too; only a database that is not a local file is copied to a temporary one.

    Args:
        path: A file, a URL that fsspec knows, or ``-`` for standard input.
        progress: Called from this thread, at most every 50 ms, with the bytes of the file read so far, and its size,
            which is None for a pipe.
        threads: Threads to read JSON with; by default two, or one where the machine has one core.
        max_text_bytes: Where reading ends in what is no ordinary file, or compressed, and so may have no end.

    Returns:
        The Trace, with all times in int64 nanoseconds, exact.

    Raises:
        TraceError: the file cannot be opened, is empty, or is no such trace.
        InputError: there is no room for a copy of a database.
    """
    refuse_report(path)
    with TextStream(path, progress, max_text_bytes) as stream:
        if is_nsight(stream.head):
            return _read_database(stream, path, progress)
        if stream.head[:1] == b"\x80" or stream.head.lstrip()[:1] == b"<":  # a pickle, or a page
            from perfdoctor.trace.snapshot.read_snapshot import read_snapshot  # few files are snapshots

            return read_snapshot(stream)
        return reader.read_stream(stream, threads=threads)


def _read_database(stream: TextStream, path: str | os.PathLike[str], progress: Progress | None) -> Trace:
    """Read an export of Nsight Systems: from a copy where the file can be read only once, or is not local."""
    from perfdoctor.trace.nsight.read_export import read_nsight  # most files are not databases and need no SQLite

    if stream.is_regular:
        return read_nsight(path, progress)
    with _temporary_copy(stream) as local:
        try:
            return replace(read_nsight(local), path=stream.path)
        except TraceError as error:
            raise TraceError(str(error).replace(str(local), stream.path)) from error


@contextmanager
def _temporary_copy(stream: TextStream) -> Iterator[Path]:
    """A temporary copy on disk, which is removed in the end.

    Raises:
        TraceError: the stream cannot be read to its end.
        InputError: there is no room for the copy.
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
        stream.report_progress(last=True)
        if stream.disconnected:
            raise disconnect_error(stream)
        yield local
