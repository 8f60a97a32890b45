"""How long threads waited for a core although they could have run: the run delay of Linux (`schedstat`).

CPU time alone cannot tell a thread that sleeps from one whose core another program has; the run delay is the second.
"""

from __future__ import annotations

import contextlib
import os
import threading

_MAX_BYTES = 64
# To open, read and close a thread's file takes 10 us, to read it again 2: the files of some threads stay open.
_MAX_OPEN_FILES = 16
_open_files: dict[int, int] = {}


def read_queued_ns() -> int | None:
    """How long the calling thread has waited for a core since it began; None where the system does not say it."""
    thread = threading.get_native_id()  # in the child of a fork another one
    descriptor = _open_files.get(thread)
    if descriptor is not None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(os.pread(descriptor, _MAX_BYTES, 0).split()[1])
        del _open_files[thread]  # of a thread that has ended, or closed by the program
    if len(_open_files) < _MAX_OPEN_FILES:
        with contextlib.suppress(OSError):
            _open_files[thread] = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    return _read_file("/proc/thread-self/schedstat")


def read_queued_by_thread() -> dict[str, int]:
    """The same of each thread of this process, by its id; empty where the system does not say it."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            queued_ns = _read_file(f"/proc/self/task/{thread}/schedstat")
            if queued_ns is not None:
                found[thread] = queued_ns
    return found


def subtract_queued(later_ns: int | None, earlier_ns: int | None) -> int | None:
    """The run delay between two readings; None where one of them is not known."""
    return None if later_ns is None or earlier_ns is None else max(later_ns - earlier_ns, 0)


def _read_file(path: str) -> int | None:
    """The second number of a `schedstat` file, in nanoseconds: time on the run queue."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return int(os.read(descriptor, _MAX_BYTES).split()[1])
        finally:
            os.close(descriptor)
    except (OSError, ValueError, IndexError):
        return None
