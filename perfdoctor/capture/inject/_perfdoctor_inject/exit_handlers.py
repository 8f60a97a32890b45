"""Every way out of a process calls `Recorder.finish` first, and then ends the process as it would have ended.

SIGTERM may come while the main thread is in a call that does not return: a collective whose other ranks are gone.
Python runs a signal handler only when the main thread executes Python again. With any handler, ours included, the
process outlives SIGTERM until that call returns; without one it would end at once. But the C part of Python's signal
handling writes the signal's number to a pipe as soon as the signal arrives (`signal.set_wakeup_fd`)::

    SIGTERM -> pipe -> watching thread -> PATIENCE_S later, handler not run -> save, then end the process

The thread can do so only where the blocked call has released the GIL, as torch's waits do. Ctrl-C is left alone:
without us it would wait for the call, too.

A window that is open then is lost. Kineto's session belongs to the thread that opened it: closed by another thread it
gives no events, and the process crashes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from .recorder import Recorder

# A main thread that is not blocked runs its handler within a few ms; schedulers send SIGKILL 30 s after SIGTERM.
PATIENCE_S = 0.5


class BlockedThreadWatch:
    """A pipe and a thread that notice a SIGTERM whose handler cannot run."""

    def __init__(self, handler: Callable[[int, FrameType | None], None], save: Callable[[], None]) -> None:
        """Start nothing yet.

        `save` is called in the watching thread, before the process ends, when the handler of SIGTERM cannot run.
        """
        self._handler = handler
        self._save = save
        self._handler_ran = threading.Event()
        self._pipe: tuple[int, int] | None = None

    def install(self) -> None:
        """Start the thread, unless the program itself uses the wakeup pipe; call it in the main thread only."""
        reading_end, writing_end = os.pipe()
        os.set_blocking(writing_end, False)
        previous = signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
        if previous != -1:
            signal.set_wakeup_fd(previous)
            os.close(reading_end)
            os.close(writing_end)
            return
        self._pipe = reading_end, writing_end
        threading.Thread(target=self._watch, args=(reading_end,), name="perfdoctor-signals", daemon=True).start()

    def on_handler_run(self) -> None:
        """The handler runs: the main thread is not blocked."""
        self._handler_ran.set()

    def close_in_child(self) -> None:
        """Close the pipe in the child of a fork: the child's signals must not reach the parent's thread."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        with contextlib.suppress(ValueError, OSError):
            previous = signal.set_wakeup_fd(-1)
            if previous not in (-1, pipe[1]):
                signal.set_wakeup_fd(previous)
        for file in pipe:
            with contextlib.suppress(OSError):
                os.close(file)

    def _watch(self, reading_end: int) -> None:
        while True:
            try:
                signals = os.read(reading_end, 64)
            except OSError:
                return
            if not signals:
                return
            if signal.SIGTERM in signals and self._main_thread_is_blocked():
                self._save()
                end_by_signal(signal.SIGTERM)

    def _main_thread_is_blocked(self) -> bool:
        """Whether the handler is ours and the main thread does not run it."""
        if signal.getsignal(signal.SIGTERM) != self._handler:
            return False
        before = main_thread_position()
        # A main thread that moves on without running the handler got no signal: a forked child of it did.
        return not self._handler_ran.wait(PATIENCE_S) and main_thread_position() == before


def end_by_signal(number: int) -> None:
    """End this process by the signal: its default action, which Python restores in the main thread only."""
    with contextlib.suppress(Exception):
        libc = ctypes.CDLL(None)
        libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
        libc.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def main_thread_frame() -> FrameType | None:
    """The frame that the main thread executes."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def main_thread_position() -> tuple[int, int] | None:
    """Frame and instruction of the main thread; the same ones half a second later are a call that has not returned."""
    frame = main_thread_frame()
    return None if frame is None else (id(frame), frame.f_lasti)


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
