"""Where in the user's code the CPU spends time that no op and no collective takes: Python, files, locks, sleep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation, find_locations
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import find_steps

# Shorter breaks between ops are Python itself; this many of the longer ones contain nearly all of the time.
_MIN_BREAK_NS = 100_000
_MAX_BREAKS = 256
# Number of instants at which the location of a break is looked up: several lines may share it.
_SAMPLES = 4
_MAX_LINES = 8


class TimeAtLine(NamedTuple):
    """A line of the user's code (a function, where only stacks were recorded) and its time per step, in ns."""

    location: SourceLocation
    per_step_ns: int


def host_time_by_line(traces: Iterable[Trace]) -> tuple[TimeAtLine, ...]:
    """The lines with the most CPU time outside of ops, longest first; empty where no lines or stacks were recorded.

    Of the traces of a rank the first one that has locations is used. Of a capture that is the evidence window: its
    times are longer than without a profiler, but on all ranks, and ranks are compared.
    """
    trace = next((trace for trace in traces if has_locations(trace)), None)
    if trace is None:
        return ()
    steps = find_steps(trace)
    window = steps.window if steps.count else iv.window(*trace.extent_ns)
    breaks = _longest_breaks(trace, window)
    thread = loop_thread_of(trace)
    length = breaks[:, 1] - breaks[:, 0]
    at_ns = (breaks[:, :1] + length[:, None] * (2 * np.arange(_SAMPLES) + 1) // (2 * _SAMPLES)).ravel()
    spent_ns: dict[SourceLocation, int] = defaultdict(int)
    locations = find_locations(trace, np.full(len(at_ns), thread, np.int32), at_ns)
    for location, sample_ns in zip(locations, np.repeat(length // _SAMPLES, _SAMPLES).tolist(), strict=True):
        if location is not None:
            spent_ns[location] += sample_ns
    top = sorted(spent_ns.items(), key=lambda item: (-item[1], str(item[0])))[:_MAX_LINES]
    return tuple(TimeAtLine(location, round(time_ns / max(steps.count, 1))) for location, time_ns in top)


def has_locations(trace: Trace) -> bool:
    """Whether stacks or lines were recorded."""
    return bool(len(trace.frames)) or bool(trace.match_rows(trace.ranges, vocabulary.SOURCE_MARK).any())


def _longest_breaks(trace: Trace, window: Intervals) -> Intervals:
    """The longest times of the window in which no thread runs an op or a collective of the CPU."""
    ops, ranges = trace.ops, trace.ranges
    collective = trace.match_rows(ranges, vocabulary.CPU_COLLECTIVE_RANGE)
    busy = (iv.union(ops.start_ns, ops.end_ns), iv.union(ranges.start_ns[collective], ranges.end_ns[collective]))
    free = iv.subtract(window, iv.union_of(busy))
    length = free[:, 1] - free[:, 0]
    free, length = free[length >= _MIN_BREAK_NS], length[length >= _MIN_BREAK_NS]
    return free[np.sort(np.argsort(-length, kind="stable")[:_MAX_BREAKS])]


def loop_thread_of(trace: Trace) -> int:
    """The thread that marks the steps, else the one with the most ops."""
    marks = trace.ranges.thread[trace.match_rows(trace.ranges, vocabulary.PROFILER_STEP)]
    threads = marks if len(marks) else trace.ops.thread
    return int(np.bincount(threads).argmax()) if len(threads) else 0
