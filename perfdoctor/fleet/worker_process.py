"""Starts worker processes: as copies of this process where that is safe, else with Python anew.

A copy needs 10 ms and shares the memory of what is imported; Python anew imports it again, 0.25 s of CPU time. The
processes are started here and not by `multiprocessing`: its spawn imports the user's script again in each of them, and
its executors give up all files when one process dies, and cannot say which file that process had.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, cast

from perfdoctor.fleet import worker

# Libraries that would otherwise start a thread for each core in each process.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerProcess:
    """A process that runs `worker.serve`, and the two pipes to it.

    Attributes:
        tasks: What it reads: the options, then files.
        messages: What it writes.
    """

    def __init__(self, tasks: IO[bytes], messages: IO[bytes], process: subprocess.Popen[bytes] | int) -> None:
        self.tasks = tasks
        self.messages = messages
        self._process = process  # the id of a copy, of which `subprocess` knows nothing
        self._exit_code: int | None = None
        self._lock = threading.Lock()  # the id of a process that was waited for may be another's

    def kill(self) -> None:
        """End the process at once; it is still to be waited for."""
        if not isinstance(self._process, int):
            self._process.kill()
            return
        with self._lock:
            if self._exit_code is None:
                os.kill(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes, which ends a process that is not at work."""
        for pipe in (self.tasks, self.messages):
            with suppress(OSError):
                pipe.close()

    def wait(self) -> int:
        """Wait for the end of the process: its exit code, or the negative number of the signal that ended it."""
        if not isinstance(self._process, int):
            return self._process.wait()
        if self._exit_code is None:
            os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOWAIT)
            with self._lock:
                self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        return self._exit_code


def can_copy_process() -> bool:
    """Whether this process can be copied: other threads of it would not be, with whatever they have locked.

    So not in a program that trains, nor with the progress bar on. The frameworks of macOS start threads of their own.
    """
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def copy_process(others: Iterable[WorkerProcess]) -> WorkerProcess:
    """A worker that is a copy of this process; `can_copy_process` must be true.

    Args:
        others: The workers that run: the copy closes their pipes, which would otherwise outlive this process.
    """
    task_end, tasks = os.pipe()
    messages, message_end = os.pipe()
    for stream in (sys.stdout, sys.stderr):  # what waits in their buffers would be written twice
        with suppress(OSError, ValueError):
            stream.flush()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C in a terminal reaches the parent only, which ends the workers
            gc.freeze()  # no finalizer of an object of the parent is to run here
            for other in others:
                other.close()
            os.close(tasks)
            os.close(messages)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)  # the prints of a plugin do not belong into a report
            worker.serve(os.fdopen(task_end, "rb"), os.fdopen(message_end, "wb"))
            code = 0
        finally:
            os._exit(code)
    os.close(task_end)
    os.close(message_end)
    return WorkerProcess(os.fdopen(tasks, "wb"), os.fdopen(messages, "rb"), process)


def start_process() -> WorkerProcess:
    """A worker that runs Python anew, with the module search path of this process."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from perfdoctor.fleet.worker import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **dict.fromkeys(_THREAD_VARIABLES, "1")},
        # A group of its own: Ctrl-C in a terminal reaches this process only, which ends the workers without tracebacks.
        process_group=0 if os.name == "posix" else None,
    )
    return WorkerProcess(cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout), process)
