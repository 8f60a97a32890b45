"""How far the analysis of many files is, whichever processes do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from perfdoctor.fleet.discover import TraceFile
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.io.stream import Progress as ReadCallback


@frozen_dataclass
class FileProgress:
    """How far the reading of the files is: `done_bytes` of `total_bytes` (None where unknown) of file `number`.

    `finished` counts the files that are done, and the parts read of the others.
    """

    name: str
    number: int
    files: int
    done_bytes: int
    total_bytes: int | None
    finished: float = 0.0


Progress: TypeAlias = Callable[[FileProgress], None]


class ProgressTracker:
    """Adds up the progress of several files and passes it on.

    Args:
        files: All files.
        callback: Called at each change; None when nobody wants to know.
    """

    def __init__(self, files: Sequence[TraceFile], callback: Progress | None) -> None:
        self._files = files
        self._callback = callback
        self._read_shares: dict[int, float] = {}
        self._finished_files = 0

    def begin(self, index: int) -> None:
        """Pass on that file `index` will be read: it may take long until its first bytes come."""
        self._notify(index, 0, None)

    def update(self, index: int, done_bytes: int, total_bytes: int | None) -> None:
        """Pass on that file `index` is read up to `done_bytes`."""
        self._read_shares[index] = min(done_bytes / total_bytes, 1.0) if total_bytes else 0.0
        self._notify(index, done_bytes, total_bytes)

    def finish(self, index: int) -> None:
        """Count file `index` as done, whether it could be analysed or not."""
        self._read_shares.pop(index, None)
        self._finished_files += 1

    def notify_finished(self, index: int) -> None:
        """Pass on that file `index` is done, for a file whose reader reports nothing meanwhile."""
        self._notify(index, 1, 1)

    def reader_callback(self, index: int) -> ReadCallback | None:
        """The callback for the reader that begins with file `index` in this process; None when nobody wants to know."""
        if self._callback is None:
            return None
        self.begin(index)
        return lambda done_bytes, total_bytes: self.update(index, done_bytes, total_bytes)

    def _notify(self, index: int, done_bytes: int, total_bytes: int | None) -> None:
        if self._callback is not None:
            name, files = self._files[index].path.name, len(self._files)
            finished = self._finished_files + sum(self._read_shares.values())
            self._callback(FileProgress(name, index + 1, files, done_bytes, total_bytes, finished))
