"""A bar on the terminal while files are read, by bytes of one file or over many ranks; nothing anywhere else."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from perfdoctor.reporters.wording import clean

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from perfdoctor.api import FileProgress

_PATIENCE_SECONDS = 1.0  # what takes less needs no bar
_NAME_WIDTH = 40


@contextmanager
def reading_bar(
    *, wanted: bool = True, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[FileProgress], None] | None]:
    """What to pass on as `progress`: a bar on stderr, which comes after a second and leaves no trace.

    Args:
        wanted: False where the user wants silence.
        stream: instead of stderr.
        clock: tells the seconds.

    Yields:
        None where that is no terminal, or none that can move its cursor.
    """
    stream = sys.stderr if stream is None else stream
    if not wanted or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    bar = Bar(stream, clock)
    try:
        yield bar.show
    finally:
        bar.close()


class Bar:
    """One bar for all files, made when it is first shown: importing rich takes a tenth of a second.

    It comes when its time has come, also where nothing is read meanwhile, as of a server that does not answer.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._since = clock()
        self._state: FileProgress | None = None
        self._closed = False
        self._progress: Progress | None = None
        self._task: TaskID
        self._over_ranks = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(_PATIENCE_SECONDS, self._come)
        self._timer.daemon = True
        self._timer.start()

    def show(self, state: FileProgress) -> None:
        """Show how far the reading is, once it has taken a second."""
        with self._lock:
            self._state = state
            if self._progress is not None or self._clock() - self._since >= _PATIENCE_SECONDS:
                self._draw()

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def _come(self) -> None:
        """Show the bar, unless all is read."""
        with self._lock:
            state = self._state
            if not self._closed and (state is None or state.done_bytes != state.total_bytes or state.files > 1):
                self._draw()

    def _draw(self) -> None:
        state = self._state
        over_ranks = state is not None and state.files > 1
        if self._progress is not None and over_ranks != self._over_ranks:
            self._progress.stop()
            self._progress = None
        if self._progress is None:
            self._over_ranks = over_ranks
            self._progress = _new_bar(self._stream, over_ranks=over_ranks)
            self._task = self._progress.add_task("reading", total=None)
            self._progress.start()
        if state is not None:
            name = clean(state.name)
            short = name if len(name) <= _NAME_WIDTH else f"...{name[3 - _NAME_WIDTH :]}"
            text = f"ranks, reading {short}" if over_ranks else f"reading {short}"
            done, total = (state.finished, state.files) if over_ranks else (state.done_bytes, state.total_bytes)
            self._progress.update(self._task, description=text, completed=done, total=total)


def _new_bar(stream: TextIO, *, over_ranks: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),  # a file may be called [red]
        BarColumn(),
        MofNCompleteColumn() if over_ranks else DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
