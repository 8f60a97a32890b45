"""Saving the open window of a thread that is held up in a call: in a copy of the process, made by that very thread.

A session of the profiler belongs to the thread that opened it; closing it from another one crashes the process. A
thread that waits in C can still run a signal handler, and a handler from ctypes takes the GIL that the waiting thread
has let go of. All that ours does is to fork: in the copy, the thread is where it was, finds its session, closes and
saves it, and whatever goes wrong there dies with the copy. The process itself is about to die by a signal: it waits
for the copy, and a timer of the kernel ends it even if the handler never returns, because the call was interrupted in
the middle of something that a fork needs, too.

CUDA does not survive a fork: with an accelerator in use there is no way, and the window is lost.
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
FORKING_S = 2.0


class SignalEvent(ctypes.Structure):
    """`struct sigevent` of Linux with SIGEV_SIGNAL: 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("pad", ctypes.c_char * 48),
    )


class TimerSpec(ctypes.Structure):
    """`struct itimerspec`: an interval of zero makes it ring once."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


def default_action(libc: ctypes.CDLL, number: int) -> None:
    """Put the default action of a signal back: Python lets only the main thread do that, libc any."""
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    libc.signal(number, SIG_DFL)


def die(number: int) -> None:
    """End this process by the signal."""
    with contextlib.suppress(Exception):
        default_action(ctypes.CDLL(None), number)
    os.kill(os.getpid(), number)


def die_later(number: int, seconds: float) -> None:
    """Have the kernel send the signal, with its default action, whatever this process is stuck in by then.

    Raises:
        OSError: There is no such timer.
        AttributeError: Nor such a function; not on Linux.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    default_action(libc, number)
    timer = ctypes.c_void_p()
    event = SignalEvent(number=number, notify=0)
    spec = TimerSpec(value_s=int(seconds), value_ns=int(seconds % 1 * 1e9))
    if libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    if libc.timer_settime(timer, 0, ctypes.byref(spec), None):
        raise OSError(ctypes.get_errno(), "timer_settime")


def save_in_copy(save: Callable[[], None], wait_s: float) -> bool:
    """Fork in the main thread, which is held up in a call, and run `save` in the copy. Not for the main thread.

    Args:
        save: Runs in the copy, as the main thread; the copy ends with it.
        wait_s: Seconds that the copy may take.

    Returns:
        Whether it returned in time and raised nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    number = free_signal(libc)
    main = threading.main_thread().ident
    if number is None or main is None:
        return False
    copies: list[int] = []
    forked = threading.Event()

    def fork(_: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside other threads
            copy = os.fork()
        if copy:
            copies.append(copy)
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
    return forked.wait(FORKING_S) and has_succeeded(copies[0], wait_s)


def free_signal(libc: ctypes.CDLL) -> int | None:
    """A real-time signal that nobody handles, None where there is none."""
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    for number in range(getattr(signal, "SIGRTMAX", 0), getattr(signal, "SIGRTMIN", 1), -1):
        before = libc.signal(number, SIG_DFL)
        if before in (None, SIG_DFL):
            return number
        if before != SIG_ERR:
            libc.signal(number, before)
    return None


def has_succeeded(process: int, wait_s: float) -> bool:
    """Wait for a child, but not for ever; one that takes too long is killed."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return False
