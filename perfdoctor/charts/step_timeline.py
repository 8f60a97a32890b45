"""The timeline of the step with the median length: streams, threads, phases, idle gaps, and who launched what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, get_args

import numpy as np

from perfdoctor.analysis.timeline.account import IDLE_CAUSES
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.charts.lanes import MAX_DEPTH, depth_of, side_lanes
from perfdoctor.charts.timeline_items import MAX_ITEMS, Items, concatenate, join_short_items
from perfdoctor.gpu.kernel_rules import Category
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import Link, StepTimeline, Track
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct, occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, MEMSET, Calls, Frames, Ops, Ranges, Table

_COPY, _SET = "memcpy", "memset"
# In the order in which events at the same time contain each other.
_ON_THREADS = ("python", "annotation", "op", "call")
_CATEGORIES = tuple(
    dict.fromkeys((*get_args(Category), _COPY, _SET, *(f"idle_{each}" for each in IDLE_CAUSES), *PHASES, *_ON_THREADS))
)
_CODE = {name: code for code, name in enumerate(_CATEGORIES)}


class _Head(NamedTuple):
    """A track without its items."""

    name: str
    kind: str


def step_timeline_of(rank: Rank, max_items: int = MAX_ITEMS) -> StepTimeline | None:
    """The timeline of the step with the median length, without steps of the window; None where there is no time.

    Items that reach into it are cut at its ends. Beyond `max_items` the shorter ones are joined, see
    `join_short_items`.
    """
    step, span = _median_step(rank)
    if not len(span):
        return None
    start_ns, end_ns = span[0].tolist()
    parts = [
        *_sequence("phases", "phases", rank.phases, span),
        *_sequence("idle gaps", "gaps", _idle_parts(rank), span),
        *_streams(rank, start_ns, end_ns),
        *_marked_steps(rank, start_ns, end_ns),
        *_threads(rank, start_ns, end_ns),
    ]
    names = (*rank.trace.strings, *_CATEGORIES)
    items = []
    for number, (_, part) in enumerate(parts):
        part.track[:] = number
        # What has no name in the trace is called by its colour.
        part.name[:] = np.where(part.name == NONE, len(rank.trace.strings) + part.category.astype(np.int32), part.name)
        part.start_ns[:] = np.clip(part.start_ns, start_ns, end_ns) - start_ns
        part.end_ns[:] = np.clip(part.end_ns, start_ns, end_ns) - start_ns
        items.append(part)
    heads = [head for head, _ in parts]
    joined = join_short_items(concatenate(items), end_ns - start_ns, max_items)
    # By their texts, because codes depend on how the file was read.
    used_names = sorted(occurring(joined.name).tolist(), key=names.__getitem__)
    used_colours = occurring(joined.category).tolist()
    name_id, colour_id = _number(used_names, len(names)), _number(used_colours, len(_CATEGORIES))
    first = np.searchsorted(joined.track, np.arange(len(heads) + 1))
    return StepTimeline(
        step=step,
        start_ns=start_ns,
        span_ns=end_ns - start_ns,
        tracks=tuple(
            _track(head, joined.take(np.arange(first[number], first[number + 1])), name_id, colour_id)
            for number, head in enumerate(heads)
        ),
        names=tuple(names[code] for code in used_names),
        categories=tuple(_CATEGORIES[code] for code in used_colours),
        links=_links(rank, heads, joined, first),
        left_out=int(joined.merged[joined.merged > 1].sum()),
    )


def _median_step(rank: Rank) -> tuple[int | None, Intervals]:
    """The number of the step with the median length, counted from 1, and its time; None and the window without steps.

    Of an even number of steps it is the shorter of the two in the middle: a step that exists, not their mean.
    """
    steps = rank.steps
    if not steps.count:
        return None, rank.window[:1]
    order = np.argsort(steps.durations_ns, kind="stable")
    chosen = int(order[(steps.count - 1) // 2])
    return chosen + 1, steps.intervals[[chosen]]


def _idle_parts(rank: Rank) -> dict[str, Intervals]:
    names = (f"idle_{cause}" for cause in IDLE_CAUSES)
    return {name: rank.account.parts[name] for name in names}


def _sequence(name: str, kind: str, parts: Mapping[str, Intervals], span: Intervals) -> Iterator[tuple[_Head, Items]]:
    """The track of sets of intervals that exclude each other, a colour each; none where all are empty."""
    inside = {part: iv.intersect(time, span) for part, time in parts.items()}
    items = [_items(time[:, 0], time[:, 1], NONE, _CODE[part], NONE) for part, time in inside.items()]
    found = concatenate(items)
    if len(found):
        yield _Head(name, kind), found


def _streams(rank: Rank, start_ns: int, end_ns: int) -> Iterator[tuple[_Head, Items]]:
    """A track for each stream with the items on it; those that overlap are side by side."""
    gpu, strings = rank.trace.gpu, rank.trace.strings
    rows = _rows_during(gpu, start_ns, end_ns)
    colours = np.full(len(strings) + 1, _CODE["other"])
    for name, kernel in rank.kernel_classes.by_name.items():
        colours[name] = _CODE[kernel.category]
    kind = gpu.kind[rows]
    colour = np.where(kind == KERNEL, colours[gpu.name[rows]], np.where(kind == MEMSET, _CODE[_SET], _CODE[_COPY]))
    devices, streams = distinct(gpu.device[rows]).tolist(), distinct(gpu.stream[rows]).tolist()
    for device, stream in product(devices, streams):
        on_it = (gpu.device[rows] == device) & (gpu.stream[rows] == stream)
        if not on_it.any():
            continue
        of_it = rows[on_it]
        items = _items(gpu.start_ns[of_it], gpu.end_ns[of_it], gpu.name[of_it], colour[on_it], of_it)
        items.depth[:] = side_lanes(items.start_ns, items.end_ns)
        yield _Head(f"GPU {device}, stream {stream}" if len(devices) > 1 else f"stream {stream}", "stream"), items


def _marked_steps(rank: Rank, start_ns: int, end_ns: int) -> Iterator[tuple[_Head, Items]]:
    """The track of the profiler's marks around steps of the CPU, which may run ahead of the GPU.

    On their thread they would begin within the profiler's own functions, outlive these, and push the rest down.
    """
    ranges = rank.trace.ranges
    rows = _rows_during(ranges, start_ns, end_ns)
    rows = rows[_is_step_mark(rank)[ranges.name[rows]]]
    if len(rows):
        items = _items(ranges.start_ns[rows], ranges.end_ns[rows], ranges.name[rows], _CODE["annotation"], rows)
        items.depth[:] = side_lanes(items.start_ns, items.end_ns)
        yield _Head("steps of the CPU", "phases"), items


def _is_step_mark(rank: Rank) -> BoolArray:
    """For each string whether it names a mark of the profiler around a step."""
    return rank.trace.match_strings(rank.trace.ranges, vocabulary.PROFILER_STEP)


def _threads(rank: Rank, start_ns: int, end_ns: int) -> Iterator[tuple[_Head, Items]]:
    """A track for each thread with what it was in: Python, annotations, ops, calls; the launching thread first."""
    trace = rank.trace
    tables: tuple[Frames | Ranges | Ops | Calls, ...] = (trace.frames, trace.ranges, trace.ops, trace.calls)
    found = [_rows_during(table, start_ns, end_ns) for table in tables]
    found[1] = found[1][~_is_step_mark(rank)[trace.ranges.name[found[1]]]]
    start = np.concatenate([table.start_ns[rows] for table, rows in zip(tables, found, strict=True)])
    end = np.concatenate([table.end_ns[rows] for table, rows in zip(tables, found, strict=True)])
    name = np.concatenate([table.name[rows] for table, rows in zip(tables, found, strict=True)])
    colour = np.repeat([_CODE[each] for each in _ON_THREADS], [len(rows) for rows in found])
    thread = np.concatenate([table.thread[rows] for table, rows in zip(tables, found, strict=True)])
    thread = _with_frames_of_old_files(rank, thread, colour)
    depth = np.minimum(depth_of(nesting.parents(start, end, thread)), MAX_DEPTH)
    row = np.concatenate(found)
    busiest_first = sorted(
        occurring(thread).tolist(),
        key=lambda each: (each != rank.launching_thread, -int((thread == each).sum()), trace.threads[each]),
    )
    for number in busiest_first:
        rows = np.flatnonzero(thread == number)
        items = _items(start[rows], end[rows], name[rows], colour[rows], row[rows], depth[rows])
        label = f"thread {trace.threads[number].rpartition('/')[2]}"
        yield _Head(f"{label}, which launches" if number == rank.launching_thread else label, "thread"), items


def _with_frames_of_old_files(rank: Rank, thread: Int32Array, colour: Int64Array) -> Int32Array:
    """The thread of each event; Python's that have one of their own, as in old files, are the launching thread's."""
    frames = colour == _CODE["python"]
    others = set(occurring(thread[~frames]).tolist())
    alone = [number for number in occurring(thread[frames]).tolist() if number not in others]
    has_own = (thread[frames] == rank.launching_thread).any()
    if len(alone) != 1 or has_own or rank.launching_thread not in others:
        return thread
    return np.where(thread == alone[0], rank.launching_thread, thread).astype(np.int32)


def _rows_during(table: Table, start_ns: int, end_ns: int) -> Int64Array:
    """The rows of a table that overlap a time, or lie in it without length; in the order of the table."""
    begun, until = np.searchsorted(table.start_ns, (start_ns, end_ns)).tolist()
    return np.concatenate((np.flatnonzero(table.end_ns[:begun] > start_ns), np.arange(begun, until)))


def _items(
    start_ns: Int64Array,
    end_ns: Int64Array,
    name: IntArray | int,
    category: IntArray | int,
    row: IntArray | int,
    depth: IntArray | int = 0,
) -> Items:
    """Items of one track in the order of their starts, each by itself."""
    order, count = np.argsort(start_ns, kind="stable"), len(start_ns)

    def column(values: IntArray | int, kind: type[np.signedinteger[Any]]) -> IntArray:
        return np.broadcast_to(values, count)[order].astype(kind)

    return Items(
        np.zeros(count, np.int32),
        start_ns[order],
        end_ns[order],
        column(name, np.int32),
        column(category, np.int8),
        column(depth, np.int8),
        column(row, np.int32),
        np.ones(count, np.int32),
    )


def _number(codes: list[int], size: int) -> Int32Array:
    """For each code below `size` its position among those in use."""
    number = np.full(size, NONE, np.int32)
    number[codes] = np.arange(len(codes))
    return number


def _track(head: _Head, items: Items, name_id: Int32Array, colour_id: Int32Array) -> Track:
    return Track(
        head.name,
        head.kind,
        items.start_ns,
        items.end_ns - items.start_ns,
        name_id[items.name],
        colour_id[items.category].astype(np.int8),
        items.depth,
        items.merged,
    )


def _links(rank: Rank, heads: list[_Head], items: Items, first: Int64Array) -> Link | None:
    """An arrow from each call to each item on a stream that it launched, where both are shown by themselves."""
    call_at = np.full(len(rank.trace.calls) + 1, NONE)
    is_call = (items.category == _CODE["call"]) & (items.row >= 0)
    call_at[items.row[is_call]] = np.flatnonzero(is_call)
    on_stream = np.array([head.kind == "stream" for head in heads], bool)
    to = np.flatnonzero(on_stream[items.track] & (items.row >= 0)) if len(items) else np.empty(0, np.int64)
    launch = rank.trace.gpu.call[items.row[to]]
    start = call_at[launch]  # NONE finds the last element, which is NONE
    to, start = to[start >= 0], start[start >= 0]
    if not len(to):
        return None
    columns = (items.track[start], start - first[items.track[start]], items.track[to], to - first[items.track[to]])
    return Link(*(column.astype(np.int32) for column in columns))
