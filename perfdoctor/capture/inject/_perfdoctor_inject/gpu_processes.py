"""Whose the processes on a GPU are: those of this job, or of others.

Of the job are this process, its ancestors, all descendants of its parent (the ranks that one launcher started, and
their helpers), and all processes of its session. The server of NVIDIA's MPS, through which processes share a GPU on
purpose, is nobody's. Only numbers are recorded, no names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

_MPS_SERVER = "nvidia-cuda-mps"
# Deeper trees of processes are no launcher's; it also ends a circle, should the kernel ever show one.
_MAX_ANCESTORS = 64


class OtherProcesses(NamedTuple):
    """The processes of others on a GPU.

    Attributes:
        pids: Their ids.
        memory_bytes: GPU memory that they use; None where the driver does not say.
    """

    pids: frozenset[int]
    memory_bytes: int | None


def find_other_processes(running: Iterable[Any]) -> OtherProcesses | None:
    """The processes of others among those that NVML names.

    None where this process is not among them: then NVML counts in another namespace (a container's host), and its ids
    say nothing here.
    """
    memory_bytes = {int(each.pid): getattr(each, "usedGpuMemory", None) for each in running}
    if os.getpid() not in memory_bytes:
        return None
    own = _own_family()
    others = [pid for pid in memory_bytes if not _is_of_job(pid, own) and not _is_mps_server(pid)]
    sizes = [memory_bytes[pid] for pid in others]
    known = [size for size in sizes if isinstance(size, int)]
    return OtherProcesses(frozenset(others), sum(known) if len(known) == len(sizes) else None)


def _own_family() -> frozenset[int]:
    """This process and its ancestors, without init, of which everybody descends."""
    return frozenset(_ancestors(os.getpid()))


def _is_of_job(pid: int, own: frozenset[int]) -> bool:
    """Whether a process is of this job; one that has ended meanwhile, or that cannot be looked at, is of nobody."""
    if pid in own:
        return True
    try:
        if os.getsid(pid) == os.getsid(0):
            return True
    except OSError:
        return not os.path.exists(f"/proc/{pid}")
    parent = os.getppid()
    return parent > 1 and parent in _ancestors(pid)


def _ancestors(pid: int) -> list[int]:
    """A process and its ancestors below init, by /proc; the process alone where that cannot be read."""
    found = [pid]
    for _ in range(_MAX_ANCESTORS):
        parent = _parent_of(found[-1])
        if parent is None or parent <= 1:
            break
        found.append(parent)
    return found


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 1 :].split()  # the name before may hold blanks and brackets
    return int(fields[1]) if len(fields) > 1 else None


def _is_mps_server(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().startswith(_MPS_SERVER)
    except OSError:
        return False
