"""Reads the lines of source files that reports quote."""

from __future__ import annotations

import linecache
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

# More is no source file that somebody wrote: the largest of torch has 1 MB.
_MAX_BYTES = 4_000_000
_roots: ContextVar[tuple[Path, ...]] = ContextVar("roots", default=())


@contextmanager
def quote_only_under(roots: Sequence[Path]) -> Iterator[None]:
    """Meanwhile no line is read from a file outside of these resolved folders; none are no limit."""
    token = _roots.set(tuple(roots))
    try:
        yield
    finally:
        _roots.reset(token)


def read_source_line(file: str, line: int) -> str:
    """The text of a line of a Python file, or of a notebook's cell that ran in this process; "" where there is none.

    A trace says which file that is, and may come from anybody. Only regular files are read whose name ends in .py after
    links were followed, so that no link, pipe or device is quoted.
    """
    return linecache.getline(file, line) if _is_cell(file) or _may_be_quoted(file, _roots.get()) else ""


def _is_cell(file: str) -> bool:
    return file in linecache.cache and not os.path.isabs(file)


@lru_cache(maxsize=1024)  # a report quotes many lines of few files
def _may_be_quoted(file: str, roots: tuple[Path, ...]) -> bool:
    try:
        resolved = Path(file).resolve()
        status = resolved.stat()
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return False
    is_source = resolved.suffix == ".py" and stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
    return is_source and (not roots or any(resolved.is_relative_to(root) for root in roots))
