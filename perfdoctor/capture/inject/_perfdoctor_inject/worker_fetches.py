"""What loading a batch takes: the items of the data set, and putting them together (`collate_fn`).

Where the training process loads, the times are kept for the record of the loader. Each worker writes the times of its
last batches to a small file that it maps into memory, and the training process reads the files of the workers it knows.
This works however workers are started, and needs neither locks nor a message:
a row is written before the count that makes it visible.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from typing import Any, NamedTuple

from torch.utils.data._utils import worker

from .core_usage import read_queued_ns, subtract_queued
from .watched_calls import RAISED, Watching, watch_calls

FOLDER_VARIABLE = "PERFDOCTOR_CAPTURE_MARKS"
_COUNT = struct.Struct("<q")
_ROW = struct.Struct("<6q")
_UNKNOWN = -1
# Some 14 kB a worker: the last batches, enough for a median of the steps without a profiler.
_ROWS = 300
_FILE_BYTES = _COUNT.size + _ROWS * _ROW.size


class Fetch(NamedTuple):
    """One batch that a worker loaded.

    Attributes:
        end_ns: When it was loaded, on the clock of `time.perf_counter_ns`, which all processes share.
        wall_ns: How long loading and collating took.
        cpu_ns: CPU time of the worker's thread in it.
        process_cpu_ns: CPU time of all threads of the worker in it.
        collate_ns: The part of `wall_ns` in `collate_fn`.
        queued_ns: How long the worker's thread waited for a core in it; -1 where the system does not say it.
    """

    end_ns: int
    wall_ns: int
    cpu_ns: int
    process_cpu_ns: int
    collate_ns: int
    queued_ns: int


class LocalFetches(threading.local):
    """What this thread has done itself for batches since it was last asked: to fetch only without workers.

    Attributes:
        wall_ns: Time in `fetch`.
        collate_ns: The part of it in `collate_fn`.
        sampler_ns: Time in the sampler, which no worker has.
    """

    def __init__(self) -> None:
        self.wall_ns = self.collate_ns = self.sampler_ns = 0

    def take(self) -> tuple[int, int, int]:
        """The three times, which begin at 0 again."""
        taken = self.wall_ns, self.collate_ns, self.sampler_ns
        self.wall_ns = self.collate_ns = self.sampler_ns = 0
        return taken


local_fetches = LocalFetches()


class FetchWriter:
    """The file of this worker process; after an error it writes nothing more."""

    def __init__(self) -> None:
        self.collate_ns = 0
        self._count = 0
        self._memory: mmap.mmap | None = None
        try:
            path = os.path.join(os.environ[FOLDER_VARIABLE], f"{os.getpid()}.fetch")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                # Written whole: where the disk is full, a write to a hole in a mapped file ends the process (SIGBUS).
                os.write(descriptor, bytes(_FILE_BYTES))
                self._memory = mmap.mmap(descriptor, _FILE_BYTES)  # an error where less fitted
            finally:
                os.close(descriptor)
        except (OSError, KeyError, ValueError):
            self._memory = None

    @property
    def is_open(self) -> bool:
        """Whether there is a file to write to."""
        return self._memory is not None

    def write(self, fetch: Fetch) -> None:
        """Add a batch in the place of the oldest one."""
        if self._memory is None:
            return
        try:
            _ROW.pack_into(self._memory, _COUNT.size + self._count % _ROWS * _ROW.size, *fetch)
            self._count += 1
            _COUNT.pack_into(self._memory, 0, self._count)
        except (OSError, ValueError, struct.error):
            self._memory = None


_writers: dict[int, FetchWriter] = {}


def _writer_of_this_worker() -> FetchWriter | None:
    """The writer of this process; None outside of DataLoader workers, or where nothing can be written."""
    if worker._worker_info is None:
        return None
    pid = os.getpid()
    writer = _writers.get(pid)
    if writer is None:  # a fork has the writers of its parent, which are not its own
        _writers.clear()
        writer = _writers[pid] = FetchWriter()
    return writer if writer.is_open else None


def _time_collate(fetcher: Any, writer: FetchWriter | LocalFetches) -> None:
    """Let a fetcher, which belongs to one iterator, time its `collate_fn`."""

    def watch_collate(*_: Any) -> Watching:
        start_ns = time.perf_counter_ns()
        yield
        writer.collate_ns += time.perf_counter_ns() - start_ns

    collate = getattr(fetcher, "collate_fn", None)
    if callable(collate) and not hasattr(collate, "is_timed"):
        fetcher.collate_fn = watch_calls(collate, watch_collate)
        fetcher.collate_fn.is_timed = True


def watch_fetch(_frame: Any, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
    """Around `fetch` of a dataset fetcher: in a worker, each call becomes a row of the worker's file."""
    writer = _writer_of_this_worker()
    if writer is None:
        _time_collate(args[0], local_fetches)
        start_ns = time.perf_counter_ns()
        yield
        local_fetches.wall_ns += time.perf_counter_ns() - start_ns
        return
    _time_collate(args[0], writer)
    writer.collate_ns = 0
    before_ns = read_queued_ns()
    start_ns, cpu_ns, process_ns = time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns()
    if (yield) is RAISED:  # the end of an iterable data set, too: no batch
        return
    end_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns() - cpu_ns
    process_ns = time.process_time_ns() - process_ns
    queued_ns = subtract_queued(read_queued_ns(), before_ns)
    queued = _UNKNOWN if queued_ns is None else queued_ns
    writer.write(Fetch(end_ns, end_ns - start_ns, cpu_ns, process_ns, writer.collate_ns, queued))


def watch_next_index(*_: Any) -> Watching:
    """Around `_next_index` of a loader's iterator, which asks the sampler: its time is added to `local_fetches`."""
    start_ns = time.perf_counter_ns()
    yield
    local_fetches.sampler_ns += time.perf_counter_ns() - start_ns


def read_fetches(pid: int, seen: int = 0) -> tuple[int, list[Fetch]]:
    """What a worker has written beyond the first `seen` batches.

    Returns how many batches the worker has loaded, and those of them that are new and still in its file; (seen, [])
    where there is no such file.
    """
    try:
        with open(os.path.join(os.environ[FOLDER_VARIABLE], f"{pid}.fetch"), "rb") as file:
            data = file.read(_FILE_BYTES)
        (count,) = _COUNT.unpack_from(data)
        first = max(seen, count - _ROWS + 1, 0)  # the oldest row may be half overwritten
        return count, [
            Fetch(*_ROW.unpack_from(data, _COUNT.size + each % _ROWS * _ROW.size)) for each in range(first, count)
        ]
    except (OSError, KeyError, struct.error):
        return seen, []
