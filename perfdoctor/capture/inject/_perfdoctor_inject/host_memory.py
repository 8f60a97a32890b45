"""Memory of the host while a program runs: of its processes, of /dev/shm, of the machine, and of its control group.

A thread reads it from /proc, so that it is there on Linux only. A page that processes share counts in parts (PSS):
their sum is what they take together. Reading that walks the page tables, 10 us a MB, so the thread sleeps 200 times as
long as a look takes. Worker processes belong to the tree of the process that started them.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from .proc_files import (
    group_folders,
    list_processes,
    read_host_bytes,
    read_number,
    read_process,
    read_sizes_of,
    read_text,
    read_words,
)

# Version 1 says "no limit" by the largest number of pages.
NO_LIMIT_BYTES = 1 << 60
try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

READ_LIMIT = getattr(resource, "getrlimit", None)

MIN_INTERVAL_S = 0.5
SLEEP_PER_LOOK = 200
# Of larger trees the first processes: the program and its oldest children.
MAX_PROCESSES = 128
STOP_TIMEOUT_S = 1.0
SHARED_MEMORY = "/dev/shm"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# By version of control groups: the files with the limit and the usage, and the figures in memory.stat of file pages,
# all of them and those that give way first.
GROUP_FILES = {
    2: ("memory.max", "memory.current", "file", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_inactive_file"),
}


@dataclass
class ProcessMemory:
    """A process in the tree of the program; bytes, None where the system does not tell.

    Attributes:
        pid: Its number.
        kind: program, worker (of a DataLoader) or other.
        samples: How often it was looked at.
        last_bytes: Its memory, shared pages in parts, at the last look.
        peak_bytes: The most of that.
        private_first_bytes: Written pages that it shares with nobody, at the first look.
        private_last_bytes: The same at the last look.
        shared_memory_peak_bytes: The most of its part of shared memory, such as batches on their way.
    """

    pid: int
    kind: str
    samples: int = 0
    last_bytes: int | None = None
    peak_bytes: int | None = None
    private_first_bytes: int | None = None
    private_last_bytes: int | None = None
    shared_memory_peak_bytes: int | None = None

    def add(self, sizes: dict[str, int]) -> None:
        """Add a look; `sizes` as `read_sizes` returned them."""
        self.samples += 1
        self.last_bytes = sizes.get("Pss", sizes["Rss"])
        self.peak_bytes = max(self.last_bytes, self.peak_bytes or 0)
        self.private_last_bytes = sizes.get("Private_Dirty")
        if self.samples == 1:
            self.private_first_bytes = self.private_last_bytes
        self.shared_memory_peak_bytes = larger(self.shared_memory_peak_bytes, sizes.get("Pss_Shmem"))


def larger(first: int | None, second: int | None) -> int | None:
    """The larger of two figures that may be unknown."""
    return max((each for each in (first, second) if each is not None), default=None)


def smaller(first: int | None, second: int | None) -> int | None:
    """The smaller of two figures that may be unknown."""
    return min((each for each in (first, second) if each is not None), default=None)


class HostMemory:
    """The thread that looks, from `start` to `stop`, and what it has seen.

    Attributes:
        killed: The signal that has ended a worker of a DataLoader, by its pid.
    """

    def __init__(self, list_workers: Callable[[], Iterable[int]]) -> None:
        """Look at nothing yet; `list_workers` returns the pids of the workers of DataLoaders so far."""
        self._list_workers = list_workers
        self.killed: dict[int, int] = {}
        self._status = "starting" if sys.platform == "linux" else "not linux"
        self._why: str | None = None
        self._is_pss = True
        self._processes: dict[int, ProcessMemory] = {}
        self._samples = self._cpu_ns = 0
        self._tree_peak: int | None = None
        self._available_least: int | None = None
        self._shared_total: int | None = None
        self._shared_peak: int | None = None
        self._open_files_peak: int | None = None
        self._group = find_group()
        self._group_peak: int | None = None
        self._group_cache: int | None = None
        self._kills_before = None if self._group is None else read_oom_kills(self._group[1])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="perfdoctor-memory", daemon=True)

    def start(self) -> None:
        """Start the thread, where there is something to look at."""
        if self._status == "starting":
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after a last look."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT_S)

    def note_killed(self, processes: Iterable[Any]) -> None:
        """Note which of some processes of multiprocessing a signal has ended; they are left to be waited for."""
        for process in processes:
            number = find_signal(process)
            if number is not None:
                self.killed[process.pid] = number

    def to_dict(self) -> dict[str, Any]:
        """What stands in facts.json."""
        processes = list(self._processes.values())
        return {
            "status": self._status,
            "why": self._why,
            "samples": self._samples,
            "cpu_ns": self._cpu_ns,
            "shared_in_parts": self._is_pss if processes else None,
            "tree_peak_bytes": self._tree_peak,
            "processes": [{each.name: getattr(one, each.name) for each in fields(one)} for one in processes],
            "available_least_bytes": self._available_least,
            "shared_memory_bytes": self._shared_total,
            "shared_memory_peak_bytes": self._shared_peak,
            "open_files_limit": read_open_files_limit(),
            "open_files_peak": self._open_files_peak,
            "group": self._describe_group(),
            "killed_workers": [{"pid": pid, "signal": number} for pid, number in self.killed.items()],
        }

    def _describe_group(self) -> dict[str, Any] | None:
        if self._group is None:
            return None
        version, folder = self._group
        kills = read_oom_kills(folder)
        return {
            "version": version,
            "limit_bytes": read_limit(version, folder),
            "peak_bytes": self._group_peak,
            "page_cache_bytes": self._group_cache,
            "oom_kills": None if kills is None or self._kills_before is None else kills - self._kills_before,
        }

    def _run(self) -> None:
        """Look until `stop`, and then once more; an error ends the looking, and is noted."""
        try:
            is_last = False
            while True:
                start_ns = time.thread_time_ns()
                self._look()
                spent_ns = time.thread_time_ns() - start_ns
                self._cpu_ns += spent_ns
                if is_last:
                    return
                is_last = self._stopped.wait(max(MIN_INTERVAL_S, SLEEP_PER_LOOK * spent_ns / 1e9))
        except Exception as error:
            self._status, self._why = "failed", repr(error)

    def _look(self) -> None:
        self._status = "sampled"
        workers, total = set(self._list_workers()), 0
        for pid in find_tree(os.getpid())[:MAX_PROCESSES]:
            sizes = read_sizes(pid)
            if sizes is None:
                continue  # it has ended
            self._is_pss = self._is_pss and "Pss" in sizes
            kind = "program" if pid == os.getpid() else "worker" if pid in workers else "other"
            process = self._processes.setdefault(pid, ProcessMemory(pid, kind))
            process.kind = kind
            process.add(sizes)
            total += process.last_bytes or 0
        self._samples += 1
        self._tree_peak = larger(self._tree_peak, total or None)
        self._available_least = smaller(self._available_least, read_host_bytes("MemAvailable"))
        shared = read_shared_memory()
        if shared is not None:
            self._shared_total, self._shared_peak = shared[0], larger(self._shared_peak, shared[1])
        self._open_files_peak = larger(self._open_files_peak, count_open_files())
        if self._group is not None:
            used, self._group_cache = read_group(*self._group)
            self._group_peak = larger(self._group_peak, used)


def find_tree(root: int) -> list[int]:
    """A process and those that it has started, and these, by their numbers; empty where the system does not list them.

    Not every kernel lists the children of a process, so that the parents of all are read: 10 us each.
    """
    children: dict[int, list[int]] = {}
    for pid in list_processes():
        fields = read_process(pid)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:  # grows while it is read
        found += sorted(children.get(pid, ()))
    return found


def read_sizes(pid: int) -> dict[str, int] | None:
    """The sizes of a process in bytes by the names of smaps_rollup, only Rss where it is denied; None after its end."""
    sizes = read_sizes_of(f"/proc/{pid}/smaps_rollup")
    pages = (read_text(f"/proc/{pid}/statm") or "").split()[1:2] if not sizes else []
    return sizes or ({"Rss": int(pages[0]) * PAGE_BYTES} if pages and pages != ["0"] else None)


def read_shared_memory() -> tuple[int, int] | None:
    """The size of /dev/shm and what is used of it; None where there is none."""
    try:
        state = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return state.f_blocks * state.f_frsize, (state.f_blocks - state.f_bfree) * state.f_frsize


def count_open_files() -> int | None:
    """File descriptors of this process; None where the system does not list them, or has none left to do so."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one of them lists
    except OSError as error:
        return read_open_files_limit() if error.errno in (errno.EMFILE, errno.ENFILE) else None


def read_open_files_limit() -> int | None:
    """How many file descriptors this process may have; None without a limit, or where the system does not tell."""
    if READ_LIMIT is None:
        return None
    limit = READ_LIMIT(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else int(limit)


def find_group(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> tuple[int, str] | None:
    """The control group around this process with the least limit of memory, and its version; None where none tells.

    Of groups without a limit the innermost one.
    """
    found = [
        (version, folder)
        for version, folder in group_folders(root, groups, "memory")
        if read_number(os.path.join(folder, GROUP_FILES[version][1])) is not None
    ]
    return min(found, key=lambda group: read_limit(*group) or NO_LIMIT_BYTES, default=None)


def read_limit(version: int, folder: str) -> int | None:
    """The limit of a control group; None where it has none."""
    limit = read_number(os.path.join(folder, GROUP_FILES[version][0]))
    return limit if limit is not None and limit < NO_LIMIT_BYTES else None


def read_group(version: int, folder: str) -> tuple[int | None, int | None]:
    """What a control group uses, without the file pages that give way first, and its file pages."""
    _, usage_file, cache_name, inactive_name = GROUP_FILES[version]
    usage = read_number(os.path.join(folder, usage_file))
    values = read_words(os.path.join(folder, "memory.stat"))
    inactive = values.get(inactive_name)
    used = None if usage is None or inactive is None else max(usage - inactive, 0)
    return used, values.get(cache_name)


def read_oom_kills(folder: str) -> int | None:
    """How many processes of a control group were killed because memory ran out; None where nothing says it."""
    values = [read_words(os.path.join(folder, name)) for name in ("memory.events", "memory.oom_control")]
    return next((each["oom_kill"] for each in values if "oom_kill" in each), None)


def find_signal(process: Any) -> int | None:
    """The signal that has ended a process of multiprocessing; None where none has, or where it still runs."""
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, AttributeError):  # somebody has waited for it; or a system that has no waitid
        code = getattr(getattr(process, "_popen", None), "returncode", None)
        return -code if code is not None and code < 0 else None
    if ended is None or ended.si_code not in (os.CLD_KILLED, os.CLD_DUMPED):
        return None
    return ended.si_status


def read_available_bytes() -> int | None:
    """RAM that the process could still get: what the machine has left, and at most what its control group has left."""
    available, group = [read_host_bytes("MemAvailable")], find_group()
    if group is not None and (limit := read_limit(*group)) is not None and (used := read_group(*group)[0]) is not None:
        available.append(max(limit - used, 0))
    return min((each for each in available if each is not None), default=None)
