"""Saving the open window of a main thread that is blocked in a call: in a forked copy of the process.

A session of the profiler belongs to the thread that opened it; closing it in another thread crashes the process. A
thread that waits in C can still run a signal handler, and a handler made by ctypes takes the GIL that the waiting
thread has released. Our handler only forks::

    watching thread    signal to the main thread ........ waits for the child ... process ends
    main thread        blocked call -> handler: fork .... blocked call
    forked child                                  `---> main thread: close the session, save it, exit

In the child, the main thread is where it was, so that it may close the session. Whatever fails there ends the child
only. The process itself is about to end by a signal. A timer of the kernel ends it even if the handler never returns,
which happens where the blocked call was interrupted while it had a lock that fork needs.

CUDA does not survive a fork: with an accelerator in use the window cannot be saved and is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable

SIG_DFL = 0
SIG_ERR = ctypes.c_void_p(-1).value
CLOCK_MONOTONIC = 1
# The handler itself takes milliseconds; a thread that blocks signals never runs it.
FORK_TIMEOUT_S = 2.0


class SignalEvent(ctypes.Structure):
    """`struct sigevent` of Linux with SIGEV_SIGNAL: 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_char * 48),
    )


class TimerSpec(ctypes.Structure):
    """`struct itimerspec`; with an interval of zero the timer fires once."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


def restore_default_action(libc: ctypes.CDLL, number: int) -> None:
    """Restore the default action of a signal by libc, which any thread may do; Python allows the main thread only."""
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    libc.signal(number, SIG_DFL)


def end_by_signal(number: int) -> None:
    """End this process by the signal."""
    with contextlib.suppress(Exception):
        restore_default_action(ctypes.CDLL(None), number)
    os.kill(os.getpid(), number)


def end_by_signal_later(number: int, seconds: float) -> None:
    """Let the kernel send the signal, with its default action, whatever blocks this process by then.

    Raises:
        OSError: There is no such timer.
        AttributeError: There is no such function; the system is not Linux.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    restore_default_action(libc, number)
    timer = ctypes.c_void_p()
    event = SignalEvent(number=number, notify=0)
    spec = TimerSpec(value_s=int(seconds), value_ns=int(seconds % 1 * 1e9))
    if libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    if libc.timer_settime(timer, 0, ctypes.byref(spec), None):
        raise OSError(ctypes.get_errno(), "timer_settime")


def save_in_fork(save: Callable[[], None], timeout_s: float) -> bool:
    """Fork in the blocked main thread and run `save` in the child; call it in another thread.

    Args:
        save: Runs in the child, as its main thread; the child ends when it returns.
        timeout_s: Seconds that the child may take.

    Returns:
        Whether `save` returned in time and raised nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    number = find_unused_signal(libc)
    main = threading.main_thread().ident
    if number is None or main is None:
        return False
    children: list[int] = []
    forked = threading.Event()

    def fork(_: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of a fork while other threads run
            child = os.fork()
        if child:
            children.append(child)
            forked.set()
            return
        status = 1
        with contextlib.suppress(BaseException):
            save()
            status = 0
        os._exit(status)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(fork)
    libc.signal(number, ctypes.cast(handler, ctypes.c_void_p))
    signal.pthread_kill(main, number)
    return forked.wait(FORK_TIMEOUT_S) and wait_for_success(children[0], timeout_s)


def find_unused_signal(libc: ctypes.CDLL) -> int | None:
    """A real-time signal without a handler, None where there is none."""
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    for number in range(getattr(signal, "SIGRTMAX", 0), getattr(signal, "SIGRTMIN", 1), -1):
        previous = libc.signal(number, SIG_DFL)
        if previous in (None, SIG_DFL):
            return number
        if previous != SIG_ERR:
            libc.signal(number, previous)
    return None


def wait_for_success(process: int, timeout_s: float) -> bool:
    """Wait for a child and return whether it exited with 0; a child that takes longer than the timeout is killed."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return False
