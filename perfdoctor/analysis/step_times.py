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

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.captured_facts import RunSteps, StepTimes, step_times_of
from perfdoctor.analysis.core_contention import LONGEST_TURN_NS, find_contention, without_others
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int64Array
from perfdoctor.units import format_ms

# 104 days, so that sums of steps fit into int64: what a file says beyond that is no step.
_LONGEST_STEP_NS = 1 << 53
_MIN_EXTRA_TURNS = 0.5
_MAX_OWN_SHARE = 0.9
_MIN_THREADS_SHARE = 0.2
# From this factor on, two windows hold different work or different steps: neighbouring windows of steady programs are
# within 1.2 of each other.
UNLIKE_FACTOR = 1.5
# From this share of a run's time on, medians of its steps say little of the program.
_DISTURBED_SHARE = 0.25
# Fewer steps say little about a whole run.
_MIN_RUN_STEPS = 20
# So many steps in a row, each near the usual one, are where a recording that represents the run begins.
_STEPS_IN_A_ROW = 8


@frozen_dataclass(eq=False)
class Preemption:
    """Steps with and without what other programs took.

    Attributes:
        own_ns: Duration of each step without the time in which others had its cores.
        is_preempted: Whether others took a step's cores more than those of the usual step, so that it was longer.
        lost_core: Whether a step lost its core more often than usually for its length. It may have been longer even
            where its CPU time says nothing of it: a host that runs several machines takes time unseen.
    """

    own_ns: Int64Array
    is_preempted: BoolArray
    lost_core: BoolArray


def find_preemption(times: StepTimes) -> Preemption:
    """Tell what the program did from what others did; where no CPU time was recorded, all of it is the program's.

    A step has the usual share of CPU time in its duration, of the thread's and of the process's: what exceeds that is
    a wait. It is the others' where they also took the core more often than usually. Threads of an op that wait for
    a preempted one do so busily at first, which is CPU time: no more than as long again. Others took no more than the
    turns that were counted: a long sleep with one preemption in it is the program's. A step with other work, such as a
    rollout, may use fewer threads: there the training thread's CPU time counts alone.
    """
    dur_ns = times.dur_ns
    if times.cpu_ns is None or times.preempted is None or not len(dur_ns):
        return Preemption(dur_ns, np.zeros(len(dur_ns), bool), np.zeros(len(dur_ns), bool))
    length_ns = np.maximum(dur_ns, 1)
    work = count_work(times)
    usual_ns = np.full(len(dur_ns), np.median(dur_ns)) if work is None else np.median(dur_ns / work) * work
    extra_turns = times.preempted - np.median(times.preempted / length_ns) * dur_ns
    busy_ns = np.minimum(dur_ns, times.cpu_ns / max(float(np.median(times.cpu_ns / length_ns)), 1e-3))
    by_thread_ns = busy_ns
    if times.process_cpu_ns is not None:
        share = max(float(np.median(times.process_cpu_ns / length_ns)), 1e-3)
        busy_ns = np.minimum(busy_ns, times.process_cpu_ns / share)
    own_ns = busy_ns
    if times.process_cpu_ns is not None and uses_threads(times.cpu_ns, times.process_cpu_ns):
        waited_ns = np.minimum(np.maximum(busy_ns - usual_ns, 0), dur_ns - busy_ns)
        own_ns = busy_ns - np.minimum(waited_ns, np.maximum(extra_turns, 0) * LONGEST_TURN_NS)
    own_ns = np.where(_has_other_work(times), by_thread_ns, own_ns)
    max_taken_ns = np.maximum(extra_turns, 0) * LONGEST_TURN_NS
    own_ns = np.maximum.reduce([own_ns, np.minimum(usual_ns, dur_ns), dur_ns - max_taken_ns])
    # Less than a tenth is within what clocks and ops vary by.
    lost_core = (extra_turns >= _MIN_EXTRA_TURNS) & (2 * max_taken_ns > dur_ns - usual_ns)
    is_preempted = lost_core & (own_ns < _MAX_OWN_SHARE * dur_ns)
    return Preemption(np.where(is_preempted, own_ns, dur_ns).astype(np.int64), is_preempted, lost_core)


def _has_other_work(times: StepTimes) -> BoolArray:
    """Whether each step contains something that others do not, such as a rollout or a checkpoint."""
    if not isinstance(times, RunSteps):
        return np.zeros(len(times), bool)
    return np.array([bool(each) for each in times.contains], bool)


def uses_threads(cpu_ns: Int64Array, process_cpu_ns: Int64Array) -> bool:
    """Whether other threads than the training thread compute in the usual step."""
    return float(np.median(process_cpu_ns - cpu_ns)) > _MIN_THREADS_SHARE * float(np.median(cpu_ns))


def count_work(times: StepTimes) -> Int64Array | None:
    """How much work each step holds: its micro-batches (backward passes, else batches); None where not recorded.

    A step without any counts as one: a loss that is not finite skips its backward pass.
    """
    for counts in (times.backwards, times.batches):
        if counts is not None and 2 * int((counts > 0).sum()) > len(counts):
            return np.maximum(counts, 1)
    return None


def even_out_work(dur_ns: Int64Array, times: StepTimes) -> Int64Array:
    """Durations as if each step had the usual number of micro-batches."""
    work = count_work(times)
    if work is None:
        return dur_ns
    even_ns = np.minimum(dur_ns * (float(np.median(work)) / work), _LONGEST_STEP_NS)
    return even_ns.astype(np.int64)


def work_ratio(base: StepTimes, recorded: StepTimes) -> float:
    """How many times as many micro-batches a recorded step holds as one of the base window; 1.0 where not known."""
    in_base, in_recorded = count_work(base), count_work(recorded)
    same_unit = (base.backwards is None) == (recorded.backwards is None)
    if in_base is None or in_recorded is None or not same_unit:
        return 1.0
    return float(np.mean(in_recorded)) / float(np.mean(in_base))


class ComparableSteps(NamedTuple):
    """Lengths in ns of the steps without and with the profiler, as if they had the same work and nobody else ran."""

    unprofiled_ns: FloatArray
    recorded_ns: FloatArray


def compare_windows(facts: CapturedFacts, run: RunSteps | None = None) -> ComparableSteps | None:
    """The steps of the base and of the timing window, made comparable; None where one of them was not timed.

    What other programs took is found in both windows together, and in the steps of the run after them: a window may be
    disturbed from end to end.
    """
    base, recorded = step_times_of(facts.base), step_times_of(facts.timing)
    if base is None or recorded is None:
        return None
    own_ns = _own_beside_run(facts, (base, recorded), run).astype(np.float64)
    return ComparableSteps(own_ns[: len(base)] * work_ratio(base, recorded), own_ns[len(base) :])


def _own_beside_run(facts: CapturedFacts, windows: Sequence[StepTimes], run: RunSteps | None) -> Int64Array:
    """The steps of some windows, one after the other, without what other programs took.

    A GPU goes on while the thread that feeds it waits for a core: there only single steps show what that cost.
    """
    own_ns = find_preemption_beside_run(windows, run).own_ns
    if facts.devices:
        return own_ns
    contention = find_contention(facts, run)
    quiet_ns: Int64Array = np.concatenate([without_others(each, contention) for each in windows])
    return np.minimum(own_ns, quiet_ns)


def find_preemption_beside_run(windows: Sequence[StepTimes], run: RunSteps | None) -> Preemption:
    """Preemption in the steps of some windows, one after the other, by what is usual in them and in the run."""
    parts = [*windows, *([_select(run, run.is_after)] if run is not None else [])]
    found, count = find_preemption(_concatenate(parts)), sum(map(len, windows))
    return Preemption(found.own_ns[:count], found.is_preempted[:count], found.lost_core[:count])


def cpu_time_ratio(facts: CapturedFacts) -> float | None:
    """How many times as much CPU time a recorded step takes as one of the base window, for the same work.

    Of the training thread or of the process, whichever grew more; None where not recorded.
    """
    base, recorded = step_times_of(facts.base), step_times_of(facts.timing)
    if base is None or recorded is None:
        return None
    work = work_ratio(base, recorded)
    pairs = ((base.cpu_ns, recorded.cpu_ns), (base.process_cpu_ns, recorded.process_cpu_ns))
    ratios = [
        float(np.median(after)) / max(float(np.median(before)) * work, 1.0)
        for before, after in pairs
        if before is not None and after is not None
    ]
    return max(ratios, default=None)


def _concatenate(parts: Sequence[StepTimes]) -> StepTimes:
    """Steps one after the other; what one part lacks is not known of any."""

    def join(name: str) -> Int64Array | None:
        known = [values for part in parts if (values := getattr(part, name)) is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    columns = {name: join(name) for name in _columns()}
    return StepTimes(dur_ns=np.concatenate([part.dur_ns for part in parts]), **columns)


def _select(times: StepTimes, rows: BoolArray) -> StepTimes:
    """Some of the steps."""
    columns = {name: None if getattr(times, name) is None else getattr(times, name)[rows] for name in _columns()}
    return StepTimes(dur_ns=times.dur_ns[rows], **columns)


def _columns() -> list[str]:
    return [field.name for field in fields(StepTimes) if field.name != "dur_ns"]


def comparable_unprofiled_steps(facts: CapturedFacts, run: RunSteps | None = None) -> tuple[int, ...]:
    """Lengths in ns of the steps without a profiler, as if they had the work of the recorded steps.

    Without what other programs took, and no longer than the recorded steps in the median: a profiler makes no step
    shorter. Empty where no step was timed.
    """
    base = step_times_of(facts.base)
    if base is None:
        return ()
    both = compare_windows(facts, run)
    if both is None:
        return tuple(_own_beside_run(facts, (base,), run).tolist())
    own_ns = both.unprofiled_ns
    own_ns = own_ns * min(float(np.median(both.recorded_ns)) / max(float(np.median(own_ns)), 1.0), 1.0)
    return tuple(max(round(ns), 1) for ns in own_ns.tolist())


def comparable_unprofiled_ns(facts: CapturedFacts, run: RunSteps | None = None) -> int | None:
    """The median of `comparable_unprofiled_steps`; None where no step was timed."""
    steps = comparable_unprofiled_steps(facts, run)
    return round(float(np.median(steps))) if steps else None


def describe_sample(facts: CapturedFacts, run: RunSteps | None) -> tuple[str, ...]:
    """Sentences about recorded steps that do not represent the run, or each other, and what to do; often none."""
    base, recorded = step_times_of(facts.base), step_times_of(facts.timing)
    sentences = []
    if facts.exit in ("running", "recorded"):
        sentences.append(
            "the end of the program is not recorded: it was killed (SIGKILL, as where memory runs out), the disk was "
            "full, or it still runs, and what is said of the whole run is of a part of it"
        )
    sentences += facts.notes
    if base is not None and recorded is not None:
        ratio = work_ratio(base, recorded)
        if not 1 / UNLIKE_FACTOR < ratio < UNLIKE_FACTOR:
            sentences.append(
                f"the recorded steps hold {ratio:.2g} times the micro-batches of those timed without the profiler: "
                "figures without the profiler are scaled to the recorded work"
            )
    sample = base or recorded
    if sample is not None and run is not None and not find_contention(facts, run).is_severe:
        sentence = _compare_with_run(sample, run)
        sentences += [sentence] if sentence else []
    return tuple(sentences)


def _compare_with_run(sample: StepTimes, run: RunSteps) -> str | None:
    """A sentence where the usual step of the run is another than those that the capture looked at."""
    after = _select(run, run.is_after)
    if len(after) < max(_MIN_RUN_STEPS, len(sample)):
        return None
    own_ns = find_preemption(_concatenate((sample, after))).own_ns
    sample_ns, run_ns = float(np.median(own_ns[: len(sample)])), float(np.median(own_ns[len(sample) :]))
    as_timed_ns = float(np.median(sample.dur_ns))
    rest = f"the median step of the {len(after):,} after them {format_ms(run_ns)}"
    lost_share = 1 - float(own_ns.sum()) / (float(sample.dur_ns.sum()) + float(after.dur_ns.sum()))
    if _are_alike(sample_ns, run_ns) and _are_alike(as_timed_ns, sample_ns):
        return None
    if _are_alike(sample_ns, run_ns) or lost_share > _DISTURBED_SHARE:
        return (
            f"other programs had the machine while steps were recorded or after that: without the profiler they took "
            f"{format_ms(as_timed_ns)}, {rest}; record again when it is quiet"
        )
    skip = _find_usual_steps(own_ns[len(sample) :], run.number[run.is_after], run_ns)
    later = "" if skip is None else f"; record later: perfdoctor run --skip {skip} ..."
    took = f"without the profiler they take {format_ms(sample_ns)}"
    return f"the recorded steps do not represent the run: {took}, {rest}{later}"


def _are_alike(one_ns: float, other_ns: float) -> bool:
    return max(one_ns, other_ns) < UNLIKE_FACTOR * max(min(one_ns, other_ns), 1.0)


def _find_usual_steps(dur_ns: Int64Array, number: Int64Array, usual_ns: float) -> int | None:
    """The number of the first of some steps in a row whose median is near the usual step; None where there are none."""
    if len(dur_ns) < _STEPS_IN_A_ROW:
        return None
    medians = np.median(np.lib.stride_tricks.sliding_window_view(dur_ns, _STEPS_IN_A_ROW), axis=1)
    near = np.flatnonzero(np.maximum(medians, usual_ns) < 1.2 * np.minimum(medians, usual_ns))
    return int(number[near[0] + _STEPS_IN_A_ROW // 2]) if len(near) else None
