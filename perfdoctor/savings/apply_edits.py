"""Edits applied to the graph of a replay: how the lags of its edges change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.edits import Edit
from perfdoctor.savings.graph_edges import ACTIVITY, DEPENDENCY, SECOND_DEPENDENCY
from perfdoctor.savings.graph_nodes import BOUNDARY, CALL_END, CALL_START
from perfdoctor.savings.longest_path import SLOTS
from perfdoctor.savings.replay_graph import NEVER, Graph
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.rows import GpuRows


def apply_edits(graph: Graph, edits: Iterable[tuple[Edit, float]]) -> Int64Array:
    """The lags of a graph after some edits, each applied as far as its strength (0 to 1) says.

    Where two edits shorten the same item the shorter duration counts; no time is removed twice.
    """
    edits = tuple(edits)
    return LagChanges(graph, edits).lag_ns(range(len(edits)))


def lengthen_items(graph: Graph, items: GpuRows, dur_ns: Int64Array) -> Int64Array:
    """The lags of a graph whose GPU items take other times, longer ones too: a question about more work, no fix.

    Args:
        graph: The graph.
        items: The items.
        dur_ns: For each of them how long it takes, against its duration in the table.
    """
    lag_ns, nodes = graph.lag_ns.copy(), graph.nodes
    more_ns = np.zeros(len(items.table) + 1, np.int64)  # the last entry is for nodes of no item
    more_ns[items.index] = dur_ns - items.table.dur_ns[items.index]
    lag_ns[nodes.item_end, ACTIVITY] += more_ns[nodes.item]
    return lag_ns


_Limits = Iterator[tuple[Int64Array, Int64Array | int]]
"""Some edges, numbered as in the flat lags, and the most that the lag of all or of each can be."""


@frozen_dataclass(eq=False)
class _Applied:
    """An edit that was applied: the edges that it shortens with their lags before it, and what is removed after it.

    Attributes:
        number: The number of the edit.
        before: Edges, and the lags that they had.
        removed: What this edit and those before it remove of each thread, as `_CpuTime` has it.
    """

    number: int
    before: tuple[tuple[Int64Array, Int64Array], ...]
    removed: dict[int, Int32Array]


class LagChanges:
    """Edits of a graph, each worked out once: the lags after any set of them then cost what the set changes.

    An edit only shortens, so it is a list of edges and the most that the lag of each can be then. Removed time of the
    CPU is looked at together, as none is removed twice. The lags are kept between calls, since many edits are tried
    after the same ones: copying them takes as long as the replay.

    Args:
        graph: The graph.
        edits: The edits, and how far each is applied, 0 to 1.
    """

    def __init__(self, graph: Graph, edits: Sequence[tuple[Edit, float]]) -> None:
        item_at, call_at = _positions_of(graph.nodes.item), _positions_of(graph.nodes.call)
        self._limits: list[tuple[tuple[Int64Array, Int64Array | int], ...]] = [
            (*_shorten_items(graph, item_at, *each), *_unblock_calls(graph, call_at, *each)) for each in edits
        ]
        self._cpu_time = _find_cpu_time(graph, edits)
        self._lag_ns = graph.lag_ns.copy()
        self._applied: list[_Applied] = []

    def lag_ns(self, numbers: Sequence[int]) -> Int64Array:
        """The lags after some of the edits, by their numbers; the next call may write to the array."""
        while [each.number for each in self._applied] != list(numbers[: len(self._applied)]):
            for edges, before_ns in reversed(self._applied.pop().before):
                self._lag_ns.reshape(-1)[edges] = before_ns
        for number in numbers[len(self._applied) :]:
            self._applied.append(self._apply(number))
        return self._lag_ns

    def _apply(self, number: int) -> _Applied:
        removed = self._applied[-1].removed.copy() if self._applied else {}
        limits = list(self._limits[number])
        for thread, cpu_time in self._cpu_time.items():
            if number in cpu_time.removed:
                removed[thread], limit = cpu_time.remove(removed.get(thread), number)
                limits.append(limit)
        flat, before = self._lag_ns.reshape(-1), []
        for edges, limit_ns in limits:
            before.append((edges, flat[edges]))
            flat[edges] = np.minimum(flat[edges], limit_ns)
        return _Applied(number, tuple(before), removed)


def _positions_of(rows: Int32Array) -> Int32Array:
    """For each row of a table its position among these; NONE where it is not there, and for the last entry."""
    position = np.full(int(rows.max(initial=-1)) + 2, NONE, np.int32)
    position[rows] = np.arange(len(rows), dtype=np.int32)
    return position


def _edges(nodes: Int32Array, slot: int) -> Int64Array:
    """The edges of one slot of some nodes, as numbered in the flat lags."""
    return nodes.astype(np.int64) * SLOTS + slot


def _shorten_items(graph: Graph, item_at: Int32Array, edit: Edit, strength: float) -> _Limits:
    """Items take their new durations; with a strength under 1 they get only a part of the way there."""
    at = item_at.take(edit.items.index, mode="clip")
    known = at >= 0
    new_ns = np.full(len(graph.nodes.item), np.iinfo(np.int64).max)
    np.minimum.at(new_ns, at[known], edit.dur_ns[known])
    edges = _edges(graph.nodes.item_end, ACTIVITY)
    recorded_ns = graph.lag_ns.reshape(-1)[edges]
    less_ns = (np.maximum(recorded_ns - new_ns, 0) * strength).astype(np.int64)
    shorter = np.flatnonzero(less_ns)
    yield edges[shorter], recorded_ns[shorter] - less_ns[shorter]


def _unblock_calls(graph: Graph, call_at: Int32Array, edit: Edit, strength: float) -> _Limits:
    """Dropped and unblocked calls wait for nothing; dropped calls and the items that they launch take no time."""
    nodes = graph.nodes
    dropped, unblocked = (call_at.take(rows.index, mode="clip") for rows in (edit.dropped_calls, edit.unblocked_calls))
    dropped, unblocked = dropped[dropped >= 0], unblocked[unblocked >= 0]
    if strength:
        end = nodes.call_end[np.concatenate((dropped, unblocked))]
        yield np.concatenate((_edges(end, DEPENDENCY), _edges(end, SECOND_DEPENDENCY))), NEVER
    if strength < 1 or not len(dropped):
        return
    # Calls and items that begin before the window or with it are unchanged: else the window would begin earlier.
    begin_ns = nodes.time_ns[nodes.boundary[0]]
    end = nodes.call_end[dropped]
    is_dropped = np.zeros(len(nodes.call) + 1, bool)  # the last entry is for items without a launch
    is_dropped[dropped] = True
    items = is_dropped[nodes.launch] & (nodes.time_ns[nodes.item_start] > begin_ns)
    ends = np.concatenate((end[nodes.time_ns[end] > begin_ns], nodes.item_end[items]))
    yield _edges(ends, ACTIVITY), 0
    yield np.concatenate([_edges(nodes.item_start[items], slot) for slot in range(SLOTS)]), 0


def _find_cpu_time(graph: Graph, edits: Sequence[tuple[Edit, float]]) -> dict[int, _CpuTime]:
    """For each thread of which edits remove time its activities, and what each edit removes."""
    nodes, predecessor = graph.nodes, graph.predecessor[:, ACTIVITY]
    removed: dict[int, list[tuple[int, Intervals, float]]] = defaultdict(list)
    for number, (edit, strength) in enumerate(edits):
        for each in edit.removed_cpu_time:
            share = (1 - each.remaining_share) * strength
            intervals = iv.subtract(each.intervals, graph.once)
            if share and len(intervals):
                removed[each.thread].append((number, intervals, share))
    if not removed:
        return {}
    on_cpu = (nodes.kind == CALL_START) | (nodes.kind == CALL_END)
    ends = np.flatnonzero((on_cpu | (nodes.kind == BOUNDARY)) & (predecessor >= 0))
    worker = np.where(on_cpu[ends], ends, predecessor[ends])  # the node whose thread did the work
    ends, worker = ends[on_cpu[worker]], worker[on_cpu[worker]]
    thread = nodes.thread[nodes.row[worker]]
    return {number: _CpuTime(graph, ends[thread == number], of_thread) for number, of_thread in removed.items()}


class _CpuTime:
    """The activities of a thread, and the time in which edits remove a share of it.

    Time is cut into pieces where any of the edits begins or ends to remove some. What an edit removes is, for each
    piece, the number of its share among all shares in rising order, 0 for none: the largest share of several edits is
    that of the largest number.

    Args:
        graph: The graph.
        ends: The nodes that end activities of the thread.
        removed: Numbers of edits, when each removes time of the thread, and which share of it.
    """

    def __init__(self, graph: Graph, ends: Int64Array, removed: list[tuple[int, Intervals, float]]) -> None:
        ends = ends[graph.lag_ns[ends, ACTIVITY] > 0]
        nodes, predecessor = graph.nodes, graph.predecessor[ends, ACTIVITY]
        self._cut_ns = distinct(np.concatenate([intervals.ravel() for _, intervals, _ in removed]))
        end_ns = nodes.time_ns[ends]
        start_ns = np.clip(nodes.time_ns[nodes.boundary[0]], nodes.time_ns[predecessor], end_ns)
        self._activities = _Activities(
            ends * SLOTS + ACTIVITY, graph.lag_ns[ends, ACTIVITY], *self._locate(start_ns), *self._locate(end_ns)
        )
        self._piece_ns = np.append(0, np.diff(self._cut_ns))
        self._shares = np.array(sorted({0.0, *(share for _, _, share in removed)}))
        self.removed: dict[int, Int32Array] = {}
        for number, intervals, share in removed:
            change = np.zeros(len(self._cut_ns) + 2, np.int32)
            at = np.searchsorted(self._cut_ns, intervals) + 1
            np.add.at(change, at[:, 0], 1)
            np.subtract.at(change, at[:, 1], 1)
            of_pieces = np.cumsum(change[:-1], dtype=np.int32) * np.searchsorted(self._shares, share).astype(np.int32)
            self.removed[number] = np.maximum(self.removed.get(number, 0), of_pieces)
        self._shortened = {number: self._find_shortened(pieces) for number, pieces in self.removed.items()}

    def _locate(self, at_ns: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each instant the piece in which it lies, and how far inside: piece i ends at cut i, one more is last."""
        piece = np.searchsorted(self._cut_ns, at_ns, side="right")
        return piece, at_ns - self._cut_ns[piece - 1]

    def _find_shortened(self, pieces: Int32Array) -> _Activities:
        """The activities that lie in some of the pieces."""
        at = np.flatnonzero(self._overlap_ns(pieces > 0, self._activities))
        return _Activities(*(column[at] for column in self._activities))

    def remove(self, before: Int32Array | None, number: int) -> tuple[Int32Array, tuple[Int64Array, Int64Array]]:
        """What is removed after one more edit, and the most that the activities that it shortens take then.

        Args:
            before: What edits before it removed; None for nothing.
            number: The number of the edit.
        """
        pieces, shortened = self.removed[number], self._shortened[number]
        if before is not None:
            pieces = np.maximum(before, pieces)
        less_ns: FloatArray = np.zeros(len(shortened.edges))
        for share in range(len(self._shares) - 1, 0, -1):
            with_share = pieces == share
            if with_share.any():
                less_ns += self._overlap_ns(with_share, shortened) * self._shares[share]
        return pieces, (shortened.edges, np.maximum(shortened.activity_ns - less_ns.astype(np.int64), 0))

    def _overlap_ns(self, pieces: BoolArray, of: _Activities) -> Int64Array:
        """For each of some activities how much of it lies in some of the pieces; these are neither first nor last."""
        until_ns = np.zeros(len(pieces), np.int64)  # until each piece begins
        np.cumsum(self._piece_ns * pieces[:-1], out=until_ns[1:])
        before_ns = until_ns[of.start_piece] + of.start_inside_ns * pieces[of.start_piece]
        result: Int64Array = until_ns[of.end_piece] + of.end_inside_ns * pieces[of.end_piece] - before_ns
        return result


class _Activities(NamedTuple):
    """Activities of a thread: their edges, how long each takes, and where its start and end lie among the pieces."""

    edges: Int64Array
    activity_ns: Int64Array
    start_piece: Int64Array
    start_inside_ns: Int64Array
    end_piece: Int64Array
    end_inside_ns: Int64Array
