"""Whether the analysed time is steady, or holds what happens once: compilation, graph capture, loading of modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Calls, Trace
from perfdoctor.trace.tables.steps import Steps
from perfdoctor.units import format_ms

# A launch takes some 5 us. Only code that is loaded (or compiled from PTX) takes so long while the GPU has nothing to
# do; while the GPU is busy a launch may wait for room in the queue, which is no start-up.
_LONG_LAUNCH_NS = 50_000_000
_MAIN_SHARE = 0.5
# So many calls are named that a start takes longest in.
_NAMED_CALLS = 3
# What takes less of the window changes no figure that a reader would act on.
_MIN_SHARE = 0.02
# The first step of a recording also starts the profiler; in steady recordings it is up to 1.3 times as long.
_LONG_FIRST_STEP = 1.5
_MIN_STEPS = 3
# Steps of recordings without a start lie within 0.2 of their median.
_STEADY_SPREAD = 0.3


class StartUp(NamedTuple):
    """What the process did before the first step, and does not do again.

    Attributes:
        idle_ns: How long the GPU had nothing to do before the first step.
        sentence: What the CPU was in meanwhile.
    """

    idle_ns: int
    sentence: str


class Steadiness(NamedTuple):
    """Whether the analysed time is steady, None where that is unknown, and the sentences that say why."""

    steady: bool | None
    reasons: tuple[str, ...]


def steadiness_of(trace: Trace, steps: Steps, window: Intervals, drift_ns: int = 0) -> Steadiness:
    """Whether the analysed time is steady.

    `drift_ns` is by how much the clocks of CPU and GPU drift apart within the trace.
    """
    unit_ns = steps.median_ns or iv.total(window)
    if drift_ns > _MIN_SHARE * unit_ns:
        return Steadiness(None, (f"the clocks of CPU and GPU drift apart by {format_ms(drift_ns, ',.1f')}.",))
    one_offs = tuple(_find_one_offs(trace, steps, window))
    if one_offs:
        return Steadiness(False, one_offs)
    if steps.count < _MIN_STEPS:
        return Steadiness(None, (f"{steps.count} steps are too few to tell steady from warm-up.",))
    durations = steps.durations_ns
    median_ns = float(np.median(durations))
    if np.abs(durations - median_ns).max() > _STEADY_SPREAD * median_ns:
        low, high = int(durations.min()) / 1e6, int(durations.max()) / 1e6
        return Steadiness(None, (f"the steps take {low:,.1f} to {high:,.1f} ms, in no order that a warm-up has.",))
    return Steadiness(True, ())


def find_start_up(trace: Trace, steps: Steps) -> StartUp | None:
    """The start of the process, where it was recorded: long calls before the first step while the GPU has no work.

    None where the GPU idles for less than a step then, or such calls take less than half of that time: then it is not
    known what the CPU did.
    """
    calls, gpu = trace.calls, trace.gpu
    if not steps.count or not len(gpu) or steps.median_ns is None:
        return None
    before = iv.window(trace.extent_ns[0], int(steps.intervals[0, 0]))
    idle = iv.subtract(before, iv.union(gpu.start_ns, gpu.end_ns))
    idle_ns = iv.total(idle)
    if idle_ns < steps.median_ns:
        return None
    rows = np.flatnonzero(calls.dur_ns > _LONG_LAUNCH_NS)
    spent_ns = iv.overlap(calls.start_ns[rows], calls.end_ns[rows], idle)
    rows, spent_ns = rows[spent_ns > _LONG_LAUNCH_NS], spent_ns[spent_ns > _LONG_LAUNCH_NS]
    if iv.total(iv.intersect(iv.union(calls.start_ns[rows], calls.end_ns[rows]), idle)) < _MAIN_SHARE * idle_ns:
        return None
    names, which = np.unique(calls.name[rows], return_inverse=True)
    by_name_ns = np.bincount(which, spent_ns)
    longest = np.argsort(-by_name_ns, kind="stable")[:_NAMED_CALLS].tolist()
    named = [f"{trace.strings[names[each]]} {format_ms(by_name_ns[each], ',.0f')}" for each in longest]
    return StartUp(
        idle_ns,
        f"once, before the first step: {format_ms(idle_ns, ',.0f')} of start-up without work for the GPU, of it in "
        f"{', '.join(named)}.",
    )


def _find_one_offs(trace: Trace, steps: Steps, window: Intervals) -> Iterator[str]:
    """Yield a sentence for each thing of a start that takes part of the analysed time."""
    calls, window_ns = trace.calls, iv.total(window)
    inside = iv.contains(window, calls.start_ns)
    capture = inside & trace.match_rows(calls, vocabulary.GRAPH_CAPTURE_CALL)
    if capture.any():
        yield f"a graph is captured ({_count(capture)} calls such as {_name_of(trace, capture)})."
    loads = _find_slow_loads(trace, inside)
    if len(loads):
        longest = loads[calls.dur_ns[loads].argmax()]
        name, length = trace.text(int(calls.name[longest])), format_ms(calls.dur_ns[longest], ",.0f")
        yield f"code is loaded: {name} takes {length} while the GPU has nothing to do."
    compiling_ns = iv.total(iv.intersect(compile_time(trace), window))
    if compiling_ns > _MIN_SHARE * window_ns:
        yield f"torch.compile compiles for {format_ms(compiling_ns, ',.1f')}."
    searching = inside & trace.match_rows(calls, vocabulary.EVENT_TIME_CALL) & _in_convolutions(trace, calls)
    if searching.any():
        yield f"the fastest convolutions are searched ({_count(searching)} measurements)."
    yield from _find_first_allocations(trace, steps, window, inside)
    if steps.count >= _MIN_STEPS:
        first_ns, others_ns = int(steps.durations_ns[0]), float(np.median(steps.durations_ns[1:]))
        if first_ns > _LONG_FIRST_STEP * others_ns and first_ns >= steps.durations_ns.max():
            yield f"the first step takes {format_ms(first_ns, ',.1f')}, the others {format_ms(others_ns, ',.1f')}."


def _find_slow_loads(trace: Trace, inside: BoolArray) -> Int64Array:
    """The rows of calls that load code for long while the GPU does nothing."""
    calls, gpu = trace.calls, trace.gpu
    if not len(gpu):  # what the GPU did is unknown
        return np.empty(0, np.int64)
    rows = np.flatnonzero(inside & (calls.dur_ns > _LONG_LAUNCH_NS))
    rows = rows[trace.match_rows(calls, vocabulary.MODULE_LOAD_CALL)[rows]] if len(rows) else rows
    if not len(rows):
        return rows
    busy_ns = iv.overlap(calls.start_ns[rows], calls.end_ns[rows], iv.union(gpu.start_ns, gpu.end_ns))
    return rows[busy_ns < _MAIN_SHARE * calls.dur_ns[rows]]


def _in_convolutions(trace: Trace, calls: Calls) -> BoolArray:
    """For each call whether the op that makes it is a convolution."""
    convolves = np.append(trace.match_rows(trace.ops, r"conv"), False)
    result: BoolArray = convolves[calls.op]
    return result


def _find_first_allocations(trace: Trace, steps: Steps, window: Intervals, inside: BoolArray) -> Iterator[str]:
    """Yield a sentence where device memory is allocated at the start and no more afterwards."""
    calls = trace.calls
    rows = np.flatnonzero(inside & trace.match_rows(calls, vocabulary.ALLOCATOR_CALL))
    time_ns = int(calls.dur_ns[rows].sum())
    if time_ns <= _MIN_SHARE * iv.total(window):
        return
    if steps.count >= _MIN_STEPS:
        in_first = int(calls.dur_ns[rows[steps.at(calls.start_ns[rows]) == 0]].sum())
    else:
        start_ns, end_ns = int(window[0, 0]), int(window[-1, 1])
        in_first = int(calls.dur_ns[rows[calls.start_ns[rows] < (start_ns + end_ns) // 2]].sum())
    if in_first > 0.8 * time_ns:
        yield f"device memory is allocated for the first time ({len(rows)} calls, {format_ms(time_ns, ',.1f')})."


def _count(rows: BoolArray) -> int:
    return int(rows.sum())


def _name_of(trace: Trace, rows: BoolArray) -> str | None:
    return trace.text(int(trace.calls.name[np.flatnonzero(rows)[0]]))
