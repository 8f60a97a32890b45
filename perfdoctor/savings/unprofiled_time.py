"""Time of the CPU without the profiler's overhead: recording costs time for each event, which no fix saves."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.saving import Saving
from perfdoctor.trace.arrays import FloatArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps

# The overhead where no step was timed without the profiler. Measured: Kineto takes 0.35 to 0.5 us an event on one
# machine (benchmarks/README.md), 0.8 to 1.2 us on another.
_OVERHEAD_NS = 1_000


@frozen_dataclass
class UnprofiledTime:
    """Some time of the CPU without the profiler's overhead, in ns a step (in ns of the window without steps).

    Attributes:
        program_ns: The time without the overhead: the program's own.
        max_ns: The most that it can be.
        share: The share (0 to 1) of `program_ns` in a step without the profiler.
        timed: Whether steps were timed without the profiler; else an event is assumed to cost 1 us.
    """

    program_ns: int
    max_ns: int
    share: float
    timed: bool

    def saving(self, remaining_share: float | None = 0.0) -> Saving:
        """What a fix saves that leaves a share (0 to 1) of the time; None where that share is not known.

        An expected saving is given only where steps were timed without the profiler, else the bounds alone.
        """
        expected_ns = None
        if self.timed and self.program_ns and remaining_share is not None:
            expected_ns = round(self.program_ns * (1 - remaining_share))
        return Saving(0, expected_ns, self.max_ns, "bounded")


def unprofiled_time_of(
    trace: Trace,
    steps: Steps,
    window: Intervals,
    time: Intervals,
    base_steps_ns: Sequence[int] = (),
    time_scale: float | None = None,
    recorded_steps_ns: FloatArray | None = None,
) -> UnprofiledTime:
    """Some time in the window without the profiler's overhead, which is taken to be the same for every event.

    Args:
        trace: The trace.
        steps: The analysed steps.
        window: The analysed time.
        time: The time.
        base_steps_ns: Lengths of the steps that a capture timed without the profiler.
        time_scale: Unprofiled over recorded time, see `Rank.time_scale`: no more of the time than that is promised.
            None takes it from the steps.
        recorded_steps_ns: Lengths of the recorded steps without what other programs took; None where nothing is known
            of that. Such waits are no overhead of the profiler.
    """

    def per_step(amount: int) -> int:
        return round(amount / steps.count) if steps.count else amount

    recorded_step_ns, time_ns = per_step(iv.total(window)), per_step(iv.total(time))
    events_of_step, events_of_time = per_step(_count_events(trace, window)), per_step(_count_events(trace, time))
    timed = bool(base_steps_ns) and steps.count > 0
    if timed:
        own_share = 1.0
        if recorded_steps_ns is not None and steps.median_ns:
            own_share = min(float(np.median(recorded_steps_ns)) / steps.median_ns, 1.0)
        overhead_ns = _overhead_ns(trace, steps, own_share, min(base_steps_ns))
        step_ns = round(median(base_steps_ns) if time_scale is None else time_scale * recorded_step_ns)
        max_ns = min(time_ns if time_scale is None else round(time_scale * time_ns), step_ns)
    else:
        overhead_ns = _OVERHEAD_NS
        step_ns = recorded_step_ns - round(events_of_step * overhead_ns)
        max_ns = time_ns
    program_ns = min(max(time_ns - round(events_of_time * overhead_ns), 0), max_ns)
    return UnprofiledTime(program_ns, max_ns, program_ns / max(step_ns, program_ns, 1), timed)


def _overhead_ns(trace: Trace, steps: Steps, own_share: float, base_ns: int) -> float:
    """The profiler's overhead for an event: how much longer the shortest recorded step takes, by its events.

    The shortest step, because whatever else the machine does only makes a step longer.

    Args:
        trace: The trace.
        steps: The analysed steps.
        own_share: The part of a recorded step (0 to 1) in which no other program had its core.
        base_ns: The shortest step without the profiler.
    """
    shortest = steps.intervals[np.argmin(steps.durations_ns)][None]
    return max(own_share * iv.total(shortest) - base_ns, 0) / max(_count_events(trace, shortest), 1)


def _count_events(trace: Trace, time: Intervals) -> int:
    """How many recorded events began in some time."""
    return sum(int(iv.contains(time, table.start_ns).sum()) for table in (trace.ops, trace.ranges))
