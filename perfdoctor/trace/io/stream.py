"""TextStream: the text of a trace file, compressed or not; and in one sentence why a file cannot be opened."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import FileIO
from types import TracebackType
from typing import NoReturn, Self, TypeAlias

from perfdoctor.errors import TraceError
from perfdoctor.trace.io.decompress import DECOMPRESSORS, DecompressedStream, Prefetch
from perfdoctor.trace.io.remote import Download, is_remote, redact
from perfdoctor.trace.scanner.text_window import Source, TextWindow

_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive; unpack it and give the .json file inside",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
_HEAD_BYTES = 16  # at the beginning of a file, by which its format is known
_PIECE_BYTES = 1 << 14
_MIN_PART_BYTES = 4 << 20  # starting a thread for fewer costs more than it gains
_SEARCH_BYTES = 1 << 18  # in which the border of two events is looked for
DEFAULT_MAX_TEXT_BYTES = 32_000_000_000  # the events of as much text fill some 10 GB of memory
_PAUSE_S = 0.05  # between two calls of `progress`

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes read so far, and all there are; None where that is unknown."""


class ProgressMeter:
    """Counts the bytes that several threads read, and calls `progress` in the thread that made the meter."""

    def __init__(self, size: int | None, progress: Progress | None) -> None:
        self._size = size
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()
        self._owner = threading.get_ident()
        self._reported = time.monotonic()

    def add(self, count: int) -> None:
        """Count some bytes."""
        with self._lock:
            self._done += count
        self.report()

    def report(self, *, last: bool = False) -> None:
        """Call `progress` if this is the right thread, and a pause has gone by or it is the last time."""
        now = time.monotonic()
        if self._progress is None or threading.get_ident() != self._owner:
            return
        if last or now - self._reported >= _PAUSE_S:
            self._reported = now
            self._progress(self._done if self._size is None else min(self._done, self._size), self._size)


class TextStream:
    """The text of a trace, decompressed where its first bytes say so, whatever its name; a context manager.

    A compressed file that is cut or damaged is decompressed as far as it goes: then its JSON ends early too, and
    `truncated` is True.

    Args:
        path: A file, a URL, or ``-`` for standard input.
        progress: Called from this thread, now and then, with how many of the file's bytes have been read, and `size`.
        max_text_bytes: Where the text ends, unless it is an ordinary, uncompressed file: a server or a compressed file
            may give text without end.

    Attributes:
        path: The path as it may stand in a report.
        head: Its first bytes, 16 of them where it has so many.
        size: Its bytes; None where that is unknown, as of a pipe.
        is_regular: Whether it is an ordinary file of this machine, which can be opened again and read from anywhere.
        is_compressed: Whether it is compressed.

    Raises:
        TraceError: it cannot be opened or read, or is of a format that is no JSON text.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        progress: Progress | None = None,
        max_text_bytes: int = DEFAULT_MAX_TEXT_BYTES,
    ) -> None:
        self.path = redact(path)
        self._raw_path = path
        self._files: list[FileIO | Download] = []
        self._decompressed: DecompressedStream | None = None
        self._prefetch: Prefetch | None = None
        self._max_text_bytes = self._unread_bytes = max_text_bytes
        with self._explain_errors():
            self.size, self.is_regular = self._open()
            self.head = self._unread = self._read_head()
        self._meter = ProgressMeter(self.size, progress)
        for magic, kind in _OTHER_FORMATS.items():
            if self.head.startswith(magic):
                self.close()
                raise TraceError(f"{self.path}: not a JSON trace but {kind}")
        decompress = next((found for magic, found in DECOMPRESSORS.items() if self.head.startswith(magic)), None)
        self.is_compressed = decompress is not None
        if decompress is not None:
            self._decompressed = DecompressedStream(decompress(self._raw_pieces(), self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def report_progress(self, *, last: bool = False) -> None:
        """Call `progress` if it is time to, or for the last time."""
        self._meter.report(last=last)

    @property
    def truncated(self) -> bool:
        """Whether the compressed file turned out to be cut or damaged."""
        return self._decompressed is not None and self._decompressed.truncated

    @property
    def disconnected(self) -> str:
        """Why the connection ended before the content did, or at which limit; empty when it did not."""
        if not self._unread_bytes:
            return f"reading ended after {self._max_text_bytes / 1e9:g} GB of text, the limit"
        first = self._files[0]
        return first.disconnected if isinstance(first, Download) else ""

    @property
    def can_split(self) -> bool:
        """Whether the text can be read from anywhere, because the file is an ordinary, uncompressed one."""
        return self.is_regular and not self.is_compressed

    def source(self, *, prefetch: bool = False) -> Source:
        """The function from which a window gets the text, for one use; `prefetch` decompresses in another thread."""
        read = self._unlimited_source(prefetch=prefetch)
        if self.can_split:
            return read

        def read_up_to_limit(view: memoryview) -> int:
            count = read(view[: self._unread_bytes])
            self._unread_bytes -= count
            return count

        return read_up_to_limit

    def _unlimited_source(self, *, prefetch: bool) -> Source:
        if self._decompressed is None:
            return self._read
        if prefetch:
            self._prefetch = Prefetch(self._decompressed)
        pieces = iter(self._prefetch or self._decompressed)
        rest = memoryview(b"")

        def read(view: memoryview) -> int:
            nonlocal rest
            if not rest:
                with self._explain_errors():
                    rest = memoryview(next(pieces, b""))
                self._meter.report()
            count = min(len(rest), len(view))
            view[:count], rest = rest[:count], rest[count:]
            return count

        return read

    def split(self, start: int, count: int, border: re.Pattern[bytes]) -> list[TextWindow]:
        """Windows over all but the first of the equal parts of the text behind `start`.

        The first part, for which there is a window already, begins at `start`. A part begins at the end of a match of
        `border`; where none is found there are fewer parts.
        """
        windows: list[TextWindow] = []
        size = (self.size or 0) - start
        for number in range(1, count if size >= count * _MIN_PART_BYTES else 1):
            goal = start + size * number // count
            with self._explain_errors():
                file = FileIO(self._raw_path)
                self._files.append(file)
                file.seek(goal)
                match = border.search(file.read(_SEARCH_BYTES) or b"")
                if match is None:
                    continue
                file.seek(goal + match.end())
            windows.append(TextWindow(partial(self._read_file, file), base=goal + match.end()))
        return windows

    def close(self) -> None:
        """Close the file, and end the thread that decompresses it.

        A thread that waits for a connection without end is left running, with its connection, until the program ends.
        """
        if self._prefetch is None or self._prefetch.close():
            for file in self._files:
                file.close()

    def _open(self) -> tuple[int | None, bool]:
        """Open the first file; returns its size, and whether it is an ordinary one."""
        if is_remote(self._raw_path):
            download = Download(self._raw_path)
            self._files.append(download)
            return download.size, False
        file = FileIO(self._raw_path)
        self._files.append(file)
        status = os.fstat(file.fileno())
        is_regular = stat.S_ISREG(status.st_mode)
        return status.st_size if is_regular else None, is_regular

    def _read(self, view: memoryview) -> int:
        """Read from the file, and first the bytes of its head once more."""
        if self._unread:
            count = min(len(self._unread), len(view))
            view[:count], self._unread = self._unread[:count], self._unread[count:]
        else:
            return self._read_file(self._files[0], view)
        self._meter.add(count)
        return count

    def _read_file(self, file: FileIO | Download, view: memoryview) -> int:
        with self._explain_errors():
            count = file.readinto(view) or 0
        self._meter.add(count)
        return count

    def _raw_pieces(self) -> Iterator[bytes]:
        """The bytes of the file, in small pieces: where the file is damaged up to one piece before is lost."""
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while count := self._read(buffer):
            yield bytes(buffer[:count])

    def _read_head(self) -> bytes:
        head, filled = memoryview(bytearray(_HEAD_BYTES)), 0
        while filled < _HEAD_BYTES and (more := self._files[0].readinto(head[filled:])):
            filled += more
        return bytes(head[:filled])

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn an error of a file into one sentence, after closing all files."""
        try:
            yield
        except (OSError, ValueError, TraceError) as error:
            for file in self._files:
                file.close()
            if isinstance(error, TraceError):
                raise
            refuse(self.path, error)


def empty_file_error(stream: TextStream) -> TraceError:
    """The error for a file without any text."""
    if stream.disconnected:
        return disconnect_error(stream)
    if stream.truncated:
        return TraceError(f"{stream.path}: the compressed file is cut or damaged before its first event; copy it again")
    return TraceError(f"{stream.path}: the file is empty; record the trace again, or wait until it is written")


def disconnect_error(stream: TextStream) -> TraceError:
    """The error for a file whose connection ended before enough of it came."""
    return TraceError(f"{stream.path}: {stream.disconnected}; try again")


def refuse(path: str | os.PathLike[str], error: OSError | ValueError) -> NoReturn:
    """Say in one sentence why a path cannot be opened.

    Raises:
        TraceError: always.
    """
    if isinstance(error, FileNotFoundError):
        reason = "no such file; check the path, or the folder that the profiler writes to"
    elif isinstance(error, IsADirectoryError):
        reason = "this is a folder; give a trace file in it, or the folder to `perfdoctor analyze`"
    elif isinstance(error, PermissionError):
        reason = "no permission to read it; change its mode or copy it"
    elif isinstance(error, OSError):
        reason = f"it cannot be read ({error.strerror or type(error).__name__}); check the disk, or copy the file here"
    else:
        reason = "this is not a file name; check the path"
    raise TraceError(f"{path}: {reason}".replace("\x00", "\\0")) from error
