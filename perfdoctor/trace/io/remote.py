"""Traces that are no local files: URLs that fsspec or HTTP can open, and standard input.

Everything is streamed. fsspec is imported for URLs only, and HTTP does without it: its client needs aiohttp.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Self

from perfdoctor.errors import TraceError

STDIN = "-"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(?:::[A-Za-z][^/]*)?://")
# User and password, also where a slash stands in the password: what follows the colon is no port then, or no host
# follows the first @.
_PASSWORD = re.compile(r"(?<=://)(?:[^/]*@(?:/.*@)?|[^/:@]*:(?!\d+(?:/|\Z)).*@)", re.DOTALL)
_SIGNATURE = re.compile(r"[?#].*\Z", re.DOTALL)
_WEB = ("http", "https")
# Extras of perfdoctor that install what a protocol needs; fsspec's own message names the package for the others.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_REQUEST_BYTES = 16 << 20  # a request to an object store takes some 50 ms to begin, and its answer lies in memory
_READ_BYTES = 1 << 16  # read from the answer at once: where the connection breaks no more than that is lost


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL or stands for standard input."""
    text = os.fspath(path)
    return text == STDIN or _SCHEME.match(text) is not None


def is_web(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an HTTP URL: of such only what has an index page can be listed."""
    return protocol_of(path) in _WEB


def protocol_of(path: str | os.PathLike[str]) -> str:
    """The protocol of a URL, empty for anything else."""
    found = _SCHEME.match(os.fspath(path))
    return found[1].lower() if found else ""


def redact(path: str | os.PathLike[str]) -> str:
    """A path as it may stand in a report: without the passwords and signatures that URLs can hold."""
    text = _PASSWORD.sub("", os.fspath(path))
    return _SIGNATURE.sub("", text) if is_web(text) else text


class Download:
    """The content behind a URL, or standard input for ``-``, read once from beginning to end; a context manager.

    An error after the first bytes only ends it: what came is worth reading, and `disconnected` says what happened.

    Attributes:
        name: The path as it may stand in a report.
        size: Its bytes, where its source says so.
        disconnected: Why the connection ended before the content did; empty when it did not.

    Raises:
        TraceError: there is nothing, it may not be read, or the package for its protocol is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._url = os.fspath(path)
        self.name = redact(path)
        self.disconnected = ""
        self._done = 0
        with explain_url_errors(self._url):
            self._raw, size, self._owner = _open_url(self._url)
        # `readinto` of an HTTP response waits for a full buffer, and where an error comes instead forgets its content.
        self._fill: Callable[[bytearray | memoryview], int | None] = getattr(self._raw, "readinto1", self._raw.readinto)
        self.size = size if isinstance(size, int) and size > 0 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def readinto(self, view: bytearray | memoryview) -> int:
        """Fill a part of a buffer; returns how many bytes, 0 at the end.

        Raises:
            TraceError: nothing has come at all; it says why.
        """
        if self.disconnected:
            return 0
        why = ""
        try:
            count = int(self._fill(memoryview(view)[:_READ_BYTES]) or 0)
        except Exception as error:  # as in `explain_url_errors`
            if not self._done:
                _refuse(self._url, error)
            count, why = 0, f" ({_first_line(error) or type(error).__name__})"
        self._done += count
        if why or (not count and self._done < (self.size or 0)):
            total = "" if self.size is None else f" of {self.size}"
            self.disconnected = f"the connection ended after {self._done}{total} bytes{why}"
        return count

    def readall(self, max_bytes: int) -> bytes:
        """The whole content, of small files; of a longer one its beginning, of `max_bytes` and little more.

        Raises:
            TraceError: it cannot be read to its end.
        """
        content, block = bytearray(), bytearray(1 << 16)
        while len(content) < max_bytes and (count := self.readinto(block)):
            content += memoryview(block)[:count]
        if self.disconnected:
            raise TraceError(f"{self.name}: {self.disconnected}; try again")
        return bytes(content)

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._raw.close()


@contextmanager
def explain_url_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error of a URL into one sentence.

    Raises:
        TraceError: something went wrong.
    """
    try:
        yield
    except TraceError:
        raise
    except Exception as error:  # clients of object stores have exceptions of their own, in packages unknown here
        _refuse(os.fspath(path), error)


def _open_url(url: str) -> tuple[Any, object, object]:
    """A URL or standard input as a file with `readinto`, its size where known, and the object that keeps it open."""
    if url == STDIN:
        return *_open_stdin(), None
    if is_web(url):
        from perfdoctor.trace.io import web

        response = web.get(url)
        return response, response.length, None
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    file = system.open(path, "rb", block_size=_REQUEST_BYTES)
    return file, getattr(file, "size", None), system  # the file system of an archive closes its file when it goes


def _open_stdin() -> tuple[io.FileIO, int | None]:
    """Standard input as a file of its own, which may be closed, and its size if it is an ordinary file."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not there at all
        raise TraceError(f"{STDIN}: there is no standard input; give a file") from None
    if os.isatty(descriptor):
        raise TraceError(f"{STDIN}: standard input is a terminal; pipe a trace into it, or give a file")
    status = os.fstat(descriptor)
    return io.FileIO(os.dup(descriptor)), status.st_size if stat.S_ISREG(status.st_mode) else None


def _refuse(url: str, error: Exception) -> NoReturn:
    """Say in one sentence why a URL cannot be read.

    Raises:
        TraceError: always.
    """
    protocol, status = protocol_of(url), getattr(error, "code", None)
    if status is not None and isinstance(error, OSError):
        error.close()  # type: ignore[attr-defined]  # an HTTPError is the response, too, and keeps its connection open
    if isinstance(error, ImportError):
        extra = _EXTRAS.get(protocol)
        how = f"pip install 'perfdoctor[{extra}]'" if extra else _first_line(error)
        reason = f"reading {protocol}:// needs a package that is not installed; {how}"
    elif isinstance(error, FileNotFoundError) or status == 404:
        reason = "there is no such file; check the URL"
    elif isinstance(error, PermissionError) or status in (401, 403):
        reason = "no permission to read it; check the credentials"
    elif isinstance(error, ValueError) and "rotocol not known" in str(error):
        reason = f"nothing is known that reads {protocol}://; download it and give the file"
    else:
        reason = f"it cannot be read ({_first_line(error) or type(error).__name__}); try again, or download it"
    raise TraceError(f"{redact(url)}: {reason}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
