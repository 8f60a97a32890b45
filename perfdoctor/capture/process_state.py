"""What Linux says of a process: whether it runs, how it ended, which system call its main thread waits in."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# By machine the numbers of the system calls in which a thread waits for something.
_CALLS: Mapping[str, Mapping[int, str]] = {
    "x86_64": {
        0: "read", 17: "read", 19: "read", 1: "write", 2: "open", 257: "open", 7: "poll", 23: "poll", 270: "poll",
        271: "poll", 232: "poll", 281: "poll", 35: "sleep", 230: "sleep", 45: "receive", 47: "receive", 43: "receive",
        61: "wait_child", 247: "wait_child", 72: "file_lock", 73: "file_lock", 202: "lock",
    },
    "aarch64": {
        63: "read", 65: "read", 67: "read", 64: "write", 56: "open", 72: "poll", 73: "poll", 22: "poll",
        101: "sleep", 115: "sleep", 207: "receive", 212: "receive", 202: "receive", 95: "wait_child",
        260: "wait_child", 25: "file_lock", 32: "file_lock", 98: "lock",
    },
}  # fmt: skip
_OF_A_FILE = ("read", "write", "receive")
# Fields of /proc/PID/stat behind the name, by the numbers of proc(5) less 3.
_STATE, _UTIME, _STIME, _EXIT_CODE = 0, 11, 12, 49


class Look(NamedTuple):
    """A look at a process.

    Attributes:
        state: running, stopped, ended (nobody has waited for it yet) or gone.
        exit_code, signal: How it has ended; None where it has not, or where that may not be read.
        call: The system call of its main thread; None where it runs, or where that may not be read.
        file: What that call reads or writes.
        ran: How often the main thread has got a core so far, and its CPU time in ticks.
    """

    state: str
    exit_code: int | None = None
    signal: int | None = None
    call: str | None = None
    file: str | None = None
    ran: tuple[int, int] | None = None


def look_at(pid: int) -> Look:
    """Look at a process."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return Look("gone")
    state = fields[_STATE].decode()
    if state in "ZX":
        status = int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else 0
        ended_by = status & 0x7F
        return Look("ended", None if ended_by else status >> 8, ended_by or None)
    call, file = _read_call(folder)
    ran = None
    switches = _read_switches(folder / "task" / str(pid))
    if switches is not None:
        ran = switches, int(fields[_UTIME]) + int(fields[_STIME])
    return Look("stopped" if state in "tT" else "running", call=call, file=file, ran=ran)


def _read_call(folder: Path) -> tuple[str | None, str | None]:
    try:
        words = (folder / "syscall").read_text().split()
        call = _CALLS.get(platform.machine(), {}).get(int(words[0]))
        file = os.readlink(folder / "fd" / str(int(words[1], 16))) if call in _OF_A_FILE else None
    except (OSError, ValueError, IndexError):  # it runs, is another user's, or the system does not tell
        return None, None
    return call, None if file is None or file.startswith("socket:") else file


def _read_switches(folder: Path) -> int | None:
    try:
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: without one most signals would end it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return bool(masks) and bool(masks[0] >> (number - 1) & 1)
