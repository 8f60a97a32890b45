"""How many worker processes pay, and fit into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perfdoctor.fleet.discover import TraceFile
from perfdoctor.trace.io.remote import STDIN, is_remote

# A worker takes 0.25 s to start, in which a process reads and analyses 70 MB of text: less than twice that in all is
# done sooner by one.
_WORTH_A_POOL_BYTES = 150_000_000
# What a gzip holds for each of its bytes: 7 to 25 in real traces.
_INFLATED = 12
# A worker that has read a small trace, and what large ones take for each byte of text: 0.6 to 0.9 at 200 MB, measured
# by benchmarks/fleet, and more where kernels and ops are many and their names short.
_WORKER_BYTES = 120_000_000
_BYTES_PER_BYTE = 2
# The rest is for everybody else on the machine.
_SHARE_OF_MEMORY = 0.7
_UNKNOWN_BYTES = 100_000_000


def jobs_for(files: Sequence[TraceFile], wanted: int | None) -> int:
    """How many processes to use; 1 means this one alone.

    Args:
        files: what there is to read.
        wanted: what the user asked for; None for as many as pay: no more than cores, nor than fit into memory.
    """
    if any(os.fspath(file.path) == STDIN for file in files):
        return 1  # nobody else can read it
    if wanted is not None:
        return min(wanted, len(files))
    if sum(text_bytes(file) for file in files) < _WORTH_A_POOL_BYTES:
        return 1
    largest = sorted((needed_bytes(file) for file in files), reverse=True)
    jobs = min(cores(), len(files))
    while jobs > 1 and sum(largest[:jobs]) > budget_bytes():
        jobs -= 1
    return jobs


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def text_bytes(file: TraceFile) -> int:
    """How much text a file holds, roughly: told by its size and name, without opening it."""
    return sum(_text_bytes(place) for place in (file.path, file.evidence) if place is not None)


def _text_bytes(place: os.PathLike[str]) -> int:
    path = os.fspath(place)
    if is_remote(path):
        return _UNKNOWN_BYTES
    with suppress(OSError):
        return os.stat(path).st_size * (_INFLATED if path.lower().endswith((".gz", ".zst")) else 1)
    return 0


def needed_bytes(file: TraceFile) -> int:
    """The memory that a worker takes for a file, roughly."""
    return _WORKER_BYTES + _BYTES_PER_BYTE * text_bytes(file)


def budget_bytes() -> int:
    """What all workers may take together."""
    return int(_SHARE_OF_MEMORY * _available_bytes())


def _available_bytes() -> int:
    """Memory that is free, or can be made so, within the limit of a container."""
    free = _meminfo()
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())  # "max" where there is none
        used = int((group / "memory.current").read_text())
        cached = _entry(group / "memory.stat", "inactive_file")
        free = min(free, limit - used + cached)
    return max(free, 0)


def _meminfo() -> int:
    with suppress(OSError, ValueError):
        return _entry(Path("/proc/meminfo"), "MemAvailable:") * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 4_000_000_000


def _entry(path: Path, name: str) -> int:
    """The number behind a name, of a file with one a line."""
    for line in path.read_text().splitlines():
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    raise ValueError(f"{path} has no line {name}")
