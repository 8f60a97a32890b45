"""Some time of the CPU without the profiler's part of it: recording costs time for each event, which no fix saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from perfdoctor.savings.saving import Saving
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps

# Where no step was timed without the profiler: Kineto took 0.8 to 1.2 us an event (benchmarks/README.md, Capture).
_EVENT_NS = 1_000


@dataclass(frozen=True, slots=True)
class UnprofiledTime:
    """Some time of the CPU without the profiler's part, in ns a step (of the window without steps).

    Attributes:
        program_ns: What is left of it: the program's own.
        most_ns: What it cannot exceed.
        share: `program_ns` of a step without the profiler, 0 to 1.
        timed: Whether steps were timed without the profiler; else an event is taken to cost 1 us.
    """

    program_ns: int
    most_ns: int
    share: float
    timed: bool

    def saving(self, remaining_share: float | None = 0.0) -> Saving:
        """What a fix saves that leaves a share (0 to 1) of it; None where nobody can tell how much it leaves.

        Without timed steps nothing is expected, only bounded.
        """
        expected = None
        if self.timed and self.program_ns and remaining_share is not None:
            expected = round(self.program_ns * (1 - remaining_share))
        return Saving(0, expected, self.most_ns, "bounded")


def unprofiled_time(
    trace: Trace, steps: Steps, window: Intervals, time: Intervals, base_steps_ns: Sequence[int] = ()
) -> UnprofiledTime:
    """What of some time in the window is the program's own: all events cost the profiler the same.

    Args:
        trace: The trace.
        steps: The analysed steps.
        window: The analysed time.
        time: The time in question.
        base_steps_ns: Lengths of the steps that a capture timed without the profiler.
    """

    def per_step(amount: int) -> int:
        return round(amount / steps.count) if steps.count else amount

    recorded_ns, spent_ns = per_step(iv.total(window)), per_step(iv.total(time))
    base = tuple(base_steps_ns) if steps.count else ()
    event_ns = _event_cost_ns(trace, steps, min(base)) if base else _EVENT_NS
    events, inside = (per_step(_count_begun(trace, some)) for some in (window, time))
    whole_ns = round(median(base)) if base else recorded_ns - round(events * event_ns)
    most_ns = min(spent_ns, whole_ns) if base else spent_ns
    program_ns = min(max(spent_ns - round(inside * event_ns), 0), most_ns)
    return UnprofiledTime(program_ns, most_ns, program_ns / max(whole_ns, program_ns, 1), bool(base))


def _event_cost_ns(trace: Trace, steps: Steps, base_ns: int) -> float:
    """What the profiler takes for an event: what the shortest recorded step takes longer than `base_ns`, by its events.

    `base_ns` is the shortest step without the profiler. The shortest, because whatever else the machine does only adds
    to a step.
    """
    shortest = steps.intervals[np.argmin(steps.durations_ns)][None]
    return max(iv.total(shortest) - base_ns, 0) / max(_count_begun(trace, shortest), 1)


def _count_begun(trace: Trace, time: Intervals) -> int:
    """How many recorded events began in some time."""
    return sum(int(iv.contains(time, table.start_ns).sum()) for table in (trace.ops, trace.ranges))
