"""Every way out of a process leads past `Recorder.finish` first, and then goes where it was going."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import threading
from types import FrameType
from typing import NoReturn

from .blocked import BlockedWatch, main_frame
from .recorder import Recorder
from .rescue import die_later, save_in_copy

# Longer than saving takes; a program that ends must not wait for ever.
SAVING_S = 20.0


class Exits:
    """Ordinary exit, `os._exit`, SIGTERM and fork. SIGKILL leaves what was written as it came."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._blocked = BlockedWatch(self._terminated, self._finish_blocked)
        # Held by whoever saves: the main thread and the watch of blocked calls may both want to.
        self._saving = threading.RLock()
        self._copying = False

    def install(self) -> None:
        """Watch all of them."""
        atexit.register(self.finish, "exit")
        self._watch_os_exit()
        self._watch_sigterm()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def finish(self, why: str) -> None:
        """Save what there is; an error of ours must not change how the program ends."""
        if not self._saving.acquire(timeout=SAVING_S):
            return
        try:
            self.recorder.finish(why)
        except Exception as error:
            self.recorder.give_up(error)
        finally:
            self._saving.release()

    def _watch_os_exit(self) -> None:
        """`os._exit` runs no exit handlers: launchers and multiprocessing end their processes with it."""
        leave = os._exit

        def _exit(status: int) -> NoReturn:
            try:
                self.finish("os._exit")
            finally:
                leave(status)

        os._exit = _exit

    def _watch_sigterm(self) -> None:
        """Only where the program has no handler of its own; a handler that it sets later replaces ours."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            self._blocked.install()

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        self._blocked.handled()
        if self._copying:
            return  # the main thread runs Python again, in order to be copied: its signal has been seen to
        self.finish("SIGTERM")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _finish_blocked(self) -> None:
        """Called by the thread that watches: the main one is held up, and its open window is out of reach here."""
        with self._saving:
            self.recorder.held_up(main_frame())
            if self.recorder.can_be_copied and self._saved_by_copy():
                self.recorder.finished = True
            self.finish("SIGTERM")

    def _saved_by_copy(self) -> bool:
        self._copying = True
        try:
            die_later(signal.SIGTERM, SAVING_S + 2)
            return save_in_copy(lambda: self.finish("SIGTERM"), SAVING_S)
        except Exception:
            return False  # no such timer or signal here: what was written before is kept
        finally:
            self._copying = False

    def _forked(self) -> None:
        """A forked helper must die of SIGTERM at once, as it would without us."""
        self._blocked.forked()
        self._saving = threading.RLock()
        if self._copying:
            return
        self.recorder.forked()
        if self.recorder.profiler.used:
            skip_destructors()
        if self.recorder.finished and signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def skip_destructors() -> None:
    """In a forked child: end, once Python has, without the destructors of C++.

    Kineto has a thread since it was first used, which a child of a fork has not; its destructor waits for it for
    ever. Children of multiprocessing leave by `os._exit` and never come there.
    """
    with contextlib.suppress(Exception):  # only glibc has these
        libc = ctypes.CDLL(None)
        for last in (libc._exit, libc.fcloseall):  # called in reverse order, each with the exit code
            libc.on_exit(ctypes.cast(last, ctypes.c_void_p), None)
