"""Every way out of a process calls `Recorder.finish` first, and then ends the process as it would have ended."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import threading
from types import FrameType
from typing import NoReturn

from .blocked_thread import BlockedThreadWatch, main_thread_frame
from .recorder import Recorder

# Longer than saving takes; a program that ends must not wait for ever.
SAVE_TIMEOUT_S = 20.0


class ExitHandlers:
    """Handlers of ordinary exit, `os._exit`, SIGTERM and fork; after SIGKILL the files stay as they are."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._blocked_watch = BlockedThreadWatch(self._handle_sigterm, self._finish_for_blocked_thread)
        # The main thread and the watch of blocked calls may both want to save.
        self._save_lock = threading.RLock()

    def install(self) -> None:
        """Register a handler for each way out."""
        atexit.register(self.finish, "exit")
        self._wrap_os_exit()
        self._handle_sigterm_unless_handled()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._on_fork_in_child)

    def finish(self, reason: str) -> None:
        """Save what was recorded; an error of ours must not change how the program ends."""
        if not self._save_lock.acquire(timeout=SAVE_TIMEOUT_S):
            return
        try:
            self.recorder.finish(reason)
        except Exception as error:
            self.recorder.give_up(error)
        finally:
            self._save_lock.release()

    def _wrap_os_exit(self) -> None:
        """Save before `os._exit`, which runs no exit handlers: launchers and multiprocessing end processes with it."""
        original = os._exit

        def _exit(status: int) -> NoReturn:
            try:
                self.finish("os._exit")
            finally:
                original(status)

        os._exit = _exit

    def _handle_sigterm_unless_handled(self) -> None:
        """Install our handler where the program has none; a handler that the program sets later replaces ours."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle_sigterm)
            self._blocked_watch.install()

    def _handle_sigterm(self, number: int, _frame: FrameType | None) -> None:
        self._blocked_watch.on_handler_run()
        self.finish("SIGTERM")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _finish_for_blocked_thread(self) -> None:
        """Save all but an open window; the watching thread calls it, which must not close the main thread's window."""
        with self._save_lock:
            self.recorder.note_blocked_call(main_thread_frame())
            self.finish("SIGTERM")

    def _on_fork_in_child(self) -> None:
        """Free a forked helper of the handlers: SIGTERM must end it at once, as it would without us."""
        self._blocked_watch.close_in_child()
        self._save_lock = threading.RLock()
        has_profiled = self.recorder.profiler.used
        self.recorder.on_fork_in_child()
        if has_profiled:
            skip_destructors()
        is_helper = self.recorder.finished or self.recorder.is_forked_helper
        if is_helper and signal.getsignal(signal.SIGTERM) == self._handle_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def skip_destructors() -> None:
    """Let a forked child end, after Python's exit, without the destructors of C++.

    Once used, Kineto has a thread, which the child of a fork does not have. Kineto's destructor would wait for the
    thread for ever. Children of multiprocessing end by `os._exit` and run no destructors.
    """
    with contextlib.suppress(Exception):  # only glibc has these functions
        libc = ctypes.CDLL(None)
        for last in (libc._exit, libc.fcloseall):  # called in reverse order, each with the exit code
            libc.on_exit(ctypes.cast(last, ctypes.c_void_p), None)
