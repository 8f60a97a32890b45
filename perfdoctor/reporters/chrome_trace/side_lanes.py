"""Slices that overlap on a track without nesting, and the side lanes that show them.

Perfetto's importer keeps slices of a track in a stack: one that begins within another and ends after it is dropped and
counted in its table `stats` (`slice_drop_overlapping_complete_event`). Kernels of one stream overlap so where the
hardware starts the next before the last has ended (programmatic launches, graphs), and so do ranges on the GPU.

Such a slice moves to a side lane, a thread of its own beside its track, and so does the end of the arrow that points to
it. Of the event only the thread id changes; what does not overlap stays byte for byte. A copy on a side lane instead,
with the original left where it is, would show each twice in chrome://tracing, which draws overlapping slices, and give
whatever else reads the file (this program, HTA) each kernel twice. The stream of a kernel stands in its arguments, but
what lies in what on a thread of the CPU is known by the thread: to count with, take the original file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.reporters.chrome_trace.copy_events import Changes
from perfdoctor.reporters.chrome_trace.slices import ARROW, SLICE, Slices, TrackId
from perfdoctor.reporters.chrome_trace.track_writer import metadata
from perfdoctor.reporters.chrome_trace.viewer_times import seen_ns
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.kineto.event_columns import GPU, GPU_RANGES, KIND_OF_CATEGORY
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.nesting import parents

_ON_GPU = frozenset({GPU, GPU_RANGES})
_MAX_TID = (1 << 32) - 1


@frozen_dataclass
class SideLane:
    """A lane beside a track: its process, its own thread id, the track's thread id, and the name to show."""

    pid: TrackId
    tid: int | str
    beside: TrackId
    name: str


@frozen_dataclass(eq=False)
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
    or overlaps nothing: by start, longest first, as Perfetto's importer goes. A track whose thread id Perfetto does not
    know moves as a whole.
    """
    level = np.zeros(len(slices), np.int32)
    _set_levels(slices, level)
    _move_arrows(slices, level)
    unknown = np.array([not _is_known(tid) for _, tid in slices.tracks], bool)
    moved = np.flatnonzero((level > 0) | unknown[slices.track]) if len(slices) else np.empty(0, np.int64)
    if not len(moved):
        return SideLanes((), np.empty(0, np.int64), np.empty(0, np.int32))
    pairs, lane = np.unique(np.stack((slices.track[moved], level[moved])), axis=1, return_inverse=True)
    lanes = _make_lanes(slices, pairs.T.tolist())
    return SideLanes(lanes, slices.index[moved], lane.ravel().astype(np.int32))


def _set_levels(slices: Slices, level: Int32Array) -> None:
    """Set for each slice the lane of its track that it goes to; 0 is the track.

    It must nest there by the times of the file and by those that viewers make of them.
    """
    rows = np.flatnonzero(slices.kind == SLICE)
    rows = rows[np.lexsort((-slices.end_ns[rows], slices.start_ns[rows], slices.track[rows]))]
    track = slices.track[rows].astype(np.int64)
    exact = slices.start_ns[rows], slices.end_ns[rows]
    start = seen_ns(exact[0])
    seen = start, start + (exact[1] - exact[0])
    crossing = _crossing(*exact, track)
    if (seen[0] != exact[0]).any():
        crossing |= _crossing(*seen, track)
    if not crossing.any():
        return
    cluster = _clusters(np.minimum(exact[0], seen[0]), np.maximum(exact[1], seen[1]), track)
    columns = [*exact, *seen]
    for first, last in _bounds(cluster, distinct(cluster[crossing])):
        level[rows[first:last]] = _levels_of([column[first:last].tolist() for column in columns])


def _crossing(start: Int64Array, end: Int64Array, track: Int64Array) -> BoolArray:
    """For each slice whether it begins within another of its track and ends after that."""
    around = parents(start, end, track.astype(np.int32))
    result: BoolArray = (around >= 0) & (end > end[around])
    return result


def _clusters(start: Int64Array, end: Int64Array, track: Int64Array) -> Int64Array:
    """The number of each slice's cluster: slices of a track that follow without a pause in which none is open."""
    # On one scale for all tracks: each lies above the one before.
    low = int(start.min())
    width = int(end.max()) - low + 1
    if (int(track.max()) + 1) * width >= 1 << 62:
        begins = np.concatenate(([True], track[1:] != track[:-1]))
    else:
        open_until = np.maximum.accumulate(track * width + (end - low))
        begins = np.concatenate(([True], track[1:] * width + (start[1:] - low) >= open_until[:-1]))
    return np.cumsum(begins)


def _bounds(cluster: Int64Array, wanted: Int64Array) -> list[tuple[int, int]]:
    first = np.searchsorted(cluster, wanted)
    last = np.searchsorted(cluster, wanted, side="right")
    return list(zip(first.tolist(), last.tolist(), strict=True))


def _levels_of(times: list[list[int]]) -> list[int]:
    """The lane of each slice of a cluster in which some overlap, from its start and end, exact and as seen.

    A loop, as which lane is free depends on all before; only over clusters with overlap, at 1 us a slice.
    """
    stacks: list[list[tuple[int, int]]] = [[]]
    levels: list[int] = []
    for start, end, seen_start, seen_end in zip(*times, strict=True):
        for level, ends in enumerate(stacks):  # noqa: B007 - the level that was found
            while ends and ends[-1][0] <= start and ends[-1][1] <= seen_start:
                ends.pop()
            if not ends or not (start < ends[-1][0] < end or seen_start < ends[-1][1] < seen_end):
                break
        else:
            level, ends = len(stacks), []
            stacks.append(ends)
        ends.append((end, seen_end))
        levels.append(level)
    return levels


def _is_known(tid: TrackId) -> bool:
    """Whether Perfetto knows a thread id: events with another number it takes for those of the process's main thread.

    Older profilers print the pthread id as a signed number.
    """
    return not isinstance(tid, int) or 0 <= tid <= _MAX_TID


def _move_arrows(slices: Slices, level: Int32Array) -> None:
    """Set the lane of the ends of arrows that lie on slices that move: by track, time, and id as far as it is known."""
    moved = np.flatnonzero(level > 0)
    if not len(moved):
        return
    arrows = np.flatnonzero((slices.kind == ARROW) & np.isin(slices.track, slices.track[moved]))
    targets = dict(zip(_keys(slices, moved), level[moved].tolist(), strict=True))
    level[arrows] = [targets.get(key, 0) for key in _keys(slices, arrows)]


def _keys(slices: Slices, rows: Int64Array) -> list[tuple[int, int, int]]:
    columns = (slices.track[rows].tolist(), slices.start_ns[rows].tolist(), slices.id[rows].tolist())
    return list(zip(*columns, strict=True))


def _make_lanes(slices: Slices, pairs: list[list[int]]) -> tuple[SideLane, ...]:
    """The lanes for pairs of track and level; their thread ids are ones that no other thread has."""
    on_gpu = _is_on_gpu(slices)
    taken = {tid for _, tid in slices.tracks if isinstance(tid, int)}
    last = max((tid for tid in taken if _is_known(tid)), default=0)
    free = (tid for tid in count(last + 1 if last < _MAX_TID // 2 else 1) if tid not in taken)
    lanes = []
    for track, level in pairs:
        pid, tid = slices.tracks[track]
        number = f" {level}" if level > 1 else ""
        note = f" (overlapping{number})" if level else ""
        if isinstance(tid, str):
            lanes.append(SideLane(pid, f"overlapping{number} on {tid}", tid, f"{tid}{note}"))
        else:
            what = "stream" if on_gpu[track] else "thread"
            lanes.append(SideLane(pid, next(free), tid, f"{what} {tid}{note}"))
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
