"""Source lines of long calls that are no operators: `time.sleep`, a lock, a file, a socket, a compiled program.

`source_lines` sees calls of torch only, and the profiler saves its stacks with the line of each `def`. But while the
results of a window are still in memory, the profiler also knows the line from which each call was made. Here each long
call of the user's code into other code becomes a row `@file:line function` of the trace, in the form of `source_lines`.
So a gap without any operator has its line, too. So have compiled programs, for which `source_lines` is off.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .user_code import absolute_path, is_foreign_file, name_file

# Shorter calls get no row: the operators around them show their time.
LONG_CALL_NS = 100_000
MAX_ROWS = 20_000


@dataclass(frozen=True)
class ThreadIds:
    """The process id and the thread id of the recorded thread, as traces have them.

    They are stored when recording begins, because a forked copy of the process, which may save the trace, has others.
    """

    process: int
    thread: int

    @classmethod
    def of_this_thread(cls) -> ThreadIds:
        """The ids of the calling thread."""
        return cls(os.getpid(), threading.get_native_id())


@dataclass(frozen=True)
class LongCall:
    """One call and the line that made it; times in ns since the epoch, by the profiler's clock."""

    ids: ThreadIds
    line: str
    start_ns: int
    dur_ns: int

    def to_trace_row(self, base_ns: int) -> bytes:
        """The call as one line of a trace whose times count from `base_ns`."""
        ids = f'"pid":{self.ids.process},"tid":{self.ids.thread}'
        times = f'"ts":{(self.start_ns - base_ns) / 1000:.3f},"dur":{self.dur_ns / 1000:.3f}'
        return f'{{"ph":"X","cat":"cpu_op","name":{json.dumps(self.line)},{ids},{times},"args":{{}}}},\n'.encode()


def find_long_calls(results: Any, ids: ThreadIds, started_by: tuple[str, str]) -> list[LongCall]:
    """The long calls of the recorded thread; a call stands before the calls inside it.

    `results` are Kineto's, of a window with stacks; `started_by` is the file and name of the function that started the
    recording in that thread.
    """
    roots = results.experimental_event_tree()
    thread = find_recorded_thread(roots, started_by)
    calls: list[LongCall] = []
    for event in iterate_long_events([root for root in roots if root.start_tid == thread]):
        line = calling_line(event.extra_fields)
        if line is not None and len(calls) < MAX_ROWS:
            calls.append(LongCall(ids, line, event.start_time_ns, event.duration_time_ns))
    return calls


def find_recorded_thread(roots: list[Any], started_by: tuple[str, str]) -> int | None:
    """The profiler's number of the thread whose first frames lead to the function that started the recording.

    Frames that were open when the recording began have no call before them: each is the first child of its caller.
    """
    for event in roots:
        inner: Any = event
        while inner is not None:
            callee = getattr(inner.extra_fields, "callsite", None)
            if callee is not None and (absolute_path(callee.file_name), callee.function_name) == started_by:
                return int(inner.start_tid)
            inner = next(iter(inner.children), None)
    return None


def iterate_long_events(roots: list[Any]) -> Iterator[Any]:
    """Every long event; the children of a short event are not searched, because they are shorter still."""
    waiting = list(reversed(roots))
    while waiting:
        event = waiting.pop()
        if event.duration_time_ns >= LONG_CALL_NS:
            yield event
            waiting.extend(reversed(event.children))


def calling_line(call: Any) -> str | None:
    """`@file:line function` where the user's code calls code that is not the user's; None for every other event."""
    caller = getattr(call, "caller", None)
    if caller is None or is_foreign_file(caller.file_name):
        return None
    callee = getattr(call, "callsite", None)  # None for functions written in C
    if callee is not None and not is_foreign_file(callee.file_name):
        return None
    return f"@{name_file(absolute_path(caller.file_name))}:{caller.line_number} {caller.function_name}"
