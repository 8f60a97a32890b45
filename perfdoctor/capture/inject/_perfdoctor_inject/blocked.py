"""SIGTERM while the main thread is in a call that does not come back: a collective whose other ranks are gone.

Python runs a signal handler when the main thread executes Python again, so with any handler the process would outlive
SIGTERM until that call returns; without one it would have died at once. The C part of Python's signal handling writes
the signal's number to a pipe the moment it arrives (`signal.set_wakeup_fd`). A thread reads it, gives the handler a
moment, and ends the process itself when the main thread has not moved. It can do so only where the blocked call has
released the GIL, as torch's waits do. Ctrl-C is left alone: without us it would wait for the call, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from .rescue import die

# An ordinary main thread runs its handler within a few ms; schedulers send SIGKILL 30 s after SIGTERM.
PATIENCE_S = 0.5


class BlockedWatch:
    """The pipe and the thread; `save` is called when the handler cannot run."""

    def __init__(self, handler: Callable[[int, FrameType | None], None], save: Callable[[], None]) -> None:
        self._handler = handler
        self._save = save
        self._handled = threading.Event()
        self._pipe: tuple[int, int] | None = None

    def install(self) -> None:
        """Begin, unless the program itself wants to be woken up; main thread only."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(reading)
            os.close(writing)
            return
        self._pipe = reading, writing
        threading.Thread(target=self._watch, args=(reading,), name="perfdoctor-signals", daemon=True).start()

    def handled(self) -> None:
        """The handler runs: nothing is blocked."""
        self._handled.set()

    def forked(self) -> None:
        """In the child of a fork: its signals must not be taken for the parent's."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        with contextlib.suppress(ValueError, OSError):
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, pipe[1]):
                signal.set_wakeup_fd(before)
        for file in pipe:
            with contextlib.suppress(OSError):
                os.close(file)

    def _watch(self, reading: int) -> None:
        while True:
            try:
                numbers = os.read(reading, 64)
            except OSError:
                return
            if not numbers:
                return
            if signal.SIGTERM in numbers and self._is_blocked():
                self._save()
                die(signal.SIGTERM)

    def _is_blocked(self) -> bool:
        """Whether the handler is ours and the main thread does not come to run it."""
        if signal.getsignal(signal.SIGTERM) != self._handler:
            return False
        before = main_position()
        # A main thread that moves without having run the handler got no signal: a child of it did.
        return not self._handled.wait(PATIENCE_S) and main_position() == before


def main_frame() -> FrameType | None:
    """What the main thread executes."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def main_position() -> tuple[int, int] | None:
    """Where the main thread stands; the same place twice in half a second is a call that has not returned."""
    frame = main_frame()
    return None if frame is None else (id(frame), frame.f_lasti)
