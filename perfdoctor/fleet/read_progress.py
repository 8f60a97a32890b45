"""How far the analysis of many files is, whichever processes do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from perfdoctor.fleet.discover import TraceFile
from perfdoctor.trace.io.stream import Progress as FileReading


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far the reading of the files is: `done_bytes` of `total_bytes` (None where unknown) of file `number`.

    `finished` counts the files that are done, and the parts of those that are being read.
    """

    name: str
    number: int
    files: int
    done_bytes: int
    total_bytes: int | None
    finished: float = 0.0


Progress: TypeAlias = Callable[[FileProgress], None]


class Tracker:
    """Adds up what is heard of several files, and tells it on.

    Args:
        files: all files.
        tell: told about each change; None for nobody.
    """

    def __init__(self, files: Sequence[TraceFile], tell: Progress | None) -> None:
        self._files = files
        self._tell = tell
        self._parts: dict[int, float] = {}
        self._done = 0

    def reading(self, index: int, done_bytes: int, total_bytes: int | None) -> None:
        """File `index` was read that far."""
        self._parts[index] = min(done_bytes / total_bytes, 1.0) if total_bytes else 0.0
        self._say(index, done_bytes, total_bytes)

    def finished(self, index: int) -> None:
        """File `index` is done with, one way or the other."""
        self._parts.pop(index, None)
        self._done += 1

    def of(self, index: int) -> FileReading | None:
        """What a reader of file `index` in this process calls; None where nobody listens."""
        if self._tell is None:
            return None
        return lambda done, total: self.reading(index, done, total)

    def said(self, index: int) -> None:
        """Tell on that a file is finished of whose reading nothing is heard."""
        self._say(index, 1, 1)

    def _say(self, index: int, done_bytes: int, total_bytes: int | None) -> None:
        if self._tell is not None:
            name, files = self._files[index].path.name, len(self._files)
            finished = self._done + sum(self._parts.values())
            self._tell(FileProgress(name, index + 1, files, done_bytes, total_bytes, finished))
