"""RemotePath: what is in a folder behind a URL, in the words of pathlib."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from perfdoctor.errors import TraceError
from perfdoctor.trace.io.remote import STDIN, Download, is_web, shown, telling

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
        place, query = self._parts()
        return RemotePath(f"{place.rstrip('/')}/{name}{query}")

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
        """Whether it is a file; on the web what there is an answer for."""
        if self.kind is not None or self.url == STDIN:
            return not self.is_dir()
        if is_web(self.url):
            return not self.is_dir() and self._answers()
        with telling(self.url):
            system, path = _system(self.url)
            return bool(system.isfile(path))

    def iterdir(self) -> Iterator[RemotePath]:
        """What lies in a folder; on the web what its index page links to.

        Raises:
            TraceError: it cannot be listed.
        """
        if is_web(self.url):
            yield from self._linked()
            return
        with telling(self.url):
            system, path = _system(self.url)
            entries: list[dict[str, Any]] = system.ls(path, detail=True)
            own = path.rstrip("/")
            found = [_of(system, entry["name"], entry["type"]) for entry in entries if entry["name"].rstrip("/") != own]
        yield from found

    def has_magic(self) -> bool:
        """Whether it is a pattern; on the web only a name can be one, and a question mark begins a query."""
        return self.url != STDIN and not _MAGIC.isdisjoint(self.name if is_web(self.url) else self.url)

    def glob(self) -> list[RemotePath]:
        """What matches the pattern.

        Raises:
            TraceError: its folder cannot be listed.
        """
        if is_web(self.url):
            place, query = self._parts()
            folder = RemotePath(f"{place.rstrip('/').rpartition('/')[0]}/{query}")
            return [path for path in folder.iterdir() if fnmatchcase(path.name, self.name)]
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

    def _parts(self) -> tuple[str, str]:
        """The URL without its query, and the query, which on the web can be what lets one in."""
        place, mark, query = self.url.partition("?") if is_web(self.url) else (self.url, "", "")
        return place, mark + query

    def _answers(self) -> bool:
        """Whether there is something on the web: asked for and not read, as servers know GET where they do not HEAD."""
        try:
            Download(self.url).close()
        except TraceError:
            return False
        return True

    def _linked(self) -> Iterator[RemotePath]:
        """What the index page of a folder on the web links to."""
        from perfdoctor.trace.io import web

        page = self.read_bytes().decode(errors="replace")
        for name in web.listed(self._parts()[0], page):
            found = self / name
            yield RemotePath(found.url, "directory" if name.endswith("/") else "file")


def _system(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path on it."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path)


def _of(system: Any, name: str, kind: str) -> RemotePath:
    return RemotePath(str(system.unstrip_protocol(name)), "directory" if kind == "directory" else "file")
