"""Ranges that mark the steps of a loop: the profiler's, counted ones, those of serving engines and of benchmarks.

What marks only a pass through the model ("forward") begins a step, which lasts until the next one begins: the backward
pass, the sampling of a token and what the loop does besides belong to it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Frames, Ops, Ranges, Table, Trace

_MIN_COUNTED_STEPS = 3
_MIN_REPEATED = 3
# A benchmark says itself that each of its ranges is one measurement.
_MIN_MEASURED = 2
# Of ranges whose names alone do not say that they are steps so many, as a share, launch nearly the same number of
# items, and they hold at least this share of all items: else they mark something else, or too little.
_EVEN_SHARE, _EVEN_SPREAD = 0.8, 0.25
_MIN_COVERAGE = 0.5


@frozen_dataclass(eq=False)
class StepMarks:
    """The spans of the steps that ranges mark.

    Attributes:
        spans: int64 (n, 2), ``[start, end)`` in nanoseconds, sorted by start, on the CPU or on the GPU.
        on_gpu: Whether they are times of the GPU's row.
        says_step: Whether their names say that they are steps; else that follows from how they repeat.
        numbers: The number in the name of each mark; empty where they have none.
    """

    spans: Intervals
    on_gpu: bool = False
    says_step: bool = True
    numbers: tuple[int, ...] = ()


class _Row(NamedTuple):
    """A row of ranges: of the CPU or of the GPU."""

    ranges: Ranges
    on_gpu: bool


def find_profiler_marks(trace: Trace) -> StepMarks | None:
    """The profiler's own steps, else the ranges by which a user counts steps; None without either.

    Marks on the CPU come first, because they say when a step was asked for; the same marks on the GPU row serve where a
    file holds only those. Of several threads (several ranks in one file, evaluation in another thread) the one with
    most marks counts.
    """
    marks = select_busiest_thread(trace.ranges, trace.match_rows(trace.ranges, vocabulary.PROFILER_STEP))
    if len(marks):
        names = (trace.strings[code] for code in trace.ranges.name[marks].tolist())
        numbers = tuple(n for name in names if (n := vocabulary.profiler_step_number(name)) is not None)
        rising = len(numbers) == len(marks) and all(a < b for a, b in pairwise(numbers))
        return StepMarks(_spans_of(trace.ranges, marks), numbers=numbers if rising else ())
    if trace.match_rows(trace.gpu_ranges, vocabulary.PROFILER_STEP).any():
        return StepMarks(_find_gpu_marks(trace), on_gpu=True)
    marks, counts = _find_counted_steps(trace)
    return StepMarks(_spans_of(trace.ranges, marks), numbers=counts) if len(marks) else None


def find_repeated_ranges(trace: Trace) -> StepMarks | None:
    """Steps from ranges that repeat: of serving engines, of benchmarks, then of people; None where none fits.

    Those on the CPU come first, and the same on the GPU's row serve where a file holds only those. Last come the calls
    of one and the same outermost module, where stacks were recorded, or the ranges that hold several of these each, as
    a request does for which a model is called token by token.
    """
    rows = (_Row(trace.ranges, False), _Row(trace.gpu_ranges, True))
    for find in (_find_engine_steps, _find_measured_ranges, _find_named_ranges):
        for row in rows:
            found = find(trace, row) if len(row.ranges) else None
            if found is not None:
                return found
    calls = _find_module_calls(trace)
    return None if calls is None else _find_ranges_of_calls(trace, calls) or calls


def select_busiest_thread(ranges: Ranges | Frames | Ops, wanted: BoolArray) -> Int64Array:
    """The wanted rows on the thread that has most of them; of equals on the first such thread."""
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return rows
    threads, first, count = np.unique(ranges.thread[rows], return_index=True, return_counts=True)
    busiest = threads[np.lexsort((first, -count))[0]]
    result: Int64Array = rows[ranges.thread[rows] == busiest]
    return result


def _spans_of(table: Table, rows: Int64Array) -> Intervals:
    return np.column_stack((table.start_ns[rows], table.end_ns[rows]))


def _find_counted_steps(trace: Trace) -> tuple[Int64Array, tuple[int, ...]]:
    """Rows of the ranges by which a user counts steps: one thread, one wording, one after the other, rising numbers.

    Of several such series the longest counts, of equals the first. A series whose numbers repeat or whose ranges
    overlap does not count: better no steps than wrong ones.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.COUNTED_STEP))
    series: dict[tuple[int, str], list[tuple[int, int]]] = {}
    names = {code: vocabulary.parse_counted_step(trace.strings[code]) for code in set(ranges.name[rows].tolist())}
    for row, thread, code in zip(rows.tolist(), ranges.thread[rows].tolist(), ranges.name[rows].tolist(), strict=True):
        found = names[code]
        if found is not None:
            series.setdefault((thread, found.stem), []).append((row, found.number))
    best: Int64Array = np.empty(0, np.int64)
    best_numbers: tuple[int, ...] = ()
    for counted in series.values():
        at, numbers = np.array(counted, np.int64).T
        in_turn = (ranges.start_ns[at[1:]] >= ranges.end_ns[at[:-1]]).all() and (np.diff(numbers) > 0).all()
        if len(at) >= _MIN_COUNTED_STEPS and len(at) > len(best) and in_turn:
            best, best_numbers = at, tuple(numbers.tolist())
    return best, best_numbers


def _find_gpu_marks(trace: Trace) -> Intervals:
    """The span of each step from the marks on the GPU row, where every stream shows the mark once more."""
    rows = np.flatnonzero(trace.match_rows(trace.gpu_ranges, vocabulary.PROFILER_STEP))
    names, which = np.unique(trace.gpu_ranges.name[rows], return_inverse=True)
    spans = np.empty((len(names), 2), np.int64)
    spans[:, 0], spans[:, 1] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    np.minimum.at(spans[:, 0], which, trace.gpu_ranges.start_ns[rows])
    np.maximum.at(spans[:, 1], which, trace.gpu_ranges.end_ns[rows])
    return spans[np.argsort(spans[:, 0], kind="stable")]


def _find_engine_steps(trace: Trace, row: _Row) -> StepMarks | None:
    """The passes of a serving engine over its batch, prefill and decode alike; an engine marks some of them twice."""
    rows = select_busiest_thread(row.ranges, trace.match_rows(row.ranges, vocabulary.ENGINE_STEP))
    rows = keep_outermost(row.ranges, rows)
    if len(rows) < _MIN_REPEATED:
        return None
    return StepMarks(_until_the_next(_spans_of(row.ranges, rows), _end_of(trace, row)), row.on_gpu)


def _find_measured_ranges(trace: Trace, row: _Row) -> StepMarks | None:
    """What a benchmark measures, without what it does in between; None where it measures several things."""
    rows = select_busiest_thread(row.ranges, trace.match_rows(row.ranges, vocabulary.MEASURED_RANGE))
    rows = keep_outermost(row.ranges, rows)
    if len(rows) < _MIN_MEASURED:
        return None
    dur_ns = row.ranges.dur_ns[rows]
    alike = np.abs(np.log2(np.maximum(dur_ns, 1) / max(float(np.median(dur_ns)), 1.0))) <= 1.0
    return StepMarks(_spans_of(row.ranges, rows), row.on_gpu) if alike.mean() >= _EVEN_SHARE else None


def _find_named_ranges(trace: Trace, row: _Row) -> StepMarks | None:
    """Ranges around passes or iterations that repeat, with or without numbers, and launch as much each time.

    A pass within an iteration is a part of it, and so is a pass within another one.
    """
    ranges = row.ranges
    wanted = trace.match_rows(ranges, f"{vocabulary.PASS_RANGE}|{vocabulary.ITERATION_RANGE}")
    for pattern in (vocabulary.PART_OF_PASS, vocabulary.COUNTED_STEP, vocabulary.COLLECTIVE_RANGE):
        wanted &= ~trace.match_rows(ranges, pattern) if wanted.any() else wanted
    rows = select_busiest_thread(ranges, wanted)
    if len(rows) < _MIN_REPEATED:
        return None
    iterates = trace.match_rows(ranges, vocabulary.ITERATION_RANGE)
    iterations = _group_by_wording(trace, ranges, rows[iterates[rows]])
    for candidates in (iterations, _group_by_wording(trace, ranges, keep_outermost(ranges, rows[~iterates[rows]]))):
        for each in candidates:
            spans = _until_the_next(_spans_of(ranges, each), _end_of(trace, row))
            if _launch_alike(trace, spans, row.on_gpu):
                return StepMarks(spans, row.on_gpu, says_step=False)
    return None


def _group_by_wording(trace: Trace, ranges: Ranges, rows: Int64Array) -> list[Int64Array]:
    """Rows that lie one after the other and whose names differ in numbers alone, the longest series first."""
    codes = ranges.name[rows]
    wordings: dict[str, list[int]] = {}
    for code in distinct(codes).tolist():
        wordings.setdefault(vocabulary.mask_numbers(trace.strings[code]), []).append(code)
    series = [rows[np.isin(codes, same)] for same in wordings.values()]
    in_turn = [each for each in series if len(each) >= _MIN_REPEATED and len(keep_outermost(ranges, each)) == len(each)]
    return sorted(in_turn, key=lambda each: (-len(each), int(each[0])))


def _find_module_calls(trace: Trace) -> StepMarks | None:
    """The calls of one and the same module that no other module calls: layers are different modules."""
    frames = trace.frames
    rows = select_busiest_thread(frames, trace.match_rows(frames, vocabulary.MODULE_FRAME))
    if len(rows) < _MIN_REPEATED:
        return None
    rows = keep_outermost(frames, rows)
    _, which, count = np.unique(frames.name[rows], return_inverse=True, return_counts=True)
    called_ns = np.bincount(which, frames.dur_ns[rows])
    often = np.flatnonzero(count >= _MIN_REPEATED)
    if not len(often):
        return None
    chosen = rows[which == often[called_ns[often].argmax()]]
    spans = _until_the_next(_spans_of(frames, chosen), trace.extent_ns[1])
    return StepMarks(spans, says_step=False) if _launch_alike(trace, spans, on_gpu=False) else None


def _find_ranges_of_calls(trace: Trace, calls: StepMarks) -> StepMarks | None:
    """Ranges of one wording, one after the other, that hold nearly all calls of a module, several each."""
    ranges = trace.ranges
    rows = select_busiest_thread(ranges, ~trace.match_rows(ranges, vocabulary.PART_OF_PASS))
    called_ns = calls.spans[:, 0]
    for series in _group_by_wording(trace, ranges, keep_outermost(ranges, rows)):
        spans = _spans_of(ranges, series)
        inside = np.searchsorted(called_ns, spans[:, 1]) - np.searchsorted(called_ns, spans[:, 0])
        if (inside > 1).mean() >= _EVEN_SHARE and inside.sum() >= _EVEN_SHARE * len(called_ns):
            return StepMarks(spans, says_step=False)
    return None


def keep_outermost(table: Table, rows: Int64Array) -> Int64Array:
    """The rows of one thread, sorted by start, that lie in no other of them."""
    if not len(rows):
        return rows
    ends = np.maximum.accumulate(table.end_ns[rows])
    result: Int64Array = rows[np.append(True, table.start_ns[rows[1:]] >= ends[:-1])]
    return result


def _until_the_next(spans: Intervals, end_ns: int) -> Intervals:
    """Spans from each start to the next; the last is as long as the others, but ends with the recording."""
    starts = spans[:, 0]
    typical_ns = int(np.median(np.diff(starts)))
    last_ns = max(int(spans[-1, 1]), min(int(starts[-1]) + typical_ns, end_ns))
    return np.column_stack((starts, np.append(starts[1:], last_ns)))


def _end_of(trace: Trace, row: _Row) -> int:
    """The end of the recording as the spans of a row see it."""
    return int(trace.gpu.end_ns.max()) if row.on_gpu and len(trace.gpu) else trace.extent_ns[1]


def _launch_alike(trace: Trace, spans: Intervals, on_gpu: bool) -> bool:
    """Whether spans that touch launch nearly as many items each, and most of all items; by ops without a GPU."""
    gpu = trace.gpu
    if on_gpu or (len(gpu) and not (gpu.call >= 0).any()):
        at_ns = gpu.start_ns
    elif len(gpu):
        at_ns = trace.calls.start_ns[gpu.call[gpu.call >= 0]]
    else:
        at_ns = trace.ops.start_ns
    edges = np.append(spans[:, 0], spans[-1, 1])
    counts = np.diff(np.searchsorted(np.sort(at_ns), edges))
    typical = float(np.median(counts[:-1]))
    if typical == 0 or counts.sum() < _MIN_COVERAGE * len(at_ns):
        return False
    even = np.abs(counts[:-1] - typical) <= _EVEN_SPREAD * typical
    return bool(even.mean() >= _EVEN_SHARE)
