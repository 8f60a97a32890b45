"""RemotePath: list and read what lies behind a URL, in the words of pathlib.

Not universal-pathlib: it could replace 22 of these lines, those for object stores. On the web it needs aiohttp, takes
folders of an index page for files, adds names behind the query, and its paths show passwords.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from perfdoctor.errors import TraceError
from perfdoctor.trace.io.remote import STDIN, Download, explain_url_errors, is_web, redact

Kind: TypeAlias = Literal["file", "directory"]
_MAGIC = frozenset("*?[")
DEFAULT_MAX_INDEX_BYTES = 16_000_000  # an index page with some hundred thousand links


@dataclass(frozen=True, slots=True, order=True)
class RemotePath(os.PathLike[str]):
    """A URL, or ``-`` for standard input.

    Attributes:
        url: As given; `str` of the path leaves out the passwords and signatures in it.
        kind: What it is, where a listing has said so: asking again would cost a request.
        max_index_bytes: How long an index page may be.
    """

    url: str
    kind: Kind | None = field(default=None, compare=False)
    max_index_bytes: int = field(default=DEFAULT_MAX_INDEX_BYTES, compare=False)

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return redact(self.url)

    def __truediv__(self, name: str) -> RemotePath:
        base, query = self._split_query()
        return replace(self, url=f"{base.rstrip('/')}/{name}{query}", kind=None)

    @property
    def name(self) -> str:
        """The last part."""
        return str(self).rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The folder that it lies in."""
        return RemotePath(str(self).rstrip("/").rpartition("/")[0], "directory")

    def is_dir(self) -> bool:
        """Whether it is a folder; on the web a URL that ends in a slash."""
        if self.url == STDIN or self.kind == "file":
            return False
        if self.kind == "directory":
            return True
        if is_web(self.url):
            return str(self).endswith("/")
        with explain_url_errors(self.url):
            system, path = _file_system(self.url)
            return bool(system.isdir(path))

    def is_file(self) -> bool:
        """Whether it is a file; on the web a URL that the server answers."""
        if self.kind is not None or self.url == STDIN:
            return not self.is_dir()
        if is_web(self.url):
            return not self.is_dir() and self._exists_on_web()
        with explain_url_errors(self.url):
            system, path = _file_system(self.url)
            return bool(system.isfile(path))

    def iterdir(self) -> Iterator[RemotePath]:
        """The paths that lie in a folder; on the web those that its index page links to.

        Raises:
            TraceError: it cannot be listed.
        """
        if is_web(self.url):
            yield from self._list_index_page()
            return
        with explain_url_errors(self.url):
            system, path = _file_system(self.url)
            entries: list[dict[str, Any]] = system.ls(path, detail=True)
            folder = path.rstrip("/")  # which some stores list among its content
            inner = [entry for entry in entries if entry["name"].rstrip("/") != folder]
            found = [_make_path(system, entry["name"], entry["type"]) for entry in inner]
        yield from found

    def has_magic(self) -> bool:
        """Whether it is a pattern; on the web only a name can be one, and a question mark begins a query."""
        return self.url != STDIN and not _MAGIC.isdisjoint(self.name if is_web(self.url) else self.url)

    def glob(self) -> list[RemotePath]:
        """The paths that match the pattern.

        Raises:
            TraceError: its folder cannot be listed.
        """
        if is_web(self.url):
            base, query = self._split_query()
            folder = replace(self, url=f"{base.rstrip('/').rpartition('/')[0]}/{query}")
            return [path for path in folder.iterdir() if fnmatchcase(path.name, self.name)]
        with explain_url_errors(self.url):
            system, path = _file_system(self.url)
            found: dict[str, dict[str, Any]] = system.glob(path, detail=True)
            return [_make_path(system, name, entry["type"]) for name, entry in sorted(found.items())]

    def read_bytes(self, max_bytes: int) -> bytes:
        """The content, for small files; of a longer one its beginning, of `max_bytes` and little more.

        Raises:
            TraceError: it cannot be read.
        """
        with Download(self.url) as download:
            return download.readall(max_bytes)

    def _split_query(self) -> tuple[str, str]:
        """The URL without its query, and the query: on the web it can hold the signature that gives access."""
        base, mark, query = self.url.partition("?") if is_web(self.url) else (self.url, "", "")
        return base, mark + query

    def _exists_on_web(self) -> bool:
        """Whether a server answers the URL: with GET and without reading, as many servers do not know HEAD."""
        try:
            Download(self.url).close()
        except TraceError:
            return False
        return True

    def _list_index_page(self) -> Iterator[RemotePath]:
        """The paths that the index page of a folder on the web links to."""
        from perfdoctor.trace.io import web

        content = self.read_bytes(self.max_index_bytes)
        if len(content) >= self.max_index_bytes:
            raise TraceError(
                f"{self}: its index page does not end after {self.max_index_bytes:,} bytes; name the traces, or give "
                "a larger --max-index"
            )
        page = content.decode(errors="replace")
        for name in web.list_index_page(self._split_query()[0], page):
            yield replace(self / name, kind="directory" if name.endswith("/") else "file")


def _file_system(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path on it."""
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path)


def _make_path(system: Any, name: str, kind: str) -> RemotePath:
    return RemotePath(str(system.unstrip_protocol(name)), "directory" if kind == "directory" else "file")
