"""Decompress gzip and zstandard piece by piece, in the calling thread or in one that works ahead of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from types import ModuleType
from typing import Any, TypeAlias

from perfdoctor.errors import TraceError

Decompressor: TypeAlias = Generator[bytes, None, bool]
"""Yields pieces of text; returns whether the compressed file was complete."""

_MAX_BYTES = 1 << 18  # of text decompressed at once, however small the piece that it comes from
# Pieces that a prefetching thread holds at most: three windows of text. With fewer each thread waits for the other.
_PREFETCHED = 12
_POLL_S = 0.1
_JOIN_TIMEOUT_S = 2.0


class DecompressedStream:
    """An iterator over decompressed text; `truncated` becomes True where the compressed file is cut or damaged."""

    def __init__(self, decompressor: Decompressor) -> None:
        self._decompressor = decompressor
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        complete = yield from self._decompressor
        self.truncated = not complete


class Prefetch:
    """An iterator over pieces that another thread makes ahead of time; what that thread raises is raised here."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_PREFETCHED)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(pieces,), daemon=True, name="perfdoctor-inflate")
        self._thread.start()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            item = self._get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> bool:
        """End the thread; False where it does not end soon because it waits for bytes that may never come."""
        self._closed.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        return not self._thread.is_alive()

    def _run(self, pieces: Iterable[bytes]) -> None:
        try:
            for piece in pieces:
                if not self._put(piece):
                    return
        except BaseException as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: bytes | BaseException | None) -> bool:
        """Hand an item to the reader; False once the reader has closed."""
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def _get(self) -> bytes | BaseException | None:
        """The next item, None at the end; an error where the thread has died without one."""
        while True:
            try:
                return self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    return RuntimeError("the thread that inflates the file has died")


def _decompress_gzip(compressed: Iterator[bytes], _: str) -> Decompressor:
    """Decompress every member of a gzip file as far as it goes."""
    zlib = _import_zlib()
    inflater: Any = None
    for piece in compressed:
        while piece:
            if inflater is None:
                # Zero bytes after the last member are padding that tape and block copies leave.
                piece = piece.lstrip(b"\x00")
                if not piece:
                    break
                inflater = zlib.decompressobj(31)
            try:
                text = inflater.decompress(piece, _MAX_BYTES)
            except zlib.error:
                return False
            if text:
                yield text
            if inflater.eof:
                piece, inflater = inflater.unused_data, None
            else:
                piece = inflater.unconsumed_tail
    return inflater is None


def _import_zlib() -> ModuleType:
    """Python's zlib, or isal, which is three times as fast and has no wheel for some machines."""
    try:
        from isal import isal_zlib
    except ImportError:
        import zlib

        return zlib
    module: ModuleType = isal_zlib
    return module


def _decompress_zstd(compressed: Iterator[bytes], path: str) -> Decompressor:
    """Decompress every frame of a zstandard file as far as it goes; a file without any text counts as cut.

    The package zstandard does not tell a cut file from a complete one.
    """
    open_reader, errors = _import_zstd(path)
    reader = open_reader(_ReadableFile(compressed))
    has_text = False
    while True:
        try:
            text = reader.read1(_MAX_BYTES)
        except errors:
            return False
        if not text:
            return has_text
        has_text = True
        yield text


def _import_zstd(path: str) -> tuple[Callable[[Any], Any], tuple[type[Exception], ...]]:
    """The function that opens a zstandard file, and the exceptions that reading raises where it is damaged.

    Raises:
        TraceError: no package for it is installed; `path` is the file that needs one.
    """
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore] # from Python 3.14 on
    except ImportError:
        pass
    else:
        return zstd.ZstdFile, (zstd.ZstdError, EOFError)
    try:
        import zstandard
    except ImportError:
        raise TraceError(
            f"{path}: compressed with zstd, which needs Python 3.14 or the package zstandard; "
            "pip install 'perfdoctor[zst]', or write .json.gz"
        ) from None
    open_reader = zstandard.ZstdDecompressor().stream_reader
    return (lambda file: open_reader(file, read_across_frames=True)), (zstandard.ZstdError,)


class _ReadableFile:
    """Pieces of bytes as a file that can only be read, not sought in."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        data = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(data) :]
        return data


DECOMPRESSORS: dict[bytes, Callable[[Iterator[bytes], str], Decompressor]] = {
    b"\x1f\x8b": _decompress_gzip,
    b"\x28\xb5\x2f\xfd": _decompress_zstd,
}
"""By the first bytes of a file what decompresses it: called with the file's pieces and its path for messages."""
