"""Slices that overlap on a track without nesting, and the side lanes that show them.

Perfetto's importer keeps slices of a track in a stack: one that begins within another and ends after it is dropped and
counted in its table `stats` (`slice_drop_overlapping_complete_event`). Kernels of one stream overlap so where the
hardware starts the next before the last has ended (programmatic launches, graphs), and so do ranges on the GPU.

Such a slice moves to a side lane, a thread of its own beside its track, and so does the end of the arrow that points to
it. Of the event only the thread id changes; what does not overlap stays byte for byte. A copy on a side lane instead,
with the original left where it is, would show each twice in chrome://tracing, which draws overlapping slices, and give
whatever else reads the file (this program, HTA) each kernel twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from perfdoctor.reporters.chrome_trace.copy_events import Changes
from perfdoctor.reporters.chrome_trace.slices import ARROW, SLICE, Slices, TrackId
from perfdoctor.reporters.chrome_trace.track_writer import metadata
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.kineto.event_columns import GPU, GPU_RANGES, KIND_OF_CATEGORY
from perfdoctor.trace.tables.nesting import parents

_ON_GPU = frozenset({GPU, GPU_RANGES})


@dataclass(frozen=True, slots=True)
class SideLane:
    """A lane beside a track: its process, its own thread id, the track's thread id, and the name to show."""

    pid: TrackId
    tid: int | str
    beside: TrackId
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class SideLanes:
    """The lanes of a text, and which of its events move there.

    Attributes:
        lanes: The lanes.
        index: The places of the events that move among the elements of the list of events, ascending.
        lane: For each of them the index of its lane.
    """

    lanes: tuple[SideLane, ...] = ()
    index: Int64Array = None  # type: ignore[assignment]
    lane: Int32Array = None  # type: ignore[assignment]

    def tid_of_moved(self) -> Mapping[int, int | str]:
        """The new thread id of each event that moves, by its place."""
        tids = [lane.tid for lane in self.lanes]
        return {index: tids[lane] for index, lane in zip(self.index.tolist(), self.lane.tolist(), strict=True)}


def find_side_lanes(slices: Slices) -> SideLanes:
    """The lanes that a viewer needs to show all slices.

    Each slice goes to the first lane of its track, and that is the track itself, where it nests in what is still open
    or overlaps nothing: by start, longest first, as Perfetto's importer goes.
    """
    level = np.zeros(len(slices), np.int32)
    _set_levels(slices, level)
    moved = np.flatnonzero(level > 0)
    if not len(moved):
        return SideLanes((), np.empty(0, np.int64), np.empty(0, np.int32))
    _move_arrows(slices, level, moved)
    moved = np.flatnonzero(level > 0)
    pairs, lane = np.unique(np.stack((slices.track[moved], level[moved])), axis=1, return_inverse=True)
    lanes = _make_lanes(slices, pairs.T.tolist())
    return SideLanes(lanes, slices.index[moved], lane.ravel().astype(np.int32))


def _set_levels(slices: Slices, level: Int32Array) -> None:
    """Set for each slice the lane of its track that it goes to; 0 is the track."""
    rows = np.flatnonzero(slices.kind == SLICE)
    rows = rows[np.lexsort((-slices.end_ns[rows], slices.start_ns[rows], slices.track[rows]))]
    start, end, track = slices.start_ns[rows], slices.end_ns[rows], slices.track[rows]
    around = parents(start, end, track)
    crossing = (around >= 0) & (end > end[around])
    if not crossing.any():
        return
    cluster = _clusters(start, end, track.astype(np.int64))
    for first, last in _bounds(cluster, np.unique(cluster[crossing])):
        level[rows[first:last]] = _levels_of(start[first:last], end[first:last])


def _clusters(start: Int64Array, end: Int64Array, track: Int64Array) -> Int64Array:
    """The number of each slice's cluster: slices of a track that follow without a pause in which none is open."""
    # On one scale for all tracks: each lies above the one before.
    low = int(start.min())
    width = int(end.max()) - low + 1
    if int(track.max()) * width >= 1 << 62:
        begins = np.concatenate(([True], track[1:] != track[:-1]))
    else:
        open_until = np.maximum.accumulate(track * width + (end - low))
        begins = np.concatenate(([True], track[1:] * width + (start[1:] - low) >= open_until[:-1]))
    return np.cumsum(begins)


def _bounds(cluster: Int64Array, wanted: Int64Array) -> list[tuple[int, int]]:
    first = np.searchsorted(cluster, wanted)
    last = np.searchsorted(cluster, wanted, side="right")
    return list(zip(first.tolist(), last.tolist(), strict=True))


def _levels_of(start: Int64Array, end: Int64Array) -> list[int]:
    """The lane of each slice of a cluster in which some overlap.

    A loop, as which lane is free depends on all before; only over what overlaps, about 1 us for each slice.
    """
    stacks: list[list[int]] = [[]]
    levels: list[int] = []
    for begin, until in zip(start.tolist(), end.tolist(), strict=True):
        for level, ends in enumerate(stacks):  # noqa: B007 - the level that was found
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or until <= ends[-1]:
                break
        else:
            level, ends = len(stacks), []
            stacks.append(ends)
        ends.append(until)
        levels.append(level)
    return levels


def _move_arrows(slices: Slices, level: Int32Array, moved: Int64Array) -> None:
    """Set the lane of the ends of arrows that lie on slices that move: by track, time, and id as far as it is known."""
    arrows = np.flatnonzero((slices.kind == ARROW) & np.isin(slices.track, slices.track[moved]))
    targets = dict(zip(_keys(slices, moved), level[moved].tolist(), strict=True))
    level[arrows] = [targets.get(key, 0) for key in _keys(slices, arrows)]


def _keys(slices: Slices, rows: Int64Array) -> list[tuple[int, int, int]]:
    columns = (slices.track[rows].tolist(), slices.start_ns[rows].tolist(), slices.id[rows].tolist())
    return list(zip(*columns, strict=True))


def _make_lanes(slices: Slices, pairs: list[list[int]]) -> tuple[SideLane, ...]:
    """The lanes for pairs of track and level; their thread ids are ones that no other thread has."""
    on_gpu = _is_on_gpu(slices)
    taken = [tid for _, tid in slices.tracks if isinstance(tid, int)]
    next_tid = max([0, *taken]) + 1
    lanes = []
    for track, level in pairs:
        pid, tid = slices.tracks[track]
        number = f" {level}" if level > 1 else ""
        if isinstance(tid, str):
            lanes.append(SideLane(pid, f"overlapping{number} on {tid}", tid, f"{tid} (overlapping{number})"))
        else:
            what = "stream" if on_gpu[track] else "thread"
            lanes.append(SideLane(pid, next_tid, tid, f"{what} {tid} (overlapping{number})"))
            next_tid += 1
    return tuple(lanes)


def _is_on_gpu(slices: Slices) -> BoolArray:
    """For each track whether it has slices of the GPU."""
    of_gpu = np.array([KIND_OF_CATEGORY.get(category) in _ON_GPU for category in slices.categories], bool)
    result = np.zeros(len(slices.tracks), bool)
    result[slices.track[of_gpu[slices.category]]] = True
    return result


def lane_names(lanes: SideLanes, changes: Changes) -> Iterator[bytes]:
    """The events that name the lanes, in the processes that those have with some changes, each beside its track."""
    for lane in lanes.lanes:
        pid = changes.pid(lane.pid)
        yield metadata("thread_name", pid, lane.tid, {"name": clean_line(lane.name)})
        if isinstance(lane.beside, int):
            yield metadata("thread_sort_index", pid, lane.tid, {"sort_index": lane.beside})
