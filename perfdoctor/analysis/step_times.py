"""What a capture's step times say of the program: without what other programs took, and by the work in each step.

A step is long because it does more, because it waits, or because the machine gave its core to another program. CPU
time and preemptions tell the last from the others, counts of backward passes and batches the first::

    step              1      2      3      4
    duration, ms     50     50    200    100
    CPU time, ms     49     49     52     98
    preemptions       0      0     40      0
    backwards         1      1      1      2     -> 3 was preempted, 4 holds two micro-batches; none is slow
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfdoctor.analysis.captured_facts import RunSteps, StepTimes, captured_step_times
from perfdoctor.trace.arrays import BoolArray, Int64Array

# The longest that a preempted thread waits for its core: schedulers give a program 3 to 6 ms at a turn (EEVDF's base
# slice is 2.8 ms at most), a few others may come first, and the threads of an op then wait for the one that was
# preempted.
_LONGEST_TURN_NS = 20_000_000
# From this factor on, two windows hold different work or different steps: neighbouring windows of steady programs are
# within 1.2 of each other.
UNLIKE_FACTOR = 1.5
# Fewer steps say little about a whole run.
_MIN_RUN_STEPS = 20
# So many steps in a row, each near the usual one, are where a recording that represents the run begins.
_STEPS_IN_A_ROW = 8


@dataclass(frozen=True, slots=True, eq=False)
class Preemption:
    """Steps with and without what other programs took.

    Attributes:
        own_ns: Duration of each step without the time in which others had its cores.
        is_preempted: Whether others took a step's cores more than those of the usual step, so that it was longer.
    """

    own_ns: Int64Array
    is_preempted: BoolArray


def find_preemption(times: StepTimes) -> Preemption:
    """Tell what the program did from what others did; where no CPU time was recorded, all of it is the program's.

    A step has the usual share of CPU time in its duration, of the thread's and of the process's: what exceeds that is
    a wait. It is the others' where they also took the core more often than usually. Threads of an op that wait for
    a preempted one may wait busily, which is CPU time: as many turns of others as were counted explain that.
    """
    dur_ns = times.dur_ns
    none = np.zeros(len(dur_ns), bool)
    if times.cpu_ns is None or times.preempted is None or not len(dur_ns):
        return Preemption(dur_ns, none)
    length_ns = np.maximum(dur_ns, 1)
    usual_ns = np.median(dur_ns)
    extra_turns = times.preempted - np.median(times.preempted / length_ns) * dur_ns
    more_often = (extra_turns >= 0.5) & (times.preempted > 0)
    busy_ns = dur_ns.astype(np.float64)
    for cpu_ns in (times.cpu_ns, times.process_cpu_ns):
        if cpu_ns is not None:
            usual_share = max(float(np.median(cpu_ns / length_ns)), 1e-3)
            busy_ns = np.minimum(busy_ns, cpu_ns / usual_share)
    waited_busily_ns = np.minimum(np.maximum(busy_ns - usual_ns, 0), extra_turns * _LONGEST_TURN_NS)
    own_ns = np.where(more_often, np.minimum(busy_ns - waited_busily_ns, dur_ns), dur_ns)
    own_ns = np.maximum(own_ns, np.minimum(dur_ns, usual_ns)).astype(np.int64)
    return Preemption(own_ns, more_often & (own_ns < dur_ns))


def count_work(times: StepTimes) -> Int64Array | None:
    """How much work each step holds: its micro-batches (backward passes, else batches); None where not recorded.

    A step without any counts as one: a loss that is not finite skips its backward pass.
    """
    for counts in (times.backwards, times.batches):
        if counts is not None and 2 * int((counts > 0).sum()) > len(counts):
            return np.maximum(counts, 1)
    return None


def even_out_work(dur_ns: Int64Array, times: StepTimes) -> Int64Array:
    """Durations as if each step held the usual number of micro-batches."""
    work = count_work(times)
    return dur_ns if work is None else (dur_ns * (float(np.median(work)) / work)).astype(np.int64)


def work_ratio(base: StepTimes, recorded: StepTimes) -> float:
    """How many times as many micro-batches a recorded step holds as one of the base window; 1.0 where not known."""
    in_base, in_recorded = count_work(base), count_work(recorded)
    same_unit = (base.backwards is None) == (recorded.backwards is None)
    if in_base is None or in_recorded is None or not same_unit:
        return 1.0
    return float(np.mean(in_recorded)) / float(np.mean(in_base))


def comparable_unprofiled_steps(facts: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Lengths in ns of the steps without a profiler, as if they held the work of the recorded steps.

    Without what other programs took, and no longer than the recorded steps in the median: a profiler makes no step
    shorter. Empty where no step was timed.
    """
    base, recorded = captured_step_times(facts, "base"), captured_step_times(facts, "timing")
    if base is None:
        return ()
    own_ns = find_preemption(base).own_ns.astype(np.float64)
    if recorded is not None:
        own_ns *= work_ratio(base, recorded)
        own_ns *= min(float(np.median(recorded.dur_ns)) / max(float(np.median(own_ns)), 1.0), 1.0)
    return tuple(max(round(ns), 1) for ns in own_ns.tolist())


def comparable_unprofiled_ns(facts: Mapping[str, Any] | None) -> int | None:
    """The median of `comparable_unprofiled_steps`; None where no step was timed."""
    steps = comparable_unprofiled_steps(facts)
    return round(float(np.median(steps))) if steps else None


def describe_sample(facts: Mapping[str, Any] | None, run: RunSteps | None) -> tuple[str, ...]:
    """Sentences about recorded steps that do not represent the run, or each other, and what to do; often none."""
    base, recorded = captured_step_times(facts, "base"), captured_step_times(facts, "timing")
    sentences = []
    if base is not None and recorded is not None:
        ratio = work_ratio(base, recorded)
        if not 1 / UNLIKE_FACTOR < ratio < UNLIKE_FACTOR:
            sentences.append(
                f"the recorded steps hold {ratio:.2g} times the micro-batches of those timed without the profiler: "
                "figures without the profiler are scaled to the recorded work"
            )
    sample = base or recorded
    if sample is not None and run is not None:
        sentence = _compare_with_run(sample, run)
        sentences += [sentence] if sentence else []
    return tuple(sentences)


def _compare_with_run(sample: StepTimes, run: RunSteps) -> str | None:
    """A sentence where the usual step of the run is another than those that the capture looked at."""
    own_ns = find_preemption(run).own_ns
    after_ns, number = own_ns[run.is_after], run.number[run.is_after]
    if len(after_ns) < max(_MIN_RUN_STEPS, len(sample)):
        return None
    sample_ns, run_ns = float(np.median(find_preemption(sample).own_ns)), float(np.median(after_ns))
    factor = run_ns / max(sample_ns, 1.0)
    if 1 / UNLIKE_FACTOR < factor < UNLIKE_FACTOR:
        return None
    skip = _find_usual_steps(after_ns, number, run_ns)
    later = "" if skip is None else f"; record later: perfdoctor run --skip {skip} ..."
    return (
        f"the recorded steps do not represent the run: without the profiler they take {_format_ms(sample_ns)}, the "
        f"median step of the {len(after_ns):,} after them {_format_ms(run_ns)}{later}"
    )


def _find_usual_steps(dur_ns: Int64Array, number: Int64Array, usual_ns: float) -> int | None:
    """The number of the first of some steps in a row whose median is near the usual step; None where there are none."""
    if len(dur_ns) < _STEPS_IN_A_ROW:
        return None
    medians = np.median(np.lib.stride_tricks.sliding_window_view(dur_ns, _STEPS_IN_A_ROW), axis=1)
    near = np.flatnonzero(np.maximum(medians, usual_ns) < 1.2 * np.minimum(medians, usual_ns))
    return int(number[near[0]]) if len(near) else None


def _format_ms(ns: float) -> str:
    return f"{ns / 1e6:,.3g} ms"
