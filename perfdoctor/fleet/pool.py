"""Analyses files in several worker processes of this machine, one thread each; a dead worker costs only its file."""

from __future__ import annotations

import pickle
import queue
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import FailedFile, FileResult
from perfdoctor.fleet.read_progress import ProgressTracker
from perfdoctor.fleet.worker import PROGRESS, READY, USAGE_ERROR
from perfdoctor.fleet.worker_count import estimate_worker_bytes, memory_budget_bytes
from perfdoctor.fleet.worker_process import WorkerProcess, can_copy_process, copy_process, start_process
from perfdoctor.frozen_dataclass import frozen_dataclass

_POLL_SECONDS = 0.2


def analyze_in_processes(
    files: Sequence[TraceFile], options: AnalysisOptions, workers: int, tracker: ProgressTracker
) -> Iterator[tuple[int, FileResult]]:
    """Analyse files in worker processes. However this generator ends, by an interrupt too, all workers end at once.

    Args:
        files: the files.
        options: how to analyse them.
        workers: how many processes to start.
        tracker: gets the progress of each file.

    Yields:
        The index of a file with its result, in the order in which they finish.

    Raises:
        UsageError: the options are wrong.
        InputError: no process can be started.
    """
    pool = _WorkerPool(files, options, workers)
    try:
        pool.start()
        tracker.begin(0)
        unfinished = len(files)
        while unfinished:
            index, event = pool.next_event()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, _ReadBytes):
                tracker.update(index, event.done_bytes, event.total_bytes)
                continue
            tracker.finish(index)
            unfinished -= 1
            yield index, event.result
    finally:
        pool.stop()


@frozen_dataclass
class _ReadBytes:
    """Event: a worker has read so much of its file."""

    done_bytes: int
    total_bytes: int | None


@frozen_dataclass
class _Finished:
    """Event: a file was analysed, or cannot be."""

    result: FileResult


_Event: TypeAlias = _ReadBytes | _Finished | Exception


class _WorkerPool:
    """Worker processes and a thread for each: it takes the next file, sends it, and queues what the worker answers."""

    def __init__(self, files: Sequence[TraceFile], options: AnalysisOptions, workers: int) -> None:
        self._files = files
        self._options = options
        # The largest first: otherwise one worker may still be busy with a large file when all others are done.
        self._pending = sorted(range(len(files)), key=lambda i: -estimate_worker_bytes(files[i]))
        self._reserved_bytes: dict[int, int] = {}
        self._budget_bytes = memory_budget_bytes()
        self._changed = threading.Condition()
        self._events: queue.Queue[tuple[int, _Event]] = queue.Queue()
        self._processes: set[WorkerProcess] = set()
        self._stopping = threading.Event()
        self._workers = workers
        self._threads: list[threading.Thread] = []
        self._copies: list[WorkerProcess] = []

    def start(self) -> None:
        """Start the workers; copies of this process before it gets the threads that drive them."""
        with suppress(OSError):  # the system may allow no further process, and says so when one is needed
            while can_copy_process() and len(self._copies) < self._workers:
                self._copies.append(copy_process(self._copies))
                self._processes.add(self._copies[-1])
        for _ in range(self._workers):
            self._threads.append(threading.Thread(target=self._drive_worker, daemon=True))
            self._threads[-1].start()

    def next_event(self) -> tuple[int, _Event]:
        """The next event with the index of its file.

        It waits in short turns, because a long wait cannot be interrupted on all systems.
        """
        while True:
            with suppress(queue.Empty):
                return self._events.get(timeout=_POLL_SECONDS)

    def stop(self) -> None:
        """End all processes at once."""
        with self._changed:
            self._stopping.set()
            for process in self._processes:
                process.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for copy in self._copies:
            self._end_process(copy)

    def _drive_worker(self) -> None:
        process: WorkerProcess | None = None
        try:
            while (index := self._reserve_file()) is not None:
                try:
                    process = process or self._start_process()
                    if process is None:
                        return
                    result = self._analyze_in(process, index)
                finally:
                    self._release(index)
                if result is None:
                    reason, process = self._end_process(process), None
                    result = FailedFile(self._files[index], reason)
                self._events.put((index, _Finished(result)))
        except Exception as error:  # otherwise the error of this thread would be lost
            self._events.put((-1, error))
        finally:
            if process is not None:
                self._end_process(process)

    def _reserve_file(self) -> int | None:
        """The next file that fits into memory beside those that are being read; waits for it, None when all are done.

        A file that is too large for the budget is read when no other is.
        """
        with self._changed:
            while self._pending and not self._stopping.is_set():
                free_bytes = self._budget_bytes - sum(self._reserved_bytes.values())
                for index in self._pending:
                    needed_bytes = estimate_worker_bytes(self._files[index])
                    if not self._reserved_bytes or needed_bytes <= free_bytes:
                        self._pending.remove(index)
                        self._reserved_bytes[index] = needed_bytes
                        return index
                self._changed.wait()
            return None

    def _release(self, index: int) -> None:
        with self._changed:
            self._reserved_bytes.pop(index, None)
            self._changed.notify_all()

    def _start_process(self) -> WorkerProcess | None:
        """A process that is ready and has the options; None when the pool is stopping.

        Raises:
            InputError: it ended before it was ready.
        """
        with self._changed:
            if self._stopping.is_set():
                return None
            process = self._copies.pop() if self._copies else start_process()
            self._processes.add(process)
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            if pickle.load(process.messages)[0] == READY:
                _send(process, self._options)
                return process
        cause = self._end_process(process)
        if self._stopping.is_set():
            return None
        raise InputError(f"worker processes cannot be used: {cause}; run with --jobs 1")

    def _analyze_in(self, process: WorkerProcess, index: int) -> FileResult | None:
        """The result of a file from a worker process; None when the process dies."""
        try:
            _send(process, self._files[index])
            while True:
                kind, value = pickle.load(process.messages)
                if kind == PROGRESS:
                    self._events.put((index, _ReadBytes(*value)))
                elif kind == USAGE_ERROR:
                    raise cast(UsageError, value)
                else:
                    return cast(FileResult, value)
        except (EOFError, OSError, pickle.UnpicklingError):
            return None

    def _end_process(self, process: WorkerProcess) -> str:
        """Close a worker's pipes, wait for its end, and say how it ended."""
        process.close()
        code = process.wait()
        with self._changed:
            self._processes.discard(process)
        if code >= 0:
            return f"its worker process ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        memory = "; this is how the system ends processes when memory runs out" if name == "SIGKILL" else ""
        return f"its worker process was ended by {name}{memory}"


def _send(process: WorkerProcess, value: Any) -> None:
    pickle.dump(value, process.tasks, protocol=pickle.HIGHEST_PROTOCOL)
    process.tasks.flush()
