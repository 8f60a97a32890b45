"""The CPU cores: how many the process may use, who used them in the base window, and how long threads waited for one.

CPU time alone cannot tell a thread that sleeps from one whose core another program has; the run delay of Linux
(`schedstat`) is the second.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .probes import EndedStep, Probe
from .proc_files import group_folders, list_processes, read_process, read_text, read_words

# /proc counts in ticks of 10 ms: the share of others is read over a longer time than that.
_MIN_SPAN_NS = 100_000_000
# Reading /proc/stat takes 20 us and more, and the run delay 4 to 8 us a thread: not at each of many short steps.
_MIN_INTERVAL_NS = 50_000_000
# Of the time that passes between two readings they take no more than this.
_READING_SHARE = 0.01


class CoreUsage(Probe):
    """CPU time of this process and of the machine over the steps of the base window.

    Attributes:
        span_ns: First and last instant of the base window, on the clock of `time.perf_counter_ns`; None before it.
        local_ranks: The most ranks of the job that were seen on this machine: some end earlier. None for unknown.
    """

    def __init__(self, count_worker_cores: Callable[[tuple[int, int] | None], float | None]) -> None:
        """Nothing was used; `count_worker_cores` says what worker processes used in a span, None for unknown."""
        self._count_worker_cores = count_worker_cores
        self.local_ranks: int | None = None
        # Where nothing limits the process, there is nothing to read at each step.
        self._has_quota = read_quota() is not None
        self.begin_window()

    def begin_window(self) -> None:
        """The base window begins, or begins again."""
        self.span_ns: tuple[int, int] | None = None
        self._step_cpu_ns = 0
        self._step_wall_ns = 0
        self._cpu_at_step = 0
        self._machine: list[tuple[int, int, int]] = []
        self._queued: list[tuple[int, dict[str, int]]] = []
        self._next_reading_ns = 0
        self._stopped: list[tuple[int, int]] = []

    def begin_step(self) -> None:
        """A step begins."""
        self._cpu_at_step = time.process_time_ns()

    def step(self, ended: EndedStep) -> None:
        """A step has ended; only those of the base window count."""
        dur_ns = ended.dur_ns
        if ended.window != "base":
            return
        now_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        if self._cpu_at_step:
            self._step_cpu_ns += cpu_ns - self._cpu_at_step
            self._step_wall_ns += dur_ns
        self.span_ns = (self.span_ns[0] if self.span_ns else now_ns - dur_ns, now_ns)
        if now_ns >= self._next_reading_ns:
            busy_ns = read_machine_busy_ns()
            if busy_ns is not None:
                self._machine = [*self._machine[:1], (now_ns, busy_ns, cpu_ns)]
            stopped_ns = read_throttled_ns() if self._has_quota else None
            if stopped_ns is not None:
                self._stopped = [*self._stopped[:1], (now_ns, stopped_ns)]
            self._queued = [*self._queued[:1], (now_ns, read_queued_by_thread())]
            reading_ns = time.perf_counter_ns() - now_ns
            self._next_reading_ns = now_ns + max(_MIN_INTERVAL_NS, round(reading_ns / _READING_SHARE))

    def throttled_cores(self) -> float | None:
        """Cores on which the quota of a control group stopped the process in the base window, on average.

        None without a quota, or where the window is too short to say it: quotas count by intervals of 100 ms.
        """
        if len(self._stopped) < 2:
            return None
        (start_ns, before_ns), (end_ns, now_ns) = self._stopped
        return round((now_ns - before_ns) / (end_ns - start_ns), 3) if end_ns - start_ns >= _MIN_SPAN_NS else None

    def training_cores(self) -> float | None:
        """Cores that this process used in the base window, on average; None where it had no step."""
        return round(self._step_cpu_ns / self._step_wall_ns, 3) if self._step_wall_ns else None

    def queued_threads(self) -> float | None:
        """Threads of this process that could have run in the base window and had no core, on average.

        None where the system does not say it, or where the window is too short. Threads that began later count from
        their start on.
        """
        if len(self._queued) < 2:
            return None
        (start_ns, before), (end_ns, now) = self._queued
        if not before or not now or end_ns - start_ns < _MIN_SPAN_NS:
            return None
        queued_ns = sum(max(ns - before.get(thread, 0), 0) for thread, ns in now.items())
        return round(queued_ns / (end_ns - start_ns), 3)

    def other_cores(self, workers: float | None) -> float | None:
        """Cores that other programs used in the base window; None where the window is too short to say it.

        `workers` are the cores that this process's workers used; None for unknown.
        """
        if len(self._machine) < 2:
            return None
        (start_ns, busy_start_ns, cpu_start_ns), (end_ns, busy_end_ns, cpu_end_ns) = self._machine[0], self._machine[-1]
        if end_ns - start_ns < _MIN_SPAN_NS:
            return None
        others_ns = busy_end_ns - busy_start_ns - (cpu_end_ns - cpu_start_ns)
        return round(max(others_ns / (end_ns - start_ns) - (workers or 0.0), 0.0), 3)

    def facts(self) -> dict[str, Any]:
        """Who used the cores."""
        self.local_ranks = max((each for each in (self.local_ranks, count_local_ranks()) if each), default=None)
        workers = self._count_worker_cores(self.span_ns)
        cores = {
            "available": count_available_cores(),
            "training": self.training_cores(),
            "workers": workers,
            "others": self.other_cores(workers),
            "throttled": self.throttled_cores(),
            "queued": self.queued_threads(),
            "local_ranks": self.local_ranks,
        }
        return {"cores": cores}


def count_local_ranks() -> int | None:
    """Ranks of the job on this machine, as the launcher says it or as the program has spawned them; None if unknown."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return count_spawned_trainers()


def count_spawned_trainers() -> int | None:
    """Processes that one program has spawned with `multiprocessing` and that compute alike, this one among them.

    Alike is half of this one's CPU time and more, with as many threads: helpers that load data or play games have one.
    None where this process was not spawned, or where nothing of its siblings is known.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return None
    found = {pid: fields for pid in list_processes() if (fields := read_process(pid)) is not None and len(fields) > 17}
    # Its parent, its CPU time in ticks, and its threads.
    processes = {pid: (int(f[1]), int(f[11]) + int(f[12]), int(f[17])) for pid, f in found.items()}
    own = processes.get(os.getpid())
    if own is None:
        return None
    return sum(
        parent == own[0] and 2 * cpu >= own[1] and 2 * threads >= own[2] for parent, cpu, threads in processes.values()
    )


def count_available_cores() -> float | None:
    """Cores that this process may use, by its affinity and the quotas of its control groups; None for unknown."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None
    if cores is None:
        count = os.cpu_count()
        cores = float(count) if count else None
    quota = read_quota()
    if cores is None or quota is None:
        return cores if quota is None else quota
    return min(cores, quota)


def read_quota(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> float | None:
    """The smallest CPU quota of the control groups around this process, in cores; None without one."""
    found = (_read_quota(version, folder) for version, folder in group_folders(root, groups, "cpu"))
    return min((quota for quota in found if quota is not None), default=None)


def read_throttled_ns(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> int | None:
    """How long quotas have stopped the cores of this process's control groups so far; None where nothing says it."""
    found = (_read_throttled(folder) for _, folder in group_folders(root, groups, "cpu"))
    return max((ns for ns in found if ns is not None), default=None)


def _read_throttled(folder: str) -> int | None:
    """The time in a group's `cpu.stat`: `throttled_usec` in version 2, `throttled_time` in ns in version 1."""
    values = read_words(os.path.join(folder, "cpu.stat"))
    return values["throttled_usec"] * 1000 if "throttled_usec" in values else values.get("throttled_time")


def _read_quota(version: int, folder: str) -> float | None:
    """The quota of a group: a time, and the interval it is for; "max" or -1 is none."""
    if version == 2:
        texts = (read_text(os.path.join(folder, "cpu.max")) or "").split()
    else:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = [read_text(os.path.join(folder, file)) or "" for file in files]
    numbers = [int(text) for text in texts[:2] if text.strip().isdigit()]
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def read_machine_busy_ns() -> int | None:
    """CPU time that the whole machine has spent computing since its start; None where /proc/stat is not there."""
    fields = (read_text("/proc/stat") or "").split(maxsplit=9)
    if len(fields) < 9:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal: all but idle and waiting for disks
    ticks = sum(int(fields[each]) for each in (1, 2, 3, 6, 7, 8))
    return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


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
    fields = (read_text(path) or "").split()
    return int(fields[1]) if len(fields) > 1 else None
