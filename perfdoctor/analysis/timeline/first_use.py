"""What happens once in a recording: first uses, which no step to come repeats. The one home of the law of cold starts.

A program that uses something for the first time loads it: the driver a module at the first launch of one of its
kernels, cuBLAS and cuDNN themselves, the allocator its memory, torch.compile its code. Such work is found by the calls
and ranges in which it happens, each of them long beside the usual call of its name, and while the GPU had nothing to
do: a long launch behind a full queue is none. No time of a GPU item is once-only work, but in a part that is such as a
whole: a warm-up that the program names, a compilation, a search for the fastest convolution, a graph capture.

A gap between GPU items belongs to the first use as a whole where most of it does, or where the item that ends it was
launched by it::

    CPU   cudaStreamCreate 733 ms, 70 ms of Python, cudaLaunchKernel 9 us          -> all 803 ms: library start
    GPU   (idle)                                                          kernel

In a recording with steps only what does not come back from step to step is once-only.

Work from before the recording is left out in the same way: where the first item of a stream was launched, and for long
does not start though nothing that was recorded runs, it waits for work that is not in the file. Nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from perfdoctor.analysis.host.compile_time import compile_time
from perfdoctor.analysis.timeline.recurrence import RECURRING_STEPS, split_one_offs
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, Trace
from perfdoctor.trace.tables.steps import Steps

OnceCause: TypeAlias = Literal[
    "first_collective",
    "module_loading",
    "library_start",
    "allocator_growth",
    "graph_capture",
    "autotuning",
    "compilation",
    "initial_weights",
    "warm_up",
    "unrecorded_work",
    "other",
]
CAUSES: tuple[OnceCause, ...] = get_args(OnceCause)
"""The causes in the order in which they take an instant: what a warm-up loads is loading, the rest of it warm-up."""

# A launch takes 5 to 20 us, and so does every call that only asks or sets something, 100 us at most under a profiler
# with stacks. Of 98 recordings none without a first use has such a call of a millisecond on an idle GPU twice; where
# others of its name are fast, half of that stands out.
_ALWAYS_LONG_NS = 1_000_000
_LONG_NS = 500_000
_UNUSUALLY_LONG = 50
_UNUSUAL_LAUNCH = 10
_MIN_USUAL_CALLS = 5
_UNKNOWN_NS = np.iinfo(np.int64).max // 100
# A launch blocks where the queue is full: CUDA's holds 1,024 items.
_QUEUED_ITEMS = 256
# cudaFree takes 0.1 to 5 ms. A library that starts calls it to make a context, which takes seconds. So many of them, or
# a twentieth of all, are a start: more than that is an allocator without memory.
_LONG_FREE_NS = 20_000_000
_UNUSUAL_FREE = 10
_MAX_STARTING_FREES = 3
_STARTING_FREES_SHARE = 0.05
# A model of two layers has four weights and biases, each filled by an op of its own.
_MIN_INITIALIZERS = 4
# An allocator grows where it asks for so many times as many blocks as it gives back; else it churns.
_GROWTH = 1.5
# From this share of a gap on all of it belongs to the first use in it.
_MOST_OF_GAP = 0.8
# From this share of the analysed time on what happens once is left out of it. Less changes no figure that a reader
# would act on, and a steady recording has some.
MIN_SHARE = 0.02
# What lies before the analysed time is said from this share of the recording on.
_MIN_SHARE_OF_RECORDING = 0.2
# From this share of the time on a recording without steps is a first run.
FIRST_RUN_SHARE = 0.5
# Steps of steady recordings lie within 1.3 of their median, the first one, which starts the profiler, too.
_STANDS_OUT = 1.5
_MIN_STEADY_STEPS = 2
# An item starts some 5 us after its launch on a GPU that does nothing, 100 us where the driver has to wake it.
_UNRECORDED_NS, _BUSY_SHARE = 1_000_000, 0.01


class Longest(NamedTuple):
    """The call or range that takes longest of a cause: its name, that of the op around it ("" for none), its time."""

    name: str
    op: str
    time_ns: int


@frozen_dataclass(eq=False)
class FirstUse:
    """What happens once in a recording, and what is left to be analysed.

    Attributes:
        parts: By cause the time; disjoint, only causes that have some. It reaches beyond the analysed time.
        calls: By cause how many calls or ranges of it there are.
        longest: By cause the longest of these.
        cold_steps: How many leading steps are left out, because they stand out by what happens once.
        window: The time that the analysis is of; without steps it lacks what happens once.
        recording_ns: How long the recording is.
        is_in_window: Whether the time that would have been analysed had some, which is left out.
        is_first_run: Whether nothing comes back: there are no steps, and most of the time happens once.
    """

    parts: Mapping[OnceCause, Intervals]
    calls: Mapping[OnceCause, int]
    longest: Mapping[OnceCause, Longest]
    cold_steps: int
    window: Intervals
    recording_ns: int
    is_in_window: bool
    is_first_run: bool

    @property
    def time(self) -> Intervals:
        """All that happens once."""
        return iv.union_of(self.parts.values())

    @property
    def share(self) -> float:
        """What happens once as a share (0 to 1) of the recording."""
        return iv.total(self.time) / self.recording_ns if self.recording_ns else 0.0

    def keep_cold_steps(self, steps: Steps) -> FirstUse:
        """The same where all steps are analysed, because the user chose among them."""
        if not self.cold_steps:
            return self
        return replace(self, cold_steps=0, window=iv.subtract(steps.window, self.time))


class _Uses(NamedTuple):
    """Calls, ops or ranges of one cause: start and end of each, its name, the op around it, and its time.

    `is_whole` says whether GPU items that are launched in them belong to them.
    """

    cause: OnceCause
    start_ns: Int64Array
    end_ns: Int64Array
    names: list[str]
    ops: list[str]
    is_whole: bool = False


def find_first_use(trace: Trace, steps: Steps, recorded: Intervals) -> FirstUse:
    """What happens once in a recording.

    Args:
        trace: The trace, with the clocks of CPU and GPU aligned.
        steps: All steps of the recording.
        recorded: The time that would be analysed if nothing happened once.
    """
    idle = _idle_time(trace)
    waiting = _add_waits_for_ranks(trace, idle)
    has_steps = steps.count >= _MIN_STEADY_STEPS
    uses = [each for each in _find_uses(trace, idle, waiting, has_steps=has_steps) if len(each.start_ns)]
    found = dict.fromkeys(CAUSES, iv.EMPTY)
    for each in uses:
        time = _time_of(trace, each, waiting if each.cause == "module_loading" else idle)
        found[each.cause] = iv.union_of((found[each.cause], time))
    found = _add_rest_of_gaps(trace, found, idle)
    if has_steps:
        growth = iv.intersect(found["allocator_growth"], _find_growing_steps(trace, steps))
        found = {cause: _leave_out_recurring(time, steps) for cause, time in found.items()}
        found["allocator_growth"] = iv.union_of((found["allocator_growth"], growth))
    parts = _make_disjoint(found)
    window, cold = _select_window(trace, steps, recorded, parts)
    if has_steps:  # compiling in steps that are kept may come with every new size: that is PD108's
        parts["compilation"] = iv.subtract(parts["compilation"], steps.without_first(cold).window)
    first_uses = iv.union_of(time for cause, time in parts.items() if cause != "unrecorded_work")
    in_window_ns = iv.total(iv.intersect(recorded, first_uses))
    is_first_run = not has_steps and in_window_ns >= FIRST_RUN_SHARE * max(iv.total(recorded), 1)
    parts["other"] = iv.subtract(
        iv.union_of(_find_rest(trace, steps, recorded, idle, parts, is_first_run=is_first_run)),
        iv.union_of(parts.values()),
    )
    once = iv.union_of(parts.values())
    inside_ns, span_ns = iv.total(iv.intersect(once, recorded)), trace.extent_ns[1] - trace.extent_ns[0]
    min_ns = 1 if has_steps else _LONG_NS  # steps show by themselves what does not come back
    is_left_out = cold > 0 or inside_ns >= max(MIN_SHARE * iv.total(recorded), min_ns)
    if not is_left_out and iv.total(once) < max(_MIN_SHARE_OF_RECORDING * span_ns, min_ns):
        return FirstUse({}, {}, {}, 0, recorded, span_ns, is_in_window=False, is_first_run=False)
    if is_left_out:
        window = iv.subtract(window, once)
    parts = {cause: time for cause, time in parts.items() if len(time)}
    return FirstUse(
        MappingProxyType(parts),
        MappingProxyType({cause: _count(uses, cause, time) for cause, time in parts.items()}),
        MappingProxyType(dict(_name_longest(uses, parts))),
        cold,
        window,
        span_ns,
        is_left_out,
        is_first_run,
    )


def leave_out(steps: Steps, first_use: FirstUse) -> Steps:
    """The steps without the cold ones, and without what happens once in the others where that is left out."""
    kept = steps.without_first(first_use.cold_steps)
    return replace(kept, once=iv.subtract(kept.window, first_use.window))


def _idle_time(trace: Trace) -> Intervals:
    """The gaps between GPU items; where none was recorded all of the recording."""
    return iv.gaps(iv.union(trace.gpu.start_ns, trace.gpu.end_ns), *trace.extent_ns)


def _add_waits_for_ranks(trace: Trace, idle: Intervals) -> Intervals:
    """The gaps between GPU items, and the time in which nothing but collectives runs.

    The first launch of a kernel loads its code, and may wait for what runs: on the GPU then stands a collective that
    waits for a rank which loads code as well, and the work that would follow it has not been launched.
    """
    gpu = trace.gpu
    collective = trace.match_rows(gpu, vocabulary.NCCL_KERNEL)
    if not collective.any():
        return idle
    return iv.gaps(iv.union(gpu.start_ns[~collective], gpu.end_ns[~collective]), *trace.extent_ns)


def _find_uses(trace: Trace, idle: Intervals, waiting: Intervals, *, has_steps: bool) -> Iterator[_Uses]:
    """Everything that may be a first use; in steps it still has to stand out."""
    calls = trace.calls
    idle_ns = iv.overlap(calls.start_ns, calls.end_ns, idle)
    frees = _find_starting_frees(trace, idle_ns)
    waiting_ns = idle_ns if waiting is idle else iv.overlap(calls.start_ns, calls.end_ns, waiting)
    starting, loading = _find_long_calls(trace, idle_ns, waiting_ns)
    starting |= frees
    in_collective = _in_collectives(trace, starting | loading)
    yield _uses_of_calls(trace, "first_collective", in_collective)
    yield _uses_of_calls(trace, "module_loading", loading & ~in_collective)
    yield _uses_of_calls(trace, "library_start", starting & ~in_collective)
    yield _uses_of_calls(trace, "allocator_growth", _find_growth(trace, frees, has_steps=has_steps))
    yield _find_captures(trace)
    yield _find_searches(trace)
    frames = trace.frames
    at = trace.match_rows(frames, vocabulary.COMPILE_FRAME)
    compiling = iv.union_of((compile_time(trace), iv.union(frames.start_ns[at], frames.end_ns[at])))
    yield _Uses(
        *("compilation", compiling[:, 0], compiling[:, 1]),
        *(["torch.compile"] * len(compiling), [""] * len(compiling)),
        is_whole=True,
    )
    yield _find_initial_weights(trace)
    yield _find_warm_ups(trace)
    yield _find_unrecorded_work(trace, idle)


def _uses_of_calls(trace: Trace, cause: OnceCause, rows: BoolArray) -> _Uses:
    calls, at = trace.calls, np.flatnonzero(rows)
    names = [trace.strings[code] for code in calls.name[at].tolist()]
    ops = [trace.strings[trace.ops.name[op]] if op >= 0 else "" for op in calls.op[at].tolist()]
    return _Uses(cause, calls.start_ns[at], calls.end_ns[at], names, ops)


def _find_long_calls(trace: Trace, idle_ns: Int64Array, waiting_ns: Int64Array) -> tuple[BoolArray, BoolArray]:
    """Calls that start a library, and calls that load code: those that are long while the GPU has nothing to do.

    Of calls that load code the time counts in which the GPU waits for other ranks, too. A launch behind a full queue
    waits for them as well, but loads nothing.
    """
    calls = trace.calls
    may_load = trace.match_rows(calls, vocabulary.MODULE_LOAD_CALL)
    nothing_ns = np.where(may_load, waiting_ns, idle_ns)
    at = np.flatnonzero(nothing_ns >= _LONG_NS)
    at = at[~trace.match_rows(calls, vocabulary.MAY_TAKE_LONG_CALL)[at]]
    long = np.zeros(len(calls), bool)
    if len(at):
        usual_ns = _usual_durations_ns(trace, at)
        always = nothing_ns[at] >= _ALWAYS_LONG_NS
        if not len(trace.gpu):  # a recorder that counts instructions makes every launch long
            always &= (calls.dur_ns[at] >= _UNUSUAL_LAUNCH * usual_ns) | (usual_ns == _UNKNOWN_NS)
        at = at[always | (nothing_ns[at] >= _UNUSUALLY_LONG * usual_ns)]
        at = at[(2 * idle_ns[at] >= calls.dur_ns[at]) | (_count_queued(trace, calls.start_ns[at]) < _QUEUED_ITEMS)]
    long[at] = True
    loads = long & may_load
    return long & ~loads, loads & (_launches_first(trace) | ~_launches_any(trace))


def _usual_durations_ns(trace: Trace, rows: Int64Array) -> Int64Array:
    """For each of some calls the median duration of the calls of its name; of few calls nothing is usual."""
    calls = trace.calls
    usual = {}
    for code in set(calls.name[rows].tolist()):
        durations = calls.dur_ns[calls.name == code]
        usual[code] = int(np.median(durations)) if len(durations) >= _MIN_USUAL_CALLS else _UNKNOWN_NS
    return np.array([usual[code] for code in calls.name[rows].tolist()], np.int64)


def _count_queued(trace: Trace, at_ns: Int64Array) -> Int64Array:
    """How many GPU items had been launched at each instant, and had not ended."""
    linked = trace.gpu.call >= 0
    launched, ended = np.sort(trace.calls.start_ns[trace.gpu.call[linked]]), np.sort(trace.gpu.end_ns[linked])
    result: Int64Array = np.searchsorted(launched, at_ns) - np.searchsorted(ended, at_ns, side="right")
    return result


def _launches_first(trace: Trace) -> BoolArray:
    """For each call whether it launched the first item of some name: only that loads its module."""
    gpu = trace.gpu
    rows = np.flatnonzero(gpu.call >= 0)
    order = rows[np.argsort(trace.calls.start_ns[gpu.call[rows]], kind="stable")] if len(rows) else rows
    _, first = np.unique(gpu.name[order], return_index=True)
    result = np.zeros(len(trace.calls), bool)
    result[gpu.call[order[first]]] = True
    return result


def _launches_any(trace: Trace) -> BoolArray:
    result = np.zeros(len(trace.calls), bool)
    result[trace.gpu.call[trace.gpu.call >= 0]] = True
    return result


def _find_starting_frees(trace: Trace, idle_ns: Int64Array) -> BoolArray:
    """The calls that free memory and take so long that they start a library; none where many take long."""
    calls = trace.calls
    result = np.zeros(len(calls), bool)
    frees = np.flatnonzero(trace.match_rows(calls, vocabulary.FREE_CALL))
    if not len(frees):
        return result
    usual_ns = float(np.median(calls.dur_ns[frees])) if len(frees) >= _MIN_USUAL_CALLS else 0.0
    long = frees[(idle_ns[frees] >= _LONG_FREE_NS) & (calls.dur_ns[frees] >= _UNUSUAL_FREE * usual_ns)]
    if len(long) <= max(_MAX_STARTING_FREES, _STARTING_FREES_SHARE * len(frees)):
        result[long] = True
    return result


def _find_growth(trace: Trace, starting_frees: BoolArray, *, has_steps: bool) -> BoolArray:
    """The calls that allocate or free device memory; without steps only where the allocator keeps most of what it gets.

    Of some steps it shows by itself what does not come back.
    """
    calls = trace.calls
    allocator = trace.match_rows(calls, vocabulary.ALLOCATOR_CALL) & ~starting_frees
    frees = allocator & trace.match_rows(calls, vocabulary.FREE_CALL)
    grows = np.count_nonzero(allocator & ~frees) >= _GROWTH * np.count_nonzero(frees)
    return allocator if grows or has_steps else np.zeros(len(calls), bool)


def _in_collectives(trace: Trace, rows: BoolArray) -> BoolArray:
    """Which of some calls lie in the range or op of a collective: its communicator is made at the first one."""
    if not rows.any():
        return rows
    tables = ((table, trace.match_rows(table, vocabulary.COLLECTIVE_CALL)) for table in (trace.ranges, trace.ops))
    inside = iv.union_of(iv.union(table.start_ns[at], table.end_ns[at]) for table, at in tables)
    result: BoolArray = rows & iv.contains(inside, trace.calls.start_ns)
    return result


def _find_captures(trace: Trace) -> _Uses:
    """From the begin of each capture to the last call that makes its graph ready, and the ops around these.

    A stream waits, collects garbage and empties caches before a capture, within the op that captures.
    """
    calls = trace.calls
    begins = np.flatnonzero(trace.match_rows(calls, vocabulary.CAPTURE_BEGIN_CALL))
    ready = np.flatnonzero(trace.match_rows(calls, vocabulary.GRAPH_CAPTURE_CALL))
    ready, begins = ready[np.argsort(calls.end_ns[ready])], begins[np.argsort(calls.start_ns[begins], kind="stable")]
    if not len(begins):  # the capture was cut: what is left of it is a graph that is made ready
        begins = ready
    until_ns = np.append(calls.start_ns[begins[1:]], np.iinfo(np.int64).max)
    last = ready[np.searchsorted(calls.end_ns[ready], until_ns, side="right") - 1] if len(ready) else ready
    op = calls.op[begins]
    around = op[op >= 0]
    while len(around) and (trace.ops.parent[around] >= 0).any():
        parent = trace.ops.parent[around]
        around = np.where(parent >= 0, parent, around)
    starts = np.concatenate((calls.start_ns[begins], trace.ops.start_ns[around]))
    ends = np.concatenate((np.maximum(calls.end_ns[last], calls.end_ns[begins]), trace.ops.end_ns[around]))
    ops = [trace.strings[code] for code in trace.ops.name[around].tolist()]
    names = ["graph capture"] * len(starts)
    return _Uses("graph_capture", starts, ends, names, [*[""] * len(begins), *ops])


def _find_searches(trace: Trace) -> _Uses:
    """The convolutions in which the fastest kernel is searched: they read times between events."""
    ops, calls = trace.ops, trace.calls
    op = calls.op[trace.match_rows(calls, vocabulary.EVENT_TIME_CALL)]
    op = distinct(op[op >= 0])
    at = op[trace.match_rows(ops, r"conv")[op]] if len(op) else op
    names = [trace.strings[code] for code in ops.name[at].tolist()]
    return _Uses("autotuning", ops.start_ns[at], ops.end_ns[at], names, [""] * len(at), is_whole=True)


def _find_initial_weights(trace: Trace) -> _Uses:
    """The ops that fill the weights of a model which is made in the recording: many, before the first product of all.

    Noise that a program draws for its data is one op, or comes back between products.
    """
    ops = trace.ops
    products_ns = ops.start_ns[trace.match_rows(ops, vocabulary.MATRIX_OP)]
    at = np.flatnonzero(trace.match_rows(ops, vocabulary.INITIALIZER_OP) & (ops.parent < 0))
    at = at[ops.end_ns[at] <= products_ns.min(initial=_UNKNOWN_NS)]
    at = at if len(at) >= _MIN_INITIALIZERS else at[:0]
    names = [trace.strings[code] for code in ops.name[at].tolist()]
    return _Uses("initial_weights", ops.start_ns[at], ops.end_ns[at], names, [""] * len(at), is_whole=True)


def _find_warm_ups(trace: Trace) -> _Uses:
    """What the program calls its warm-up, or its start, if work comes after it: else there is nothing else to judge."""
    start_ns, end_ns, names = _named_warm_ups(trace)
    if len(start_ns):
        inside = iv.union(start_ns, end_ns)
        launched_ns = trace.calls.start_ns[trace.gpu.call[trace.gpu.call >= 0]]
        begins_ns = launched_ns if len(launched_ns) else trace.ops.start_ns
        if not (~iv.contains(inside, begins_ns) & (begins_ns >= end_ns.min())).any():
            start_ns, end_ns, names = start_ns[:0], end_ns[:0], []
    return _Uses("warm_up", start_ns, end_ns, names, [""] * len(names), is_whole=True)


def _named_warm_ups(trace: Trace) -> tuple[Int64Array, Int64Array, list[str]]:
    """When the ranges and functions run whose names say that a program warms up or starts."""
    found = (
        (table, np.flatnonzero(trace.match_rows(table, pattern)))
        for table, pattern in ((trace.ranges, vocabulary.WARM_UP_RANGE), (trace.frames, vocabulary.START_UP_FRAME))
    )
    rows = [(table.start_ns[at], table.end_ns[at], table.name[at]) for table, at in found]
    start_ns, end_ns, name = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    return start_ns, end_ns, [trace.strings[code] for code in name.tolist()]


def _find_unrecorded_work(trace: Trace, idle: Intervals) -> _Uses:
    """The waits of the first item of each stream, from the end of its launch to its start, where they are long.

    Only at the beginning, before anything that was recorded runs for a hundredth of the wait: later a stream may wait
    for the events of others.
    """
    gpu = trace.gpu
    rows = np.flatnonzero(gpu.call >= 0)
    rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
    streams = np.column_stack((gpu.device[rows], gpu.stream[rows]))
    first = rows[np.unique(streams, axis=0, return_index=True)[1]] if len(rows) else rows
    launched_ns = trace.calls.end_ns[gpu.call[first]]
    wait_ns, begin_ns = gpu.start_ns[first] - launched_ns, np.full(len(first), trace.extent_ns[0])
    busy_ns = gpu.start_ns[first] - begin_ns - iv.overlap(begin_ns, gpu.start_ns[first], idle)
    late = (wait_ns >= _UNRECORDED_NS) & (busy_ns <= _BUSY_SHARE * wait_ns)
    first, launched_ns = first[late], launched_ns[late]
    names = [trace.strings[code] for code in gpu.name[first].tolist()]
    return _Uses("unrecorded_work", launched_ns, gpu.start_ns[first], names, [""] * len(first))


def _time_of(trace: Trace, uses: _Uses, idle: Intervals) -> Intervals:
    """When some first uses happen: while the GPU has nothing to do, or runs what was launched in such a part."""
    spans = iv.union(uses.start_ns, uses.end_ns)
    gpu = trace.gpu
    if not uses.is_whole or not len(gpu):
        return iv.intersect(spans, idle)
    linked = gpu.call >= 0
    began_ns = np.where(linked, np.append(trace.calls.start_ns, 0)[gpu.call], gpu.start_ns)
    within = iv.contains(spans, began_ns)
    spans = iv.union_of((spans, iv.union(gpu.start_ns[within], gpu.end_ns[within])))
    return iv.subtract(spans, iv.union(gpu.start_ns[~within], gpu.end_ns[~within]))


def _add_rest_of_gaps(
    trace: Trace, found: Mapping[OnceCause, Intervals], idle: Intervals
) -> dict[OnceCause, Intervals]:
    """The causes with the rest of the gaps that they make: of a gap where they are most, and until what they launch.

    Without GPU items there are no gaps between them: ops that compute on the CPU fill the time.
    """
    if not len(trace.gpu):
        return dict(found)
    gaps = idle
    by_cause = np.stack([iv.overlap(gaps[:, 0], gaps[:, 1], found[cause]) for cause in CAUSES])
    length_ns = gaps[:, 1] - gaps[:, 0]
    # The allocator is blamed for the time of its own calls alone, and a range says nothing of the time around it.
    by_cause[[CAUSES.index("allocator_growth"), CAUSES.index("warm_up")]] = 0
    once_ns = by_cause.max(axis=0)
    cause = by_cause.argmax(axis=0)
    start_ns = np.where(once_ns >= _MOST_OF_GAP * length_ns, gaps[:, 0], gaps[:, 1])
    start_ns = np.minimum(start_ns, _when_ending_launch_began(trace, gaps, once_ns > 0))
    waiting = trace.match_rows(trace.ranges, vocabulary.DATALOADER_NEXT)
    loading = iv.union(trace.ranges.start_ns[waiting], trace.ranges.end_ns[waiting])
    return {
        each: iv.union_of((time, iv.subtract(iv.union(start_ns[cause == number], gaps[cause == number, 1]), loading)))
        for number, (each, time) in enumerate(found.items())
    }


def _when_ending_launch_began(trace: Trace, gaps: Intervals, holds_first_use: BoolArray) -> Int64Array:
    """For each gap that holds a first use: when the long call began that launched its next item; else its end."""
    result = gaps[:, 1].copy()
    gpu, calls = trace.gpu, trace.calls
    rows = np.flatnonzero(gpu.call >= 0)
    rows = rows[(calls.dur_ns[gpu.call[rows]] >= _LONG_NS) & _launches_first(trace)[gpu.call[rows]]]
    if not len(rows) or not len(gaps):
        return result
    gap = np.minimum(np.searchsorted(gaps[:, 1], gpu.start_ns[rows]), len(gaps) - 1)
    ends = (gaps[gap, 1] == gpu.start_ns[rows]) & holds_first_use[gap]
    np.minimum.at(result, gap[ends], np.maximum(calls.start_ns[gpu.call[rows[ends]]], gaps[gap[ends], 0]))
    return result


def _leave_out_recurring(time: Intervals, steps: Steps) -> Intervals:
    """What of some time does not come back from step to step: what lies before those that lack it, or in few."""
    if not len(time):
        return time
    in_step_ns = iv.overlap(steps.intervals[:, 0], steps.intervals[:, 1], time)
    with_it = np.flatnonzero(in_step_ns > MIN_SHARE * steps.durations_ns)
    lacking = int(with_it[-1]) + 1 if len(with_it) else 0
    comes_back = lacking > steps.count - _MIN_STEADY_STEPS
    until_ns = int(steps.intervals[0 if comes_back else lacking, 0])
    before = iv.clip(time, int(time[0, 0]), until_ns)
    return iv.union_of((before, split_one_offs(iv.intersect(time, steps.window), steps).once))


def _find_growing_steps(trace: Trace, steps: Steps) -> Intervals:
    """The steps since memory was last given back, if they are too few to show that each of them asks for more."""
    frees_ns = trace.calls.start_ns[trace.match_rows(trace.calls, vocabulary.FREE_CALL)]
    starts_ns, ends_ns = steps.intervals[:, 0], steps.intervals[:, 1]
    after = starts_ns > frees_ns.max(initial=-1)
    few = np.count_nonzero(after) < RECURRING_STEPS
    return iv.union(starts_ns[after], ends_ns[after]) if few else iv.EMPTY


def _make_disjoint(found: Mapping[OnceCause, Intervals]) -> dict[OnceCause, Intervals]:
    """Each instant to the first of CAUSES that has it."""
    every = iv.union_of(found.values())
    return dict(zip(CAUSES, iv.partition(every, (found[cause] for cause in CAUSES)), strict=False))


def _select_window(
    trace: Trace, steps: Steps, recorded: Intervals, parts: Mapping[OnceCause, Intervals]
) -> tuple[Intervals, int]:
    """The steps that are not cold, and how many are; without steps what comes after the first warm-up."""
    if steps.count:
        cold = _count_cold_steps(steps, parts)
        kept = steps.intervals[cold:]
        return iv.union(kept[:, 0], kept[:, 1]), cold
    warm_up = parts["warm_up"]
    if len(warm_up) and len(recorded):
        after = iv.clip(recorded, _end_of_first_warm_up_ns(trace), int(recorded[-1, 1]))
        return after, 0
    return recorded, 0


def _end_of_first_warm_up_ns(trace: Trace) -> int:
    """When the first warm-up ends: what comes before it is the program's set-up."""
    start_ns, end_ns, _ = _named_warm_ups(trace)
    return int(iv.union(start_ns, end_ns)[0, 1])


def _count_cold_steps(steps: Steps, parts: Mapping[OnceCause, Intervals]) -> int:
    """How many leading steps stand out by what happens once in them, if enough steps come after them."""
    durations_ns = steps.durations_ns
    once_ns = iv.overlap(steps.intervals[:, 0], steps.intervals[:, 1], iv.union_of(parts.values()))
    warm_ns = iv.overlap(steps.intervals[:, 0], steps.intervals[:, 1], parts["warm_up"])
    steady = np.flatnonzero((once_ns == 0) & (2 * warm_ns <= durations_ns))  # whatever the usual step is
    most = min(steps.count - _MIN_STEADY_STEPS, int(steady[0]) if len(steady) else steps.count)
    for first in range(most, 0, -1):
        usual_ns = float(np.median(durations_ns[first:]))
        excess_ns = durations_ns[:first] - usual_ns
        cold = (excess_ns > (_STANDS_OUT - 1) * usual_ns) & (2 * once_ns[:first] >= excess_ns)
        if (cold | (2 * warm_ns[:first] > durations_ns[:first])).all():
            return first
    return 0


def _find_rest(
    trace: Trace,
    steps: Steps,
    recorded: Intervals,
    idle: Intervals,
    parts: Mapping[OnceCause, Intervals],
    *,
    is_first_run: bool,
) -> Iterator[Intervals]:
    """Idle time that no call explains, in a start that is proven: before the first step, and before first kernels."""
    if not len(trace.gpu):
        return
    once = iv.union_of(parts.values())
    if steps.count:
        before = iv.clip(idle, trace.extent_ns[0], int(steps.intervals[0, 0]))
        if 2 * iv.total(iv.intersect(before, once)) >= iv.total(before) >= (steps.median_ns or 0):
            yield before
    elif is_first_run and not len(trace.frames):  # stacks say what the CPU did
        yield _gaps_before_first_kernels(trace, iv.intersect(idle, recorded))


def _gaps_before_first_kernels(trace: Trace, idle: Intervals) -> Intervals:
    """The long gaps that end with the first kernel of some name, which had not been launched before them."""
    gpu = trace.gpu
    rows = np.flatnonzero((gpu.kind == KERNEL) & (gpu.call >= 0))
    rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
    rows = rows[np.sort(np.unique(gpu.name[rows], return_index=True)[1])]
    if not len(rows) or not len(idle):
        return iv.EMPTY
    gap = np.minimum(np.searchsorted(idle[:, 1], gpu.start_ns[rows]), len(idle) - 1)
    late = (idle[gap, 1] == gpu.start_ns[rows]) & (trace.calls.start_ns[gpu.call[rows]] > idle[gap, 0])
    chosen: Intervals = idle[distinct(gap[late])]
    long: Intervals = chosen[chosen[:, 1] - chosen[:, 0] >= _ALWAYS_LONG_NS]
    return long


def _count(uses: list[_Uses], cause: OnceCause, time: Intervals) -> int:
    """How many calls or ranges of a cause there are in its time; for the rest of a start how many gaps."""
    if cause == "other":
        return len(time)
    return sum(int((iv.overlap(u.start_ns, u.end_ns, time) > 0).sum()) for u in uses if u.cause == cause)


def _name_longest(uses: list[_Uses], parts: Mapping[OnceCause, Intervals]) -> Iterator[tuple[OnceCause, Longest]]:
    for each in uses:
        if each.cause in parts:
            inside_ns = iv.overlap(each.start_ns, each.end_ns, parts[each.cause])
            at = int(inside_ns.argmax())
            if inside_ns[at]:
                yield each.cause, Longest(each.names[at], each.ops[at], int(inside_ns[at]))
