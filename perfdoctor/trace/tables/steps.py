"""Where the steps of the training loop are: marked by profiler or user, or inferred from the loader and the optimizer.

The only place where steps are decided. A step lasts until the GPU has done what the CPU launched in it: the CPU runs
ahead, so the end of its range says little. The spans of the CPU are cut at boundaries instead,

    b_i = max(end of the CPU's span i, b_(i-1), end of the last GPU item launched from within span i)

and step i is ``[max(start of span i, b_(i-1)), b_i)``: steps never overlap, and what the GPU does belongs to the step
that asked for it. Before the first step stands the boundary at which the GPU has done what was launched earlier.
Without it the first step would hold the backlog of the one before: in a real A100 trace 371 ms, where every other step
takes 216 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Ranges, Trace

# With more items than this starting before their launch, the clocks of CPU and GPU disagree and ends on one say nothing
# about the other.
_SKEWED_SHARE = 0.1
# Fewer steps of one optimizer may be anything, such as the one call of a test.
_LEAST_OPTIMIZER_STEPS = 3
_LEAST_INFERRED = 2
_LEAST_NUMBERED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of a trace.

    Attributes:
        intervals: int64 (n, 2), one row a step ``[start, end)`` in nanoseconds, sorted, disjoint, possibly touching.
        source: "annotated" when the profiler or the user marked them, "inferred" from loader and optimizer, "none".
    """

    intervals: Intervals
    source: Literal["annotated", "inferred", "none"]

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self.intervals)

    @property
    def durations(self) -> Int64Array:
        """Duration of each step in nanoseconds."""
        result: Int64Array = self.intervals[:, 1] - self.intervals[:, 0]
        return result

    def at(self, instants_ns: Int64Array) -> Int64Array:
        """The index of the step that each instant lies in; -1 outside of all."""
        row = np.searchsorted(self.intervals[:, 0], instants_ns, side="right") - 1
        return np.where(iv.contains(self.intervals, instants_ns), row, NONE)

    @property
    def median_ns(self) -> int | None:
        """Median duration; None without steps."""
        return round(float(np.median(self.durations))) if self.count else None

    @property
    def variation(self) -> float | None:
        """Standard deviation of the durations over their mean; None for fewer than two steps."""
        return float(self.durations.std() / self.durations.mean()) if self.count > 1 else None

    @property
    def window(self) -> Intervals:
        """The time of all steps as a set of intervals: touching steps become one."""
        return iv.union(self.intervals[:, 0], self.intervals[:, 1])


NO_STEPS = Steps(iv.EMPTY, "none")


def find_steps(trace: Trace) -> Steps:
    """The steps of a trace: those that profiler or user marked, else those that loader and optimizer imply, else none.

    Marks on the CPU come first, because they say when a step was asked for; the same marks on the GPU row serve where a
    file holds only those, and ranges of the user that count steps where there are no marks. Of several threads (several
    ranks in one file, evaluation in another thread) the one with most marks counts.
    """
    marks = _on_busiest_thread(trace.ranges, trace.match_rows(trace.ranges, vocabulary.PROFILER_STEP))
    if not len(marks) and trace.match_rows(trace.gpu_ranges, vocabulary.PROFILER_STEP).any():
        return Steps(_chained(_gpu_marks(trace), None), "annotated")
    if not len(marks):
        marks = _counting(trace)
    if len(marks):
        spans = np.column_stack((trace.ranges.start_ns[marks], trace.ranges.end_ns[marks]))
        return Steps(_until_done(trace, spans), "annotated")
    boundaries = _loader_boundaries(trace)
    if boundaries is None:
        boundaries = _optimizer_boundaries(trace)
    # What comes before the first boundary is start-up and after the last may be cut: neither is a step.
    if len(boundaries) <= _LEAST_INFERRED:
        return NO_STEPS
    return Steps(_until_done(trace, np.column_stack((boundaries[:-1], boundaries[1:]))), "inferred")


def _on_busiest_thread(ranges: Ranges, wanted: BoolArray) -> Int64Array:
    """Of the wanted rows those on the thread that has most of them; the first of equals."""
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return rows
    threads, first, count = np.unique(ranges.thread[rows], return_index=True, return_counts=True)
    busiest = threads[np.lexsort((first, -count))[0]]
    result: Int64Array = rows[ranges.thread[rows] == busiest]
    return result


def _counting(trace: Trace) -> Int64Array:
    """The ranges by which a user counts steps: on one thread, in one wording, one after the other, with rising numbers.

    Of several such series the longest, of equals the first. What only looks like one (numbers that repeat, ranges that
    overlap) is none: better no steps than wrong ones.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.COUNTED_STEP))
    series: dict[tuple[int, str], list[tuple[int, int]]] = {}
    names = {code: vocabulary.counted_step(trace.strings[code]) for code in set(ranges.name[rows].tolist())}
    for row, thread, code in zip(rows.tolist(), ranges.thread[rows].tolist(), ranges.name[rows].tolist(), strict=True):
        found = names[code]
        if found is not None:
            series.setdefault((thread, found.stem), []).append((row, found.number))
    best: Int64Array = np.empty(0, np.int64)
    for counted in series.values():
        at, numbers = np.array(counted, np.int64).T
        follows = ranges.start_ns[at[1:]] >= ranges.end_ns[at[:-1]]
        if len(at) >= _LEAST_NUMBERED and len(at) > len(best) and (np.diff(numbers) > 0).all() and follows.all():
            best = at
    return best


def _gpu_marks(trace: Trace) -> Intervals:
    """One span a mark from the GPU row, where every stream shows the mark once more."""
    rows = np.flatnonzero(trace.match_rows(trace.gpu_ranges, vocabulary.PROFILER_STEP))
    names, which = np.unique(trace.gpu_ranges.name[rows], return_inverse=True)
    spans = np.empty((len(names), 2), np.int64)
    spans[:, 0], spans[:, 1] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    np.minimum.at(spans[:, 0], which, trace.gpu_ranges.start_ns[rows])
    np.maximum.at(spans[:, 1], which, trace.gpu_ranges.end_ns[rows])
    return spans[np.argsort(spans[:, 0], kind="stable")]


def _loader_boundaries(trace: Trace) -> Int64Array | None:
    """The instants at which the loop asked for a batch after an optimizer step; None without a loader or an optimizer.

    The loop asks several times a step when it accumulates gradients, and once before the first: only a step of the
    optimizer since the last boundary makes a new one.
    """
    ranges = trace.ranges
    asked = ranges.start_ns[_on_busiest_thread(ranges, trace.match_rows(ranges, vocabulary.DATALOADER_NEXT))]
    stepped = np.sort(ranges.end_ns[trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP)])
    if not len(asked) or not len(stepped):
        return None
    done = np.searchsorted(stepped, asked, side="right")
    fresh = np.diff(done, prepend=0) > 0
    result: Int64Array = asked[fresh]
    return result


def _optimizer_boundaries(trace: Trace) -> Int64Array:
    """The ends of the optimizer's steps, for loops whose loader leaves no mark.

    Of several optimizers the one that steps least often closes the step of the loop (a GAN trains its critic several
    times a step); of equals the first to start, which is the outer one when one wraps another. On several threads they
    belong to different loops, and which one is meant cannot be told.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP))
    names, first, count = np.unique(ranges.name[rows], return_index=True, return_counts=True)
    often = count >= _LEAST_OPTIMIZER_STEPS
    if not often.any():
        return np.empty(0, np.int64)
    rarest = names[often][np.lexsort((first[often], count[often]))[0]]
    chosen = rows[ranges.name[rows] == rarest]
    if len(set(ranges.thread[chosen].tolist())) > 1:
        return np.empty(0, np.int64)
    return distinct(ranges.end_ns[chosen])


def _until_done(trace: Trace, spans: Intervals) -> Intervals:
    """Steps from the CPU's spans, sorted by start, each lasting until the GPU has done what was launched in it."""
    gpu = trace.gpu
    linked = gpu.call >= 0
    launched = trace.calls.start_ns[gpu.call[linked]] if linked.any() else np.empty(0, np.int64)
    if not len(launched) or (gpu.start_ns[linked] < launched).mean() > _SKEWED_SHARE:
        return _chained(spans, None)
    done = gpu.end_ns[linked]
    first = int(spans[0, 0])
    early = np.concatenate((done[launched < first], gpu.end_ns[_launched_before_recording(trace)]))
    start = max(first, int(early.max())) if len(early) else first
    span = np.searchsorted(spans[:, 0], launched, side="right") - 1
    inside = (span >= 0) & (launched < spans[span, 1])
    last = spans[:, 1].copy()
    np.maximum.at(last, span[inside], done[inside])
    steps = _chained(np.column_stack((spans[:, 0], last)), start)
    # A backlog that outlasts all that was recorded hides every step: then only the CPU says where they are.
    return steps if len(steps) else _chained(spans, None)


def _launched_before_recording(trace: Trace) -> BoolArray:
    """The GPU items whose launch is not in the file because it came before: correlation ids count up.

    In real files this is so of all items without a launch.
    """
    known = trace.calls.correlation[trace.calls.correlation > 0]
    ids = trace.gpu.correlation
    before = ids < (known.min() if len(known) else 0)
    result: BoolArray = (trace.gpu.call < 0) & (ids > 0) & before
    return result


def _chained(spans: Intervals, start_ns: int | None) -> Intervals:
    """Spans made disjoint: each begins no earlier than the ones before it have ended; empty ones are left out."""
    ends = np.maximum.accumulate(spans[:, 1])
    before = np.concatenate(([spans[0, 0] if start_ns is None else start_ns], ends[:-1]))
    steps = np.column_stack((np.maximum(spans[:, 0], before), ends))
    return steps[steps[:, 1] > steps[:, 0]]
