"""Compressed bytes become text, piece by piece: gzip and zstandard, in this thread or one ahead of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from types import ModuleType
from typing import Any, TypeAlias

from perfdoctor.errors import TraceError

Pieces: TypeAlias = Generator[bytes, None, bool]
"""Pieces of inflated text; what it returns is whether that is all of it."""

_MOST = 1 << 20  # bytes inflated at once, however small the piece that they come from
_AHEAD = 4  # pieces inflated ahead of the reader
_PATIENCE_S = 0.1
_PARTING_S = 2.0


class Inflated:
    """An iterator over inflated text; `cut` is True once it has ended early."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self.cut = False

    def __iter__(self) -> Iterator[bytes]:
        whole = yield from self._pieces
        self.cut = not whole


class Ahead:
    """An iterator over pieces that another thread makes a little ahead; what is raised there is raised here."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(pieces,), daemon=True, name="perfdoctor-inflate")
        self._thread.start()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            item = self._next()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> bool:
        """End the thread; False where it does not end soon, because it waits for bytes that may never come."""
        self._closed.set()
        self._thread.join(_PARTING_S)
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
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=_PATIENCE_S)
            except queue.Full:
                continue
            return True
        return False

    def _next(self) -> bytes | BaseException | None:
        while True:
            try:
                return self._queue.get(timeout=_PATIENCE_S)
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    return RuntimeError("the thread that inflates the file has died")


def _gzip(compressed: Iterator[bytes], _: str) -> Pieces:
    """Inflate every member of a gzip file as far as it goes."""
    zlib = _fast_zlib()
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
                text = inflater.decompress(piece, _MOST)
            except zlib.error:
                return False
            if text:
                yield text
            if inflater.eof:
                piece, inflater = inflater.unused_data, None
            else:
                piece = inflater.unconsumed_tail
    return inflater is None


def _fast_zlib() -> ModuleType:
    """Isal inflates three times as fast as zlib, and has no wheel for some machines."""
    try:
        from isal import isal_zlib
    except ImportError:
        import zlib

        return zlib
    module: ModuleType = isal_zlib
    return module


def _zstd(compressed: Iterator[bytes], path: str) -> Pieces:
    """Inflate every frame of a zstandard file as far as it goes; one without any text counts as cut.

    The package zstandard does not tell a cut file from a whole one.
    """
    open_reader, errors = _zstd_reader(path)
    reader = open_reader(_Readable(compressed))
    some = False
    while True:
        try:
            text = reader.read1(_MOST)
        except errors:
            return False
        if not text:
            return some
        some = True
        yield text


def _zstd_reader(path: str) -> tuple[Callable[[Any], Any], tuple[type[Exception], ...]]:
    """What opens a zstandard file, and what it raises at damage."""
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


class _Readable:
    """Pieces of bytes as a file that can only be read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            self._left = next(self._pieces, b"")
        taken = self._left if size < 0 else self._left[:size]
        self._left = self._left[len(taken) :]
        return taken


FORMATS: dict[bytes, Callable[[Iterator[bytes], str], Pieces]] = {b"\x1f\x8b": _gzip, b"\x28\xb5\x2f\xfd": _zstd}
"""How a file is inflated, by its first bytes."""
