"""How many worker processes are worth starting and fit into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perfdoctor.fleet.discover import TraceFile
from perfdoctor.trace.io.remote import STDIN, is_remote

# One process takes so long for each trace, and reads and analyses so much text a second besides. A worker takes 0.25 s
# to start where it cannot be a copy of this process, so less work than two of them cost is done sooner by one process.
_TRACE_SECONDS = 0.02
_BYTES_PER_SECOND = 300_000_000
_MIN_SECONDS = 0.5
# Text bytes for each byte of a compressed trace: 7 to 25 in real traces.
_COMPRESSION_RATIO = 12
# Memory of a worker that has read a small trace, and for each byte of text of a large one. benchmarks/fleet measures
# 0.6 to 0.9 bytes a byte at 200 MB; traces with many kernels and ops and short names take more.
_WORKER_BYTES = 120_000_000
_BYTES_PER_TEXT_BYTE = 2
# The rest is for the other programs of the machine.
_MEMORY_SHARE = 0.7
_REMOTE_TEXT_BYTES = 100_000_000


def choose_worker_count(files: Sequence[TraceFile], requested: int | None, *, prefers_one: bool = False) -> int:
    """How many processes to use; 1 means this process alone.

    Args:
        files: the traces to read.
        requested: how many the user asked for; None for as many as are worth starting. Those are at most as many as
            there are cores, and as fit into memory.
        prefers_one: Whether many small traces are left to one process, because a rule wants to see all ranks there.
    """
    if any(os.fspath(file.path) == STDIN for file in files):
        return 1  # only this process can read its standard input
    if requested is not None:
        return min(requested, len(files))
    seconds = sum(map(estimate_text_bytes, files)) / _BYTES_PER_SECOND
    if seconds + (0 if prefers_one else _TRACE_SECONDS * len(files)) < _MIN_SECONDS:
        return 1
    largest = sorted((estimate_worker_bytes(file) for file in files), reverse=True)
    count = min(core_count(), len(files))
    while count > 1 and sum(largest[:count]) > memory_budget_bytes():
        count -= 1
    return count


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def estimate_text_bytes(file: TraceFile) -> int:
    """How much JSON text a trace holds, roughly: from size and name of its files, without opening them."""
    windows = (file,) if file.early is None else (file, file.early)
    paths = (path for each in windows for path in (each.path, each.evidence_path))
    return sum(_text_bytes(path) for path in paths if path is not None)


def _text_bytes(path: os.PathLike[str]) -> int:
    text = os.fspath(path)
    if is_remote(text):
        return _REMOTE_TEXT_BYTES
    with suppress(OSError):
        return os.stat(text).st_size * (_COMPRESSION_RATIO if text.lower().endswith((".gz", ".zst")) else 1)
    return 0


def estimate_worker_bytes(file: TraceFile) -> int:
    """The memory that a worker takes for a trace, roughly."""
    return _WORKER_BYTES + _BYTES_PER_TEXT_BYTE * estimate_text_bytes(file)


def memory_budget_bytes() -> int:
    """The memory that all workers together may take."""
    return int(_MEMORY_SHARE * _available_bytes())


def _available_bytes() -> int:
    """Memory that is free or can be reclaimed, within the limit of a container."""
    available = _system_available_bytes()
    with suppress(OSError, ValueError):
        cgroup = Path("/sys/fs/cgroup")
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))  # "max" where there is no limit: a ValueError
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        cached = _read_number(cgroup / "memory.stat", "inactive_file")
        available = min(available, limit - used + cached)
    return max(available, 0)


def _system_available_bytes() -> int:
    with suppress(OSError, ValueError):
        return _read_number(Path("/proc/meminfo"), "MemAvailable:") * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 4_000_000_000


def _read_number(path: Path, name: str) -> int:
    """The number behind a name in a file of lines such as `MemAvailable: 123 kB`.

    Raises:
        ValueError: no line begins with that name.
    """
    for line in path.read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    raise ValueError(f"{path} has no line {name}")
