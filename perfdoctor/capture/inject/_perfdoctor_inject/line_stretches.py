"""Source lines of what is no operator: Python itself, `time.sleep`, a lock, a file, a socket, a compiled program.

`source_lines` sees calls of torch only, and the profiler saves its stacks with the line of each `def`. But while the
results of a window are still in memory, the profiler also knows the line from which each call was made. A function of
the user's is at the line of its next call until that call has ended; a stretch of calls from one line becomes a row
`@file:line function` of the trace, in the form of `source_lines`. So time without any operator has its line, too. So
have compiled programs, for which `source_lines` is off::

    number()   ... index ... index ...      ->   @words.py:39 number
               line 39   line 39
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import Any

from .user_code import absolute_path, is_foreign_file, name_file

# Shorter stretches get no row: a function that is so short is known by its name. Of too many the longest are kept.
MIN_STRETCH_NS = 2_000
MAX_ROWS = 20_000
# Calls that are looked at: each takes about a microsecond of the program's time, once a window.
MAX_CALLS = 200_000


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
class LineStretch:
    """How long a function was at one line; times in ns since the epoch, by the profiler's clock."""

    ids: ThreadIds
    line: str
    start_ns: int
    dur_ns: int

    def to_trace_row(self, base_ns: int) -> bytes:
        """The stretch as one line of a trace whose times count from `base_ns`."""
        ids = f'"pid":{self.ids.process},"tid":{self.ids.thread}'
        times = f'"ts":{(self.start_ns - base_ns) / 1000:.3f},"dur":{self.dur_ns / 1000:.3f}'
        return f'{{"ph":"X","cat":"cpu_op","name":{json.dumps(self.line)},{ids},{times},"args":{{}}}},\n'.encode()


def find_line_stretches(results: Any, ids: ThreadIds, started_by: tuple[str, str]) -> list[LineStretch]:
    """Where the functions of the user's were on the recorded thread; an outer one stands before those inside it.

    `results` are Kineto's, of a window with stacks; `started_by` is the file and name of the function that started the
    recording in that thread.
    """
    roots = results.experimental_event_tree()
    thread = find_recorded_thread(roots, started_by)
    found: list[LineStretch] = []
    waiting = [root for root in reversed(roots) if root.start_tid == thread]
    looked_at = 0
    while waiting and looked_at < MAX_CALLS:
        event = waiting.pop()
        looked_at += 1
        if event.duration_time_ns >= MIN_STRETCH_NS:  # what is inside is shorter still
            children = event.children
            found += _stretches_of(event, children, ids)
            waiting.extend(reversed(children))
    longest = sorted(range(len(found)), key=lambda row: -found[row].dur_ns)[:MAX_ROWS]
    return [found[row] for row in sorted(longest)]


def _stretches_of(event: Any, children: list[Any], ids: ThreadIds) -> list[LineStretch]:
    """The stretches of a function of the user's, without the time of functions of the user's that it calls."""
    function = getattr(event.extra_fields, "callsite", None)
    if function is None or is_foreign_file(function.file_name):
        return []
    path, name = name_file(absolute_path(function.file_name)), function.function_name
    stretches: list[list[int]] = []  # line, start, end
    at_ns = event.start_time_ns
    for child in children:
        caller = getattr(child.extra_fields, "caller", None)
        if caller is None:
            continue
        callee = getattr(child.extra_fields, "callsite", None)  # None for functions written in C
        is_own = callee is not None and not is_foreign_file(callee.file_name)
        start_ns, end_ns = child.start_time_ns, child.start_time_ns + child.duration_time_ns
        until_ns = start_ns if is_own else end_ns
        if stretches and stretches[-1][0] == caller.line_number and stretches[-1][2] == at_ns:
            stretches[-1][2] = until_ns
        else:
            stretches.append([caller.line_number, at_ns, until_ns])
        at_ns = end_ns
    return [
        LineStretch(ids, f"@{path}:{line} {name}", start_ns, end_ns - start_ns)
        for line, start_ns, end_ns in stretches
        if end_ns - start_ns >= MIN_STRETCH_NS
    ]


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
