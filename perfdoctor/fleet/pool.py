"""Files over processes of this machine, one thread each; a process that dies costs the file that it was at.

Processes of our own instead of `multiprocessing`: its spawn imports the user's script again in each of them, and its
executors give up all files when one process dies, and cannot say at which it was.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, cast

from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.budget import budget_bytes, needed_bytes
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import Missing, Plan, Result
from perfdoctor.fleet.read_progress import Tracker
from perfdoctor.fleet.worker import READING, READY, REFUSED

# Libraries that would start a thread for each core, in each process.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_POLL_SECONDS = 0.2


def over_processes(files: Sequence[TraceFile], plan: Plan, jobs: int, tracker: Tracker) -> Iterator[tuple[int, Result]]:
    """Analyse files in `jobs` processes.

    Whatever ends this generator, an interrupt too, ends all processes at once.

    Yields:
        The index of a file with its result, in the order in which they are done.

    Raises:
        UsageError: the plan cannot be followed.
        InputError: no process can be started.
    """
    pool = _Pool(files, plan, jobs)
    try:
        pool.start()
        left = len(files)
        while left:
            index, event = pool.heard()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, tuple):
                tracker.reading(index, *event)
                continue
            tracker.finished(index)
            left -= 1
            yield index, event.result
    finally:
        pool.stop()


class _Done:
    """What became of a file."""

    __slots__ = ("result",)

    def __init__(self, result: Result) -> None:
        self.result = result


class _Pool:
    """Threads that drive a process each: they take the next file, send it, and pass on what they hear."""

    def __init__(self, files: Sequence[TraceFile], plan: Plan, jobs: int) -> None:
        self._files = files
        self._plan = plan
        # The largest first: the last ones decide how long all processes are busy.
        self._waiting = sorted(range(len(files)), key=lambda i: -needed_bytes(files[i]))
        self._taken_bytes: dict[int, int] = {}
        self._budget = budget_bytes()
        self._changed = threading.Condition()
        self._events: queue.Queue[tuple[int, Any]] = queue.Queue()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(jobs)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def heard(self) -> tuple[int, Any]:
        """The next event; waits in short turns, in which interrupts come through on all systems."""
        while True:
            with suppress(queue.Empty):
                return self._events.get(timeout=_POLL_SECONDS)

    def stop(self) -> None:
        """End all processes, now."""
        with self._changed:
            self._stopping.set()
            for process in self._processes:
                process.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _drive(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        try:
            while (index := self._take()) is not None:
                try:
                    process = process or self._started()
                    if process is None:
                        return
                    result = self._worked(process, index)
                finally:
                    self._give_back(index)
                if result is None:
                    why, process = self._died(process), None
                    result = Missing(self._files[index], why)
                self._events.put((index, _Done(result)))
        except Exception as error:  # of this thread nobody would hear otherwise
            self._events.put((-1, error))
        finally:
            if process is not None:
                self._died(process)

    def _take(self) -> int | None:
        """The next file that fits into memory beside those that are being read; None when there is no more to do."""
        with self._changed:
            while self._waiting and not self._stopping.is_set():
                room = self._budget - sum(self._taken_bytes.values())
                fits = (i for i in self._waiting if not self._taken_bytes or needed_bytes(self._files[i]) <= room)
                index = next(fits, None)
                if index is not None:
                    self._waiting.remove(index)
                    self._taken_bytes[index] = needed_bytes(self._files[index])
                    return index
                self._changed.wait()
            return None

    def _give_back(self, index: int) -> None:
        with self._changed:
            self._taken_bytes.pop(index, None)
            self._changed.notify_all()

    def _started(self) -> subprocess.Popen[bytes] | None:
        """A process that is ready; None when all is to end.

        Raises:
            InputError: it ended before it was ready.
        """
        with self._changed:
            if self._stopping.is_set():
                return None
            process = _spawned()
            self._processes.add(process)
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            if pickle.load(_answers(process))[0] == READY:
                _send(process, self._plan)
                return process
        how = self._died(process)
        if self._stopping.is_set():
            return None
        raise InputError(f"worker processes cannot be used: {how}; run with --jobs 1")

    def _worked(self, process: subprocess.Popen[bytes], index: int) -> Result | None:
        """What a process makes of a file; None when it dies."""
        try:
            _send(process, self._files[index])
            while True:
                kind, value = pickle.load(_answers(process))
                if kind == READING:
                    self._events.put((index, value))
                elif kind == REFUSED:
                    raise cast(UsageError, value)
                else:
                    return cast(Result, value)
        except (EOFError, OSError, pickle.UnpicklingError):
            return None

    def _died(self, process: subprocess.Popen[bytes]) -> str:
        """How a process ended, which it does now if it has not yet."""
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                cast(IO[bytes], pipe).close()
        code = process.wait()
        with self._changed:
            self._processes.discard(process)
        if code >= 0:
            return f"its worker process ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        memory = "; this is how the system ends processes when memory runs out" if name == "SIGKILL" else ""
        return f"its worker process was ended by {name}{memory}"


def _spawned() -> subprocess.Popen[bytes]:
    """A new worker, which finds modules where this process does."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from perfdoctor.fleet.worker import main; main()"
    environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1")}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        # The terminal interrupts the group of this process only, which then ends all others without their complaints.
        process_group=0 if os.name == "posix" else None,
    )


def _answers(process: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast(IO[bytes], process.stdout)


def _send(process: subprocess.Popen[bytes], value: Any) -> None:
    pipe = cast(IO[bytes], process.stdin)
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()
