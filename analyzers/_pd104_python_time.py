"""Where a program on the CPU alone spends time in which no op runs: Python, numpy, files, conversions of lists."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._host_pauses import has_ranges_of_calls, time_of_calls
from perfdoctor.analyzers._pd104_busiest_line import find_outer_loop
from perfdoctor.rules import (
    HotPath,
    Intervals,
    Rank,
    SourceLocation,
    Trace,
    activity_kinds,
    captured_location,
    find_hot_path,
    find_steps,
    has_locations,
    loader_waits_of,
    loop_thread_of,
    optimizer_steps_of,
    user_frame,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Shorter breaks between ops are the framework's: 3 to 5 us in the median on a machine with a free core. Where those of
# a recording are longer, on a slow or busy machine, so are the longest of the framework, up to a limit: a program that
# does something between all of its ops has no others.
_MIN_BREAK_NS, _MAX_BREAK_OF_FRAMEWORK_NS = 100_000, 300_000
_TIMES_THE_USUAL_BREAK, _MIN_BREAKS = 30, 30
# Where calls of other rules take so much of the time without ops, they are what is to be reported.
_MIN_SHARE_OF_CALLS = 0.3
# What `perfdoctor run` does around each torch call of the evidence window, which the profiler records as well: up to
# 0.1 ms a call. The module's call itself is around the user's forward pass and stays.
_OWN_FRAME = r"/_perfdoctor_inject/(source_lines|user_code|module_call_lines\.py\(\d+\): _open_range)"
# Functions that make a tensor or an array of numbers one by one, as stacks name them.
_TENSOR_OF_LIST = r"built-in method (as_)?tensor of type"
_FROM_LISTS = rf"{_TENSOR_OF_LIST}|built-in function (as)?array>"
_OF_NUMPY = r"(^|/)numpy/|^<built-in method \w+ of numpy\."
_FUNCTION_OF_NUMPY = r"(: |built-in method )(?P<function>\w+)"
_MIN_SHARE_OF_ARRAYS = 0.3
_BACKWARD = rf"_engine_run_backward|{vocabulary.BACKWARD_RANGE}"


class PythonTime(NamedTuple):
    """Time without ops.

    Attributes:
        time: When no op runs for 0.1 ms or more, in the analysed window; without loading, optimizers, and the calls
            that PD110 and PD113 report.
        location: The line that takes most of it; of a function that a loop calls each time the line of the loop.
        share: The share of that line (0 to 1).
        share_with_short: What passes at the line without ops, in shorter pieces, too, over that of `time`: 1 and more
            where the line has most of them.
        list_share: The share (0 to 1) of all of it in which Python lists become tensors or arrays.
        tensor_share: The same of tensors alone.
        path: What the functions and calls are that take most of it.
        array_function: The function of numpy that takes most of it; None where numpy takes little.
        helper: The function that a loop at the line calls each time; None where there is none.
        is_definition: Whether the line is where its function begins: the time passes behind it.
    """

    time: Intervals
    location: SourceLocation
    share: float
    share_with_short: float
    list_share: float
    tensor_share: float
    path: HotPath
    array_function: str | None
    helper: str | None
    is_definition: bool


def find_python_time(rank: Rank) -> PythonTime | None:
    """Where the program spends time without ops; None where no line is known.

    None as well where most of it passes at the line that iterates over a DataLoader with workers: they are started
    there before the first batch is asked for, and ended after the last one, which is PD101's to tell.
    """
    parts = rank.account.parts
    idle = iv.union_of((parts["idle_unexplained"], parts["idle_launch"]))
    time = _long_breaks(rank.trace, iv.intersect(idle, rank.window))
    trace = next((each for each in (rank.evidence_trace, rank.trace) if each is not None and has_locations(each)), None)
    if trace is None or not len(time):
        return None
    steps = find_steps(trace)
    window = steps.window if steps.count else iv.window(*trace.extent_ns)
    busy = iv.union(trace.ops.start_ns, trace.ops.end_ns)
    free = iv.subtract(window, busy)
    breaks = iv.subtract(_long_breaks(trace, free), _time_of_hooks(trace))
    if trace is not rank.trace and not has_ranges_of_calls(rank.trace):
        # Recorded before such calls were: how much of the time they are is known of the evidence window alone.
        calls_ns = iv.total(iv.intersect(free, time_of_calls(trace)))
        if calls_ns >= _MIN_SHARE_OF_CALLS * (iv.total(breaks) + calls_ns):
            return None
    if not len(breaks):
        return None
    short = iv.subtract(_own_breaks(rank.trace, iv.intersect(idle, rank.window)), time)
    without_hooks = [iv.subtract(each, _time_of_hooks(rank.trace)) for each in (time, short)]
    spent, in_short = (_time_at_lines(rank, each) for each in without_hooks)
    if not spent:
        return None
    location = max(spent, key=lambda line: (spent[line], str(line)))
    if (location.file, location.line) in _lines_of_worker_loops(rank):
        return None
    outer = find_outer_loop(trace, location, max(steps.count, 1))
    helper = None if outer is None else location.function
    at = [each for each in spent if each == location or (helper and each.function == helper)]
    share, short_share = (
        sum(found[each] for each in at) / max(iv.total(without_hooks[0]), 1) for found in (spent, in_short)
    )
    path = find_hot_path(trace, breaks, loop_thread_of(trace))
    if path.kind == activity_kinds.SLEEP:
        return None  # who sleeps wants to
    location = outer or _find_comprehension(trace, location, path) or location
    list_share, tensor_share = (
        iv.total(iv.intersect(breaks, _time_in_frames(trace, functions))) / max(iv.total(breaks), 1)
        for functions in (_FROM_LISTS, _TENSOR_OF_LIST)
    )
    arrays = _find_array_function(trace, breaks)
    is_definition = _is_definition(trace, location)
    return PythonTime(
        time, location, share, share + short_share, list_share, tensor_share, path, arrays, helper, is_definition
    )


def _time_at_lines(rank: Rank, time: Intervals) -> Counter[SourceLocation]:
    """How long the program is at each line in some time of the window, in ns."""
    places = rank.places.places_of(rank.places.timed.pieces.within(time))
    return Counter({place.location: ns for place, ns in places if place.kind == "line" and place.location})


def _is_definition(trace: Trace, line: SourceLocation) -> bool:
    """Whether a line is where its function begins: frames name no other, and nothing of torch is called there."""
    name = rf"\({line.line}\): {re.escape(line.function or '')}$"
    # A comprehension has no name, but its own line.
    return not (line.function or "").startswith("<") and bool(trace.match_rows(trace.frames, name).any())


def _find_array_function(trace: Trace, breaks: Intervals) -> str | None:
    """The function of numpy with most time in some breaks, where such functions take `_MIN_SHARE_OF_ARRAYS` of them."""
    frames = trace.frames
    of_numpy = trace.match_rows(frames, _OF_NUMPY) & (frames.thread == loop_thread_of(trace))
    rows = np.flatnonzero(of_numpy & ~np.append(of_numpy, False)[frames.parent])
    time_ns = iv.overlap(frames.start_ns[rows], frames.end_ns[rows], breaks)
    if time_ns.sum() < _MIN_SHARE_OF_ARRAYS * iv.total(breaks):
        return None
    spent: Counter[str] = Counter()
    for code, each_ns in zip(frames.name[rows].tolist(), time_ns.tolist(), strict=True):
        found = re.search(_FUNCTION_OF_NUMPY, trace.strings[code])
        if found is not None:
            spent[found["function"]] += each_ns
    return max(spent, key=lambda name: (spent[name], name), default=None)


def _find_comprehension(trace: Trace, line: SourceLocation, path: HotPath) -> SourceLocation | None:
    """The comprehension in which most of the time passes, below a line that calls something; None without one.

    Lines are marked at calls of torch and of modules alone: a comprehension in a module's forward has no mark. Of a
    function with a name the line that calls it is named; the frame of a comprehension has no name, but its own line.
    """
    function = path.deepest
    if function is None or function.table != "frame" or not function.name.endswith(("comp>", "<genexpr>")):
        return None
    ranges, frames = trace.ranges, trace.frames
    marks = trace.match_rows(ranges, rf"@{re.escape(line.file)}:{line.line} ")
    rows = np.flatnonzero(trace.match_rows(frames, rf"^{re.escape(function.name)}$"))
    if (
        not len(rows)
        or not iv.contains(iv.union(ranges.start_ns[marks], ranges.end_ns[marks]), frames.start_ns[rows]).all()
    ):
        return None
    return user_frame(trace, int(rows[0]))


def _lines_of_worker_loops(rank: Rank) -> set[tuple[str, int | None]]:
    """The lines, as captured, that iterate over a DataLoader with workers."""
    loaders = (each for each in rank.facts.loaders if each.num_workers)
    lines = (captured_location(each.location) for each in loaders)
    return {(line.file, line.line) for line in lines if line is not None}


def _own_breaks(trace: Trace, free: Intervals) -> Intervals:
    """Some time without loading, optimizers, the wait for a backward pass, and others' calls."""
    ranges = trace.ranges
    waits = trace.match_rows(ranges, _BACKWARD) | trace.match_rows(ranges, vocabulary.CPU_COLLECTIVE_RANGE)
    waits |= trace.match_rows(ranges, vocabulary.ZERO_GRAD)
    others = (
        loader_waits_of(trace).intervals,
        optimizer_steps_of(trace).own_time(),
        time_of_calls(trace),
        iv.union(ranges.start_ns[waits], ranges.end_ns[waits]),
    )
    return iv.subtract(free, iv.union_of(others))


def _long_breaks(trace: Trace, free: Intervals) -> Intervals:
    """The longer pieces of that time, of those that the framework never makes."""
    breaks, all_ns = _own_breaks(trace, free), free[:, 1] - free[:, 0]
    short_ns = all_ns[all_ns < _MIN_BREAK_NS]
    usual_ns = float(np.median(short_ns)) if len(short_ns) >= _MIN_BREAKS else 0.0
    min_ns = min(max(_MIN_BREAK_NS, _TIMES_THE_USUAL_BREAK * usual_ns), _MAX_BREAK_OF_FRAMEWORK_NS)
    return breaks[breaks[:, 1] - breaks[:, 0] >= min_ns]


def _time_of_hooks(trace: Trace) -> Intervals:
    """When our own hooks run around torch calls; a conversion of lists in such a call is the program's."""
    return iv.subtract(_time_in_frames(trace, _OWN_FRAME), _time_in_frames(trace, _FROM_LISTS))


def _time_in_frames(trace: Trace, pattern: str) -> Intervals:
    rows = trace.match_rows(trace.frames, pattern) & (trace.frames.thread == loop_thread_of(trace))
    return iv.union(trace.frames.start_ns[rows], trace.frames.end_ns[rows])
