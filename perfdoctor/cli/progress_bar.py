"""A progress bar on the terminal while files are read: bytes of one file, or the number of ranks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from perfdoctor.reporters.clean_text import clean_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from perfdoctor.api import FileProgress

_DELAY_SECONDS = 1.0  # what takes less needs no bar
_NAME_WIDTH = 40


@contextmanager
def open_progress_bar(
    *, enabled: bool = True, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[FileProgress], None] | None]:
    """A bar on stderr that appears after a second and is removed at the end.

    Args:
        enabled: False shows nothing.
        stream: The terminal instead of stderr.
        clock: Returns the current time in seconds.

    Yields:
        The callback to pass on as `progress`; None where the stream is no terminal, or one without cursor control.
    """
    stream = sys.stderr if stream is None else stream
    if not enabled or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    bar = ProgressBar(stream, clock)
    try:
        yield bar.update
    finally:
        bar.close()


class ProgressBar:
    """One bar for all files, made when it is first drawn: importing rich takes 0.1 s.

    After the first update a timer draws the bar even if no other comes, as from a server that does not answer. Not
    before: a process with a second thread cannot be copied, and worker processes are copies.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._started = clock()
        self._state: FileProgress | None = None
        self._closed = False
        self._progress: Progress | None = None
        self._task: TaskID
        self._counts_ranks = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(_DELAY_SECONDS, self._draw_after_delay)
        self._timer.daemon = True

    def update(self, state: FileProgress) -> None:
        """Note how far the reading is, and draw it once the delay is over."""
        with self._lock:
            if self._state is None:
                self._timer.start()
            self._state = state
            if self._progress is not None or self._clock() - self._started >= _DELAY_SECONDS:
                self._draw()

    def close(self) -> None:
        """Remove the bar from the terminal."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def _draw_after_delay(self) -> None:
        """Draw the bar, unless everything is read."""
        with self._lock:
            state = self._state
            if not self._closed and (state is None or state.done_bytes != state.total_bytes or state.files > 1):
                self._draw()

    def _draw(self) -> None:
        state = self._state
        counts_ranks = state is not None and state.files > 1
        if self._progress is not None and counts_ranks != self._counts_ranks:
            self._progress.stop()
            self._progress = None
        if self._progress is None:
            self._counts_ranks = counts_ranks
            self._progress = _make_progress(self._stream, counts_ranks=counts_ranks)
            self._task = self._progress.add_task("reading", total=None)
            self._progress.start()
        if state is not None:
            name = clean_line(state.name)
            short = name if len(name) <= _NAME_WIDTH else f"...{name[3 - _NAME_WIDTH :]}"
            text = f"ranks, reading {short}" if counts_ranks else f"reading {short}"
            done, total = (state.finished, state.files) if counts_ranks else (state.done_bytes, state.total_bytes)
            self._progress.update(self._task, description=text, completed=done, total=total)


def _make_progress(stream: TextIO, *, counts_ranks: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),  # a file may be called [red]
        BarColumn(),
        MofNCompleteColumn() if counts_ranks else DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
