"""Reports compared, and worker processes found and killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.report.report import Report

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="finds processes by what they have open, in /proc")


def said(report: Report) -> dict[str, Any]:
    """All that a report says, but how long it took."""
    plain = report.to_dict()
    for outcome in plain["outcomes"]:
        outcome["seconds"] = 0
    return plain | {"late_ns": dict(report.late_ns)}


def until(condition: Callable[[], Any]) -> Any:
    """What a condition says once it says something."""
    for _ in range(3000):
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it never came")


class Endless:
    """A file that whoever reads it waits for, until it is closed: a pipe with a name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        self._write_end: int | None = None

    def reader(self) -> int:
        """The process that reads it."""
        if self._write_end is None:
            self._write_end = os.open(self.path, os.O_WRONLY)  # waits until somebody reads
        return int(until(self._readers)[0])

    def kill_reader(self) -> None:
        """Kill it as the system does when memory runs out."""
        os.kill(self.reader(), signal.SIGKILL)
        self.close()  # first: who opens it next must not find the end of the file
        until(lambda: not self._readers())

    def write(self, content: bytes) -> None:
        """Give the reader all there is."""
        self.reader()
        assert self._write_end is not None
        with os.fdopen(self._write_end, "wb") as out:
            self._write_end = None
            out.write(content)

    def close(self) -> None:
        """Let nobody wait any longer."""
        if self._write_end is not None:
            os.close(self._write_end)
            self._write_end = None

    def _readers(self) -> list[str]:
        return [pid for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) != os.getpid() and self._reads(pid)]

    def _reads(self, pid: str) -> bool:
        """Whether a process has it open to read: what this one starts has the other end for a moment."""
        try:
            mine = [fd for fd in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{fd}") == str(self.path)]
            return any(_is_read_only(Path(f"/proc/{pid}/fdinfo/{fd}").read_text()) for fd in mine)
        except OSError:  # it has ended, or is somebody else's
            return False


def _is_read_only(info: str) -> bool:
    flags = next(line.split()[1] for line in info.splitlines() if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
