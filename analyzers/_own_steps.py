"""The steps of a run and of a trace without what other programs took, and for equal work."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._pd112_restarts import WORKER_START
from perfdoctor.rules import (
    NO_CONTENTION,
    BoolArray,
    CoreContention,
    Int64Array,
    Preemption,
    Rank,
    RunDrift,
    RunSteps,
    StepTimes,
    even_out_work,
    find_preemption,
    find_preemption_beside_run,
    find_worker_starts,
    is_shared_throughout,
    step_times_of,
    without_others,
)

# The share of CPU time in what slow steps take more, from which on they do more work.
_MIN_CPU_SHARE = 0.5


class OwnSteps:
    """The steps of a run without what others and calls that other rules report took (`own_ns`), and for equal work.

    Attributes:
        own_ns, even_ns: The durations; those of `even_ns` are for equal work.
    """

    def __init__(
        self,
        steps: RunSteps,
        contention: CoreContention = NO_CONTENTION,
        *,
        is_alone: bool = True,
        drift: RunDrift | None = None,
    ) -> None:
        """Take out what other programs and calls of other rules took, and the drift that PD010 tells.

        Args:
            steps: The steps of the run.
            contention: What other programs took of the cores.
            is_alone: Whether the program has one rank: else steps that save may wait for others that save, too.
            drift: The drift of the run; None where there is none.
        """
        self.steps = steps
        found = find_preemption(steps)
        own_ns = np.minimum(found.own_ns, without_others(steps, contention))
        own_ns = leave_out_host_calls(own_ns, steps, is_alone=is_alone)
        self.own_ns = _without_worker_starts(own_ns, steps.which_contain(WORKER_START))
        self.is_preempted, self.lost_core = found.is_preempted, found.lost_core
        self.is_shared = is_shared_throughout(steps)
        self.lost_ns = int((steps.dur_ns - found.own_ns).sum())
        even_ns = even_out_work(self.own_ns, steps)
        self.even_ns = even_ns if drift is None else drift.leave_out(even_ns)


def is_alone(rank: Rank) -> bool:
    """Whether the program has one rank."""
    return (rank.facts.world_size or 1) < 2


def leave_out_host_calls(dur_ns: Int64Array, steps: StepTimes, *, is_alone: bool = True) -> Int64Array:
    """The durations without collections of garbage and without checkpoints and logs, which PD110 and PD113 report.

    No step gets shorter than the usual one without any: a GPU may have worked meanwhile. In a job of several ranks
    steps with any count as usual ones: they may wait for other ranks that save, which is PD515's.
    """
    if steps.gc_ns is None or steps.host_call_ns is None:
        return dur_ns
    spent_ns = steps.gc_ns + steps.host_call_ns
    has = spent_ns > 0
    if not has.any():
        return dur_ns
    usual_ns = 0 if has.all() else int(np.median(dur_ns[~has]))
    if not is_alone and usual_ns:
        return np.where(has, np.minimum(dur_ns, usual_ns), dur_ns)
    return np.where(has, np.maximum(np.maximum(dur_ns - spent_ns, np.minimum(dur_ns, usual_ns)), 1), dur_ns)


def own_durations_of(rank: Rank) -> Int64Array:
    """The steps of the trace without what other programs took, for equal work, where the capture recorded that."""
    recorded = recorded_steps_of(rank)
    begun = rank.steps.at(find_worker_starts(rank.trace)[:, 0])
    starts = np.zeros(rank.steps.count, bool)
    starts[begun[begun >= 0]] = True
    dur_ns = _without_worker_starts(rank.steps.durations_ns, starts)
    if recorded is None:
        return dur_ns
    own_ns = leave_out_host_calls(_preemption_of(rank, recorded).own_ns, recorded, is_alone=is_alone(rank))
    own_ns = even_out_work(own_ns, recorded)
    return np.maximum((dur_ns * np.minimum(own_ns / np.maximum(recorded.dur_ns, 1), 1.0)).astype(np.int64), 1)


def _without_worker_starts(dur_ns: Int64Array, starts: BoolArray) -> Int64Array:
    """The durations with the steps that start workers of a loader as usual ones: PD112 tells what they cost."""
    if not starts.any() or starts.all():
        return dur_ns
    return np.where(starts, np.minimum(dur_ns, int(np.median(dur_ns[~starts]))), dur_ns)


def recorded_steps_of(rank: Rank) -> StepTimes | None:
    """What was captured of the steps of the trace; None where that is not known."""
    recorded = step_times_of(rank.facts.timing)
    # Others are a part of the steps, or of a trace that was cut short.
    return recorded if recorded is not None and len(recorded) == rank.steps.count else None


def _preemption_of(rank: Rank, recorded: StepTimes) -> Preemption:
    """Preemption in the steps of the trace, by what is usual without the profiler, too."""
    base = step_times_of(rank.facts.base)
    found = find_preemption_beside_run([recorded] if base is None else [recorded, base], rank.run_steps)
    count = len(recorded)
    return Preemption(found.own_ns[:count], found.is_preempted[:count], found.lost_core[:count])


def may_be_preempted(rank: Rank, is_slow: BoolArray) -> bool:
    """Whether other programs may have made these steps of the trace slow, though the step times do not show it."""
    recorded = recorded_steps_of(rank)
    if recorded is None:
        return False
    return is_shared_throughout(recorded) or bool(_preemption_of(rank, recorded).lost_core[is_slow].any())


def took_cpu_time(rank: Rank, is_slow: BoolArray, excess_ns: float) -> bool:
    """Whether most of what these steps of the trace take more is CPU time: else they waited, if only for a core."""
    recorded = recorded_steps_of(rank)
    if recorded is None:
        recorded = step_times_of(rank.facts.timing)
        return recorded is not None and recorded.cpu_ns is not None
    cpu_ns = recorded.cpu_ns if recorded.process_cpu_ns is None else recorded.process_cpu_ns
    if cpu_ns is None or is_slow.all() or not is_slow.any():
        return cpu_ns is not None
    return float(cpu_ns[is_slow].mean() - np.median(cpu_ns[~is_slow])) >= _MIN_CPU_SHARE * excess_ns
