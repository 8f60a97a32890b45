"""Exact lines of long calls: `time.sleep`, a lock, a file, a socket, everything that is no operator and takes time.

The line mode sees calls of torch alone, and the profiler's own stacks are saved with the line of each `def`. While
the results are still in memory, the profiler also knows the line that each call was made from. Calls of the user's
code into code that is not the user's, where they are long, become rows `@file:line function` like those of the mode,
so that a gap without any operator has its line, too; so do compiled programs, for which the mode is off.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .loaders import LIBRARIES, TORCH
from .tracebacks import HERE

# Shorter calls are not worth a row: what they take is seen in the ops around them.
LONG_NS = 100_000
MOST_ROWS = 20_000
PERFDOCTOR = os.path.abspath(os.path.join(HERE, *[os.pardir] * 3)) + os.sep
FOREIGN = (TORCH, PERFDOCTOR, *LIBRARIES, "<frozen")


@dataclass(frozen=True)
class Lane:
    """A thread by its numbers in the system, as traces have them; kept, because a copy of the process has others."""

    process: int
    thread: int

    @classmethod
    def here(cls) -> Lane:
        """The thread that asks."""
        return cls(os.getpid(), threading.get_native_id())


@dataclass(frozen=True)
class LongCall:
    """One call and the line that made it; times in ns since the epoch, by the profiler's clock."""

    lane: Lane
    line: str
    start_ns: int
    dur_ns: int

    def row(self, base_ns: int) -> bytes:
        """As a line of a trace whose times count from `base_ns`."""
        place = f'"pid":{self.lane.process},"tid":{self.lane.thread}'
        times = f'"ts":{(self.start_ns - base_ns) / 1000:.3f},"dur":{self.dur_ns / 1000:.3f}'
        return f'{{"ph":"X","cat":"cpu_op","name":{json.dumps(self.line)},{place},{times},"args":{{}}}},\n'.encode()


def long_calls(results: Any, lane: Lane, started_by: tuple[str, str]) -> list[LongCall]:
    """The long calls of the thread that was recorded, outer ones before those inside them.

    Args:
        results: Kineto's results of a window with stacks.
        lane: The thread.
        started_by: File and name of the function that was running in it when the recording began.
    """
    roots = results.experimental_event_tree()
    thread = recorded_thread(roots, started_by)
    found: list[LongCall] = []
    for event in long_events([root for root in roots if root.start_tid == thread]):
        line = called_from(event.extra_fields)
        if line is not None and len(found) < MOST_ROWS:
            found.append(LongCall(lane, line, event.start_time_ns, event.duration_time_ns))
    return found


def recorded_thread(roots: list[Any], started_by: tuple[str, str]) -> int | None:
    """The profiler's number of the thread; its frames from before the recording are each the first in its caller."""
    for event in roots:
        inner: Any = event
        while inner is not None:
            callee = getattr(inner.extra_fields, "callsite", None)
            if callee is not None and (absolute(callee.file_name), callee.function_name) == started_by:
                return int(inner.start_tid)
            inner = next(iter(inner.children), None)
    return None


def long_events(roots: list[Any]) -> Iterator[Any]:
    """Every long event; what lies inside a short one is shorter still and is not looked at."""
    waiting = list(reversed(roots))
    while waiting:
        event = waiting.pop()
        if event.duration_time_ns >= LONG_NS:
            yield event
            waiting.extend(reversed(event.children))


def called_from(call: Any) -> str | None:
    """`@file:line function` of a call of the user's code into other code, None for every other event."""
    caller = getattr(call, "caller", None)
    if caller is None or is_foreign(caller.file_name):
        return None
    callee = getattr(call, "callsite", None)  # C code has none
    if callee is not None and not is_foreign(callee.file_name):
        return None
    return f"@{absolute(caller.file_name)}:{caller.line_number} {caller.function_name}"


def is_foreign(file: str) -> bool:
    """Whether the file is a library's, or ours."""
    return absolute(file).startswith(FOREIGN)


@functools.lru_cache(maxsize=4096)
def absolute(file: str) -> str:
    """The path of a file whose name the profiler has cut: it takes off every folder that modules are found in."""
    if os.path.isabs(file) or file.startswith("<"):
        return file
    for folder in (*sys.path, os.path.dirname(os.path.dirname(TORCH))):
        path = os.path.abspath(os.path.join(folder, file))
        if os.path.exists(path):
            return path
    return file
