"""Find the steps of a loop: marked by profiler, user or engine, or inferred from loader, optimizer or kernels.

Steps are decided here alone. A step lasts until the GPU has done what the CPU launched in it: the CPU runs ahead, so
the end of its range says little. The CPU's spans are cut at boundaries instead,

    b_i = max(end of the CPU's span i, b_(i-1), end of the last GPU item launched from within span i)

and step i is ``[max(start of span i, b_(i-1)), b_i)``: steps never overlap, and the GPU's work belongs to the step that
launched it. The boundary before the first step is the instant at which the GPU has done what was launched earlier.
Without this boundary the first step would contain the backlog of the one before: in a real A100 trace it would last
371 ms, where every other step takes 216 ms.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field, replace
from typing import Literal

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.kernel_cycle import find_cyclic_steps
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.step_marks import find_profiler_marks, find_repeated_ranges, select_busiest_thread

# Where more items than this start before their launch, the clocks of CPU and GPU disagree: then the ends of GPU items
# say nothing about the CPU's spans.
_SKEWED_SHARE = 0.1
# Fewer steps of one optimizer may be anything, such as the one call of a test.
_MIN_OPTIMIZER_STEPS = 3
_MIN_INFERRED_STEPS = 2
# A step at the edge with less than this share of the items of the others is cut, where so many others tell.
_CUT_SHARE, _MIN_WHOLE_STEPS = 0.5, 3


@frozen_dataclass(eq=False)
class Steps:
    """The steps of a trace.

    Attributes:
        intervals: int64 (n, 2), one row a step ``[start, end)`` in nanoseconds, sorted, disjoint, possibly touching.
        source: "annotated" when the profiler, the user or a serving engine marked them, "inferred" from loader and
            optimizer or from the cycle of the kernels, "none".
        numbers: The number in the name of each step's mark; empty where they have none.
        once: Time within them that is left out of them, because it happens once.
    """

    intervals: Intervals
    source: Literal["annotated", "inferred", "none"]
    numbers: tuple[int, ...] = ()
    once: Intervals = field(default_factory=lambda: iv.EMPTY)

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.intervals)

    @property
    def durations_ns(self) -> Int64Array:
        """Duration of each step in nanoseconds, without what happens once in it."""
        start_ns, end_ns = self.intervals[:, 0], self.intervals[:, 1]
        result: Int64Array = end_ns - start_ns - iv.overlap(start_ns, end_ns, self.once)
        return result

    def at(self, instants_ns: Int64Array) -> Int64Array:
        """The index of the step that each instant lies in; NONE outside of all steps."""
        row = np.searchsorted(self.intervals[:, 0], instants_ns, side="right") - 1
        return np.where(iv.contains(self.intervals, instants_ns), row, NONE)

    @property
    def median_ns(self) -> int | None:
        """Median duration; None without steps."""
        return round(float(np.median(self.durations_ns))) if self.count else None

    @property
    def mean_ns_between(self) -> int | None:
        """Mean time from the end of a step to the start of the next; None with fewer than two steps."""
        start_ns, end_ns = self.intervals[:, 0], self.intervals[:, 1]
        return round(float((start_ns[1:] - end_ns[:-1]).mean())) if self.count > 1 else None

    @property
    def variation(self) -> float | None:
        """Standard deviation of the durations over their mean; None for fewer than two steps, or if nothing is left."""
        durations_ns = self.durations_ns
        return float(durations_ns.std() / durations_ns.mean()) if self.count > 1 and durations_ns.any() else None

    def without_first(self, count: int) -> Steps:
        """The steps after the first `count`."""
        return self.select(slice(count, None))

    def select(self, chosen: slice) -> Steps:
        """Some of the steps, with their numbers."""
        return replace(self, intervals=self.intervals[chosen], numbers=self.numbers[chosen])

    @property
    def window(self) -> Intervals:
        """The time of all steps as a set of intervals, without what happens once: touching steps become one."""
        return iv.subtract(iv.union(self.intervals[:, 0], self.intervals[:, 1]), self.once)


NO_STEPS = Steps(iv.EMPTY, "none")


def find_steps(trace: Trace) -> Steps:
    """The steps of a trace: marked ones, else what loader and optimizer, ranges or kernels imply, else none.

    Marks come first: the profiler's steps and ranges that count. Then come the boundaries that loader and optimizer
    make, ranges that repeat (serving engines, benchmarks, passes), and the cycle of the kernels.
    """
    marks = find_profiler_marks(trace)
    if marks is None:
        boundaries = _find_loader_boundaries(trace)
        if boundaries is None:
            boundaries = _find_optimizer_boundaries(trace)
        # What comes before the first boundary is start-up and after the last may be cut: neither is a step.
        if len(boundaries) > _MIN_INFERRED_STEPS:
            spans = np.column_stack((boundaries[:-1], boundaries[1:]))
            return _leave_out_fragments(trace, Steps(_extend_to_gpu_ends(trace, spans), "inferred"))
        marks = find_repeated_ranges(trace)
    if marks is None:
        cycles = find_cyclic_steps(trace)
        return NO_STEPS if cycles is None else Steps(_steps_of(trace, cycles.spans, cycles.on_gpu), "inferred")
    steps = _steps_of(trace, marks.spans, marks.on_gpu)
    numbers = marks.numbers if len(marks.numbers) == len(steps) else ()
    return _leave_out_fragments(trace, Steps(steps, "annotated" if marks.says_step else "inferred", numbers))


def leave_out_steps(trace: Trace, numbers: Collection[int]) -> Trace:
    """The trace without the profiler's marks of some steps, or of what else lies apart from the most of the others.

    Steps that are left follow each other without a gap. Where none would be left the trace stays as it is.
    """
    if not numbers:
        return trace  # nearly always: no name is looked at
    found = {step for name in trace.strings if (step := vocabulary.profiler_step_number(name)) is not None}
    kept = np.array(sorted(found.difference(numbers)), np.int64)
    if len(kept) in (0, len(found)):
        return trace
    last_longest = max(reversed(np.split(kept, np.flatnonzero(np.diff(kept) > 1) + 1)), key=len)
    dropped = found.difference(last_longest.tolist())
    strings = (
        vocabulary.LEFT_OUT_STEP_PREFIX + name if vocabulary.profiler_step_number(name) in dropped else name
        for name in trace.strings
    )
    return replace(trace, strings=tuple(strings))


def _steps_of(trace: Trace, spans: Intervals, on_gpu: bool) -> Intervals:
    """Steps from spans of the CPU, or of the GPU's row, where they are as long as the GPU's work already."""
    return _cut_overlaps(spans, None) if on_gpu else _extend_to_gpu_ends(trace, spans)


def _leave_out_fragments(trace: Trace, steps: Steps) -> Steps:
    """Steps without what the recording begins or ends in: a mark without work, or the piece of a step that is cut.

    The profiler opens a step as soon as one ends, so that many recordings end in one that does nothing.
    """
    gpu = trace.gpu
    if len(gpu):  # by launch as well: where the clocks disagree steps are times of the CPU
        launched = trace.calls.start_ns[gpu.call[gpu.call >= 0]]
        work = np.maximum(_count_in(steps, gpu.start_ns), _count_in(steps, launched))
    else:
        work = _count_in(steps, trace.ops.start_ns)
    busy = np.flatnonzero(work)
    # Where steps in the middle do nothing either, or most of them, such steps are whole.
    if 2 * len(busy) < max(steps.count, 1) or len(busy) <= busy[-1] - busy[0]:
        return steps
    first, last = int(busy[0]), int(busy[-1]) + 1
    last -= _is_cut(work[first:last], steps.durations_ns[first:last])
    first += _is_cut(work[first:last][::-1], steps.durations_ns[first:last][::-1])
    return steps.select(slice(first, last))


def _count_in(steps: Steps, at_ns: Int64Array) -> Int64Array:
    """How many of the instants lie in each step."""
    rows = steps.at(at_ns)
    return np.bincount(rows[rows >= 0], minlength=steps.count)


def _is_cut(work: Int64Array, durations_ns: Int64Array) -> bool:
    """Whether the last of some steps, at the edge of a recording, is shorter than all others and holds much less work.

    A cold step may hold less work as well, but it takes longer.
    """
    if len(work) <= _MIN_WHOLE_STEPS:
        return False
    return bool(work[-1] < _CUT_SHARE * work[:-1].min() and durations_ns[-1] < durations_ns[:-1].min())


def _find_loader_boundaries(trace: Trace) -> Int64Array | None:
    """The instants at which the loop asked for a batch after an optimizer step; None without a loader.

    The loop asks several times a step when it accumulates gradients, and once before the first step: so only a step of
    the optimizer since the last boundary makes a new one. Where nothing is optimized each batch is a step.
    """
    ranges = trace.ranges
    asked = ranges.start_ns[select_busiest_thread(ranges, trace.match_rows(ranges, vocabulary.DATALOADER_NEXT))]
    stepped = np.sort(ranges.end_ns[trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP)])
    if not len(asked):
        return None
    if not len(stepped):
        trains = trace.match_rows(trace.ops, rf"{vocabulary.BACKWARD_NODE}|{vocabulary.OPTIMIZER_OP}").any()
        return asked if len(trace.ops) and not trains else None
    done = np.searchsorted(stepped, asked, side="right")
    fresh = np.diff(done, prepend=0) > 0
    result: Int64Array = asked[fresh]
    return result


def _find_optimizer_boundaries(trace: Trace) -> Int64Array:
    """The ends of the optimizer's steps, for loops whose loader leaves no mark.

    Of several optimizers the one that steps least often closes the step of the loop (a GAN trains its critic several
    times a step); of equals the first to start, which is the outer one when one wraps another. Steps of one optimizer
    on several threads belong to different loops: then there is no boundary.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP))
    names, first, count = np.unique(ranges.name[rows], return_index=True, return_counts=True)
    often = count >= _MIN_OPTIMIZER_STEPS
    if not often.any():
        return np.empty(0, np.int64)
    rarest = names[often][np.lexsort((first[often], count[often]))[0]]
    chosen = rows[ranges.name[rows] == rarest]
    if len(set(ranges.thread[chosen].tolist())) > 1:
        return np.empty(0, np.int64)
    return distinct(ranges.end_ns[chosen])


def _extend_to_gpu_ends(trace: Trace, spans: Intervals) -> Intervals:
    """Steps from the CPU's spans, sorted by start: each ends when the GPU has done what was launched in it."""
    gpu = trace.gpu
    linked = gpu.call >= 0
    launched = trace.calls.start_ns[gpu.call[linked]] if linked.any() else np.empty(0, np.int64)
    if not len(launched) or (gpu.start_ns[linked] < launched).mean() > _SKEWED_SHARE:
        return _cut_overlaps(spans, None)
    done = gpu.end_ns[linked]
    first = int(spans[0, 0])
    early = np.concatenate((done[launched < first], gpu.end_ns[_find_items_launched_earlier(trace)]))
    start = max(first, int(early.max())) if len(early) else first
    span = np.searchsorted(spans[:, 0], launched, side="right") - 1
    inside = (span >= 0) & (launched < spans[span, 1])
    last = spans[:, 1].copy()
    np.maximum.at(last, span[inside], done[inside])
    steps = _cut_overlaps(np.column_stack((spans[:, 0], last)), start)
    # A backlog that outlasts all spans hides every step: then only the CPU says where they are.
    return steps if len(steps) else _cut_overlaps(spans, None)


def _find_items_launched_earlier(trace: Trace) -> BoolArray:
    """For each GPU item whether it was launched before the recording, by its correlation id: these count up.

    In real files this is so for all items without a launch.
    """
    known = trace.calls.correlation[trace.calls.correlation > 0]
    ids = trace.gpu.correlation
    before = ids < (known.min() if len(known) else 0)
    result: BoolArray = (trace.gpu.call < 0) & (ids > 0) & before
    return result


def _cut_overlaps(spans: Intervals, start_ns: int | None) -> Intervals:
    """Spans without overlaps: each begins when all before it have ended, or later; empty ones are left out."""
    ends = np.maximum.accumulate(spans[:, 1])
    before = np.concatenate(([spans[0, 0] if start_ns is None else start_ns], ends[:-1]))
    steps = np.column_stack((np.maximum(spans[:, 0], before), ends))
    return steps[steps[:, 1] > steps[:, 0]]
