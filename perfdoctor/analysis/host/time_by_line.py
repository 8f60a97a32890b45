"""Where in the user's code the CPU spends time that no op and no collective takes: Python, files, locks, sleep."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfdoctor.analysis.communication.collective_names import BY_CPU
from perfdoctor.analysis.host.locations import SourceLocation, find_locations
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import find_steps

if TYPE_CHECKING:
    from perfdoctor.rank import Rank

# Shorter breaks between ops are Python itself; of the longer ones so many hold nearly all of the time.
_LONG_NS = 100_000
_LONGEST = 256
# A break is asked at so many instants for its place: several lines may share it.
_SAMPLES = 4
_MOST_PLACES = 8


class HostPlace(NamedTuple):
    """A line of the user's code (a function, where only stacks were recorded) and its time per step, in ns."""

    location: SourceLocation
    per_step_ns: int


def host_places_of(rank: Rank) -> tuple[HostPlace, ...]:
    """The places with the most such time, longest first; none where neither lines nor stacks were recorded.

    Of a capture it is the evidence window that has them: its times are longer than without a profiler, which comparing
    one rank with another forgives.
    """
    trace = next((t for t in (rank.evidence_trace, rank.trace) if t is not None and _has_places(t)), None)
    if trace is None:
        return ()
    steps = find_steps(trace)
    window = steps.window if steps.count else iv.window(*trace.extent_ns)
    breaks = _breaks(trace, window)
    thread = _loop_thread(trace)
    length = breaks[:, 1] - breaks[:, 0]
    at = (breaks[:, :1] + length[:, None] * (2 * np.arange(_SAMPLES) + 1) // (2 * _SAMPLES)).ravel()
    spent: dict[SourceLocation, int] = defaultdict(int)
    found = find_locations(trace, np.full(len(at), thread, np.int32), at)
    for place, share_ns in zip(found, np.repeat(length // _SAMPLES, _SAMPLES).tolist(), strict=True):
        if place is not None:
            spent[place] += share_ns
    top = sorted(spent.items(), key=lambda item: (-item[1], str(item[0])))[:_MOST_PLACES]
    return tuple(HostPlace(place, round(time_ns / max(steps.count, 1))) for place, time_ns in top)


def _has_places(trace: Trace) -> bool:
    return bool(len(trace.frames)) or bool(trace.match_rows(trace.ranges, r"^@.+:[0-9]").any())


def _breaks(trace: Trace, window: Intervals) -> Intervals:
    """The longest times of the window without any op, on any thread, and without a collective of the CPU."""
    ops, ranges = trace.ops, trace.ranges
    collective = trace.match_rows(ranges, BY_CPU)
    busy = (iv.union(ops.start_ns, ops.end_ns), iv.union(ranges.start_ns[collective], ranges.end_ns[collective]))
    free = iv.subtract(window, iv.union_of(busy))
    length = free[:, 1] - free[:, 0]
    free, length = free[length >= _LONG_NS], length[length >= _LONG_NS]
    return free[np.sort(np.argsort(-length, kind="stable")[:_LONGEST])]


def _loop_thread(trace: Trace) -> int:
    """The thread that marks the steps, else the one with the most ops."""
    marks = trace.ranges.thread[trace.match_rows(trace.ranges, r"^ProfilerStep#")]
    threads = marks if len(marks) else trace.ops.thread
    return int(np.bincount(threads).argmax()) if len(threads) else 0
