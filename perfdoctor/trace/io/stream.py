"""A path becomes text: opens trace files, compressed or not, and says in one sentence why one cannot be opened."""

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
from perfdoctor.trace.io.decompress import FORMATS, Ahead, Inflated
from perfdoctor.trace.io.remote import Download, is_remote, shown
from perfdoctor.trace.scanner.window import Source, Window

_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive; unpack it and give the .json file inside",
    b"\x80\x02": "a pickle; give the .json that torch.profiler's export_chrome_trace writes",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
_MAGIC = 16  # bytes at the beginning of a file that tell its format
_PIECE = 1 << 14
_LEAST_PART = 4 << 20  # bytes; starting a thread for fewer costs more than it gains
_SEARCHED = 1 << 18  # bytes in which the border of two events is looked for
_PAUSE_S = 0.05  # between two calls of `progress`

Progress: TypeAlias = Callable[[int, int | None], None]
"""Told how many bytes have been read, and of how many; None where that is unknown."""


class Meter:
    """Counts the bytes that several threads read, and tells the one that it belongs to."""

    def __init__(self, size: int | None, progress: Progress | None) -> None:
        self._size = size
        self._progress = progress
        self._done = 0
        self._lock = threading.Lock()
        self._owner = threading.get_ident()
        self._told = time.monotonic()

    def add(self, count: int) -> None:
        """Count some bytes."""
        with self._lock:
            self._done += count
        self.tell()

    def tell(self, *, last: bool = False) -> None:
        """Call `progress`, if it is time to and this is the right thread."""
        now = time.monotonic()
        if self._progress is None or threading.get_ident() != self._owner:
            return
        if last or now - self._told >= _PAUSE_S:
            self._told = now
            self._progress(self._done if self._size is None else min(self._done, self._size), self._size)


class Stream:
    """The text of a trace, inflated when its first bytes say so, whatever its name; a context manager.

    A compressed file that is cut or damaged is inflated as far as it goes: then its JSON ends early too, and `cut` is
    True.

    Args:
        path: A file, a URL, or ``-`` for standard input.
        progress: Called from this thread, now and then, with how many of the file's bytes have been read, and `size`.

    Attributes:
        path: The file, as it may be shown.
        head: Its first bytes, 16 of them where it has so many.
        size: Its bytes; None where that is unknown, as of a pipe.
        regular: Whether it is an ordinary file of this machine, which can be opened again and read from any place.
        compressed: Whether it is.

    Raises:
        TraceError: it cannot be opened or read, or is of a format that is no JSON text.
    """

    def __init__(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        self.path = shown(path)
        self._place = path
        self._files: list[FileIO | Download] = []
        self._inflated: Inflated | None = None
        self._ahead: Ahead | None = None
        with self._refusing():
            self.size, self.regular = self._open()
            self.head = self._unread = self._read_head()
        self._meter = Meter(self.size, progress)
        for magic, kind in _OTHER_FORMATS.items():
            if self.head.startswith(magic):
                self.close()
                raise TraceError(f"{self.path}: not a JSON trace but {kind}")
        inflate = next((inflate for magic, inflate in FORMATS.items() if self.head.startswith(magic)), None)
        self.compressed = inflate is not None
        if inflate is not None:
            self._inflated = Inflated(inflate(self._pieces(), self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def tell(self, *, last: bool = False) -> None:
        """Call `progress` if it is time to, or for the last time."""
        self._meter.tell(last=last)

    @property
    def cut(self) -> bool:
        """Whether the compressed file turned out to be cut or damaged."""
        return self._inflated is not None and self._inflated.cut

    @property
    def broken(self) -> str:
        """Why a connection ended before its end; empty when it did not."""
        first = self._files[0]
        return first.broken if isinstance(first, Download) else ""

    @property
    def can_split(self) -> bool:
        """Whether the text can be read from any place: it is that of an ordinary, uncompressed file."""
        return self.regular and not self.compressed

    def source(self, *, ahead: bool = False) -> Source:
        """Where a window gets the text from, once; `ahead` inflates in a thread of its own."""
        if self._inflated is None:
            return self._read
        if ahead:
            self._ahead = Ahead(self._inflated)
        pieces = iter(self._ahead or self._inflated)
        left = memoryview(b"")

        def read(view: memoryview) -> int:
            nonlocal left
            if not left:
                with self._refusing():
                    left = memoryview(next(pieces, b""))
                self._meter.tell()
            count = min(len(left), len(view))
            view[:count], left = left[:count], left[count:]
            return count

        return read

    def parts(self, start: int, count: int, border: re.Pattern[bytes]) -> list[Window]:
        """Windows over the text from later places on, which cut what lies behind `start` into equal parts.

        Args:
            start: Where the first part begins, for which there is a window already.
            count: How many parts are wanted; there are fewer when a place shows no border.
            border: What the text must look like where it is cut: a part begins at the end of a match.
        """
        windows: list[Window] = []
        size = (self.size or 0) - start
        for number in range(1, count if size >= count * _LEAST_PART else 1):
            place = start + size * number // count
            with self._refusing():
                file = FileIO(self._place)
                self._files.append(file)
                file.seek(place)
                match = border.search(file.read(_SEARCHED) or b"")
                if match is None:
                    continue
                file.seek(place + match.end())
            windows.append(Window(partial(self._read_file, file), base=place + match.end()))
        return windows

    def close(self) -> None:
        """Close the file, and end the thread that inflates it.

        A thread that waits for a connection without end is left alone with it: both end with the program.
        """
        if self._ahead is None or self._ahead.close():
            for file in self._files:
                file.close()

    def _open(self) -> tuple[int | None, bool]:
        """Open the first file; its size, and whether it is an ordinary one."""
        if is_remote(self._place):
            download = Download(self._place)
            self._files.append(download)
            return download.size, False
        file = FileIO(self._place)
        self._files.append(file)
        status = os.fstat(file.fileno())
        regular = stat.S_ISREG(status.st_mode)
        return status.st_size if regular else None, regular

    def _read(self, view: memoryview) -> int:
        """Read from the file, the first bytes once more."""
        if self._unread:
            count = min(len(self._unread), len(view))
            view[:count], self._unread = self._unread[:count], self._unread[count:]
        else:
            return self._read_file(self._files[0], view)
        self._meter.add(count)
        return count

    def _read_file(self, file: FileIO | Download, view: memoryview) -> int:
        with self._refusing():
            count = file.readinto(view) or 0
        self._meter.add(count)
        return count

    def _pieces(self) -> Iterator[bytes]:
        """The bytes of the file. What precedes a damaged place is kept up to one piece, so they are small."""
        buffer = memoryview(bytearray(_PIECE))
        while count := self._read(buffer):
            yield bytes(buffer[:count])

    def _read_head(self) -> bytes:
        head, filled = memoryview(bytearray(_MAGIC)), 0
        while filled < _MAGIC and (more := self._files[0].readinto(head[filled:])):
            filled += more
        return bytes(head[:filled])

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, TraceError) as error:
            for file in self._files:
                file.close()
            if isinstance(error, TraceError):
                raise
            refuse(self.path, error)


def nothing_in(stream: Stream) -> TraceError:
    """Why a file without any text is refused."""
    if stream.broken:
        return ended_early(stream)
    if stream.cut:
        return TraceError(f"{stream.path}: the compressed file is cut or damaged before its first event; copy it again")
    return TraceError(f"{stream.path}: the file is empty; record the trace again, or wait until it is written")


def ended_early(stream: Stream) -> TraceError:
    """Why nothing can be made of what came before a connection ended."""
    return TraceError(f"{stream.path}: {stream.broken}; try again")


def refuse(path: str | os.PathLike[str], error: OSError | ValueError) -> NoReturn:
    """Say in one sentence why a path cannot be opened.

    Raises:
        TraceError: always.
    """
    if isinstance(error, FileNotFoundError):
        reason = "no such file; check the path, or where the profiler was told to write"
    elif isinstance(error, IsADirectoryError):
        reason = "this is a folder; give a trace file in it, or the folder to `perfdoctor analyze`"
    elif isinstance(error, PermissionError):
        reason = "no permission to read it; change its mode or copy it"
    elif isinstance(error, OSError):
        reason = f"it cannot be read ({error.strerror or type(error).__name__}); check the disk, or copy the file here"
    else:
        reason = "this is no file name; check the path"
    raise TraceError(f"{path}: {reason}".replace("\x00", "\\0")) from error
