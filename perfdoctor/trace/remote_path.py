"""RemotePath: what is in a folder behind a URL, in the words of pathlib."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from perfdoctor.errors import InputError
from perfdoctor.trace.remote import STDIN, Download, is_web, shown, telling

Kind: TypeAlias = Literal["file", "directory"]
_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, order=True)
class RemotePath(os.PathLike[str]):
    """A URL, or ``-`` for standard input.

    Attributes:
        url: As given; `str` of the path leaves out the passwords and signatures in it.
        kind: What it is, where a listing has said so: asking again would cost a request.
    """

    url: str
    kind: Kind | None = field(default=None, compare=False)

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return shown(self.url)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return str(self).rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The folder that it lies in."""
        return RemotePath(str(self).rstrip("/").rpartition("/")[0], "directory")

    def is_dir(self) -> bool:
        """Whether it is a folder; on the web what ends in a slash."""
        if self.url == STDIN or self.kind == "file":
            return False
        if self.kind == "directory":
            return True
        if is_web(self.url):
            return str(self).endswith("/")
        with telling(self.url):
            system, path = _system(self.url)
            return bool(system.isdir(path))

    def is_file(self) -> bool:
        """Whether it is a file."""
        if self.kind is not None or is_web(self.url) or self.url == STDIN:
            return not self.is_dir()
        with telling(self.url):
            system, path = _system(self.url)
            return bool(system.isfile(path))

    def iterdir(self) -> Iterator[RemotePath]:
        """What lies in a folder.

        Raises:
            InputError: it is on the web, which has no listings.
            TraceError: it cannot be listed.
        """
        if is_web(self.url):
            raise InputError(f"{self}: the files in a folder on the web cannot be listed; give each file's URL")
        with telling(self.url):
            system, path = _system(self.url)
            entries: list[dict[str, Any]] = system.ls(path, detail=True)
            own = path.rstrip("/")
            found = [_of(system, entry["name"], entry["type"]) for entry in entries if entry["name"].rstrip("/") != own]
        yield from found

    def has_magic(self) -> bool:
        """Whether it is a pattern; on the web a question mark begins a query."""
        return self.url != STDIN and not is_web(self.url) and not _MAGIC.isdisjoint(self.url)

    def glob(self) -> list[RemotePath]:
        """What matches the pattern.

        Raises:
            TraceError: its folder cannot be listed.
        """
        with telling(self.url):
            system, path = _system(self.url)
            found: dict[str, dict[str, Any]] = system.glob(path, detail=True)
            return [_of(system, name, entry["type"]) for name, entry in sorted(found.items())]

    def read_bytes(self) -> bytes:
        """The content, for small files.

        Raises:
            TraceError: it cannot be read.
        """
        with Download(self.url) as download:
            return download.readall()


def _system(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path on it."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path)


def _of(system: Any, name: str, kind: str) -> RemotePath:
    return RemotePath(str(system.unstrip_protocol(name)), "directory" if kind == "directory" else "file")
