"""Reports to compare, and pipes with which tests find and kill worker processes."""

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


def content_of(report: Report) -> dict[str, Any]:
    """Everything in a report except how long the rules took."""
    plain = report.to_dict()
    for outcome in plain["outcomes"]:
        outcome["seconds"] = 0
    return plain | {"late_ns": dict(report.late_ns)}


def wait_for(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition, which is asked every 10 ms."""
    for _ in range(30_000):
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("the condition never became true")


class BlockingPipe:
    """A named pipe in place of a trace: its reader waits until the test writes to it or closes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        self._write_end: int | None = None

    def reader(self) -> int:
        """The id of the process that reads the pipe."""
        if self._write_end is None:
            self._write_end = os.open(self.path, os.O_WRONLY)  # waits until somebody reads
        return int(wait_for(self._readers)[0])

    def kill_reader(self) -> None:
        """Kill the reader as the system does when memory runs out."""
        os.kill(self.reader(), signal.SIGKILL)
        self.close()  # first: the next process that opens the pipe must not find the end of the file
        wait_for(lambda: not self._readers())

    def write(self, content: bytes) -> None:
        """Give the reader a whole file."""
        self.reader()
        assert self._write_end is not None
        with os.fdopen(self._write_end, "wb") as out:
            self._write_end = None
            out.write(content)

    def close(self) -> None:
        """Let readers come to the end of the file."""
        if self._write_end is not None:
            os.close(self._write_end)
            self._write_end = None

    def _readers(self) -> list[str]:
        return [pid for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) != os.getpid() and self._reads(pid)]

    def _reads(self, pid: str) -> bool:
        """Whether a process has the pipe open to read; the children of this process have the write end for a moment."""
        try:
            fds = [fd for fd in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{fd}") == str(self.path)]
            return any(_is_read_only(Path(f"/proc/{pid}/fdinfo/{fd}").read_text()) for fd in fds)
        except OSError:  # the process has ended, or is another user's
            return False


def _is_read_only(info: str) -> bool:
    flags = next(line.split()[1] for line in info.splitlines() if line.startswith("flags:"))
    return int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
