"""Traces that are no local files: URLs that fsspec or the web can open, and standard input.

Everything is streamed. fsspec is imported for URLs only, and not for the web, which the standard library reads.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from perfdoctor.errors import InputError, TraceError

STDIN = "-"
Progress: TypeAlias = Callable[[int, int | None], None]
"""Told now and then of the bytes that are read, and of all there are where that is known."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(?:::[A-Za-z][^/]*)?://")
_PASSWORD = re.compile(r"(?<=://)[^/@]*@")
_SIGNATURE = re.compile(r"[?#].*\Z", re.DOTALL)
_WEB = ("http", "https")
# Extras of ours that bring what a protocol needs; fsspec's own words name the package for the others.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_BLOCK = 1 << 20
_WEB_SECONDS = 60  # without a byte: servers that make a file on request take their time


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL or stands for standard input."""
    text = os.fspath(path)
    return text == STDIN or _SCHEME.match(text) is not None


def is_web(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL of the web, where nothing can be listed."""
    return protocol_of(path) in _WEB


def protocol_of(path: str | os.PathLike[str]) -> str:
    """The protocol of a URL, empty for anything else."""
    found = _SCHEME.match(os.fspath(path))
    return found[1].lower() if found else ""


def shown(path: str | os.PathLike[str]) -> str:
    """A path as it may stand in a report: without the passwords and signatures that URLs can hold."""
    text = _PASSWORD.sub("", os.fspath(path))
    return _SIGNATURE.sub("", text) if is_web(text) else text


def open_stream(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a URL, or standard input for ``-``, to be read once from beginning to end; `peek` shows how it begins.

    Raises:
        TraceError: there is nothing, it may not be read, or the package for its protocol is missing.
    """
    url = os.fspath(path)
    if url == STDIN:
        return _standard_input()
    with telling(url):
        raw: Any
        if is_web(url):
            from urllib.request import urlopen

            raw = urlopen(url, timeout=_WEB_SECONDS)
        else:
            import fsspec

            raw = fsspec.open(url, "rb").open()
        return io.BufferedReader(raw, _BLOCK)


def length_of(stream: io.BufferedReader) -> int | None:
    """How many bytes a stream from `open_stream` holds, where its source says so."""
    raw: Any = stream.raw
    length = getattr(raw, "length", None)  # of an HTTP response: Content-Length
    size = getattr(raw, "size", length)
    return size if isinstance(size, int) and size > 0 else None


@contextmanager
def fetched(path: str | os.PathLike[str], progress: Progress | None = None) -> Iterator[Path]:
    """A temporary copy on disk, for what can only be read from a file; it is removed in the end.

    Raises:
        TraceError: it cannot be opened, or read to its end.
        InputError: there is no room for it.
    """
    with tempfile.TemporaryDirectory(prefix="perfdoctor-") as folder:
        local = Path(folder) / "trace"
        stream = open_stream(path)
        with stream, local.open("wb") as out:
            total, done = length_of(stream), 0
            while block := _next_block(stream, path):
                try:
                    out.write(block)
                except OSError as error:
                    raise InputError(
                        f"{shown(path)}: no room for a copy of it in {Path(folder).parent} "
                        f"({error.strerror or error}); set TMPDIR to a folder on another disk"
                    ) from error
                done += len(block)
                if progress is not None:
                    progress(done, total)
        if total is not None and done < total:
            raise TraceError(f"{shown(path)}: the connection ended after {done} of {total} bytes; try again")
        yield local


@contextmanager
def telling(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever goes wrong with a URL into one sentence.

    Raises:
        TraceError: something went wrong.
    """
    try:
        yield
    except TraceError:
        raise
    except Exception as error:  # clients of object stores have exceptions of their own, in packages we do not know
        _refuse(os.fspath(path), error)


def _next_block(stream: io.BufferedReader, path: str | os.PathLike[str]) -> bytes:
    with telling(path):
        return stream.read(_BLOCK)


def _standard_input() -> io.BufferedReader:
    """Standard input as a stream of its own, which may be closed."""
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not there at all
        raise TraceError(f"{STDIN}: there is no standard input; give a file") from None
    if os.isatty(descriptor):
        raise TraceError(f"{STDIN}: standard input is a terminal; pipe a trace into it, or give a file")
    return io.BufferedReader(io.FileIO(os.dup(descriptor)), _BLOCK)


def _refuse(url: str, error: Exception) -> NoReturn:
    """Say in one sentence why a URL cannot be read.

    Raises:
        TraceError: always.
    """
    protocol, status = protocol_of(url), getattr(error, "code", None)
    if status is not None and isinstance(error, OSError):
        error.close()  # type: ignore[attr-defined]  # an HTTPError is the answer, too, and holds the connection
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
    raise TraceError(f"{shown(url)}: {reason}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
