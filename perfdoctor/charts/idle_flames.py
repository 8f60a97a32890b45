"""What the launching threads were in while the GPU had nothing to do, as a flame graph.

Frames, annotations, ops and calls lie within each other. The stack of an instant is all that is open then; the same
stack is one node of the tree, however often it comes. A node's time is the idle time in which it was open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.hot_path import Runs, find_runs
from perfdoctor.analysis.timeline.account import IDLE_CAUSES
from perfdoctor.charts.lanes import depth_of
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import FlameGraph
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.intervals import Intervals

CATEGORIES = ("python", "annotation", "op", "call", "thread")
"""The colours of nodes: the first four in the order of the tables of `find_runs`."""
_THREAD = CATEGORIES.index("thread")
# Nodes with less of the idle time are narrower than a pixel; more of them than this make a page slow.
_MIN_SHARE = 0.0005
_MAX_NODES = 4_000
# In files that round to microseconds calls end up to this much after the one around them.
_ROUNDING_NS = 2_000
# The same stack of another step is the same stack, and what a capture puts around a program's functions is none of it.
_LEFT_OUT = tuple(map(re.compile, (vocabulary.PROFILER_STEP, vocabulary.COUNTED_STEP, vocabulary.RECORDER_FRAME)))


class _Nodes(NamedTuple):
    """Nodes of the tree, parents before their children; `parent` of roots is -1."""

    name: Int64Array
    parent: Int64Array
    time_ns: Int64Array
    category: Int64Array


def idle_flames_of(rank: Rank) -> FlameGraph | None:
    """The flame graph of the idle time in a rank's window; None where there is none, or no launch is known.

    The roots are the threads that launched what ended the idle time; their times add up to all of it. Where no child
    covers a root, nothing was recorded on the CPU. A capture has Python's functions in its evidence window only: then
    the stacks are those of that window, and their times shares of its idle time.

    Of a program on the CPU alone the root is the thread with the most ops, and all of the window counts.
    """
    idle_ns = sum(map(iv.total, _time_by_thread(rank).values()))
    if not idle_ns:
        return None
    source, evidence = rank, rank.evidence
    if not len(rank.trace.frames) and evidence is not None and len(evidence.trace.frames) and _time_by_thread(evidence):
        source = evidence
    idle = _time_by_thread(source)
    runs = find_runs(source.trace, idle)
    threads = [f"thread {source.trace.threads[thread].rpartition('/')[2]}" for thread in idle]
    graph = _flame_graph(_shorten(_nodes_of(runs, idle)), (*runs.names, *threads), rank.per_step(idle_ns))
    return replace(graph, is_idle_time=rank.device_kind == "gpu")


def _time_by_thread(rank: Rank) -> dict[int, Intervals]:
    """When the GPU of a rank was idle in the window, by the thread that launched what ended it.

    Where that is not known it is the launching thread, that of most items. The threads are in order. Of a program on
    the CPU alone it is all of the window, by the thread with the most ops.
    """
    usual, ops = rank.launching_thread, rank.trace.ops
    if rank.device_kind == "cpu" and len(ops) and len(rank.window):
        counts = np.bincount(ops.thread[iv.contains(rank.window, ops.start_ns)], minlength=1)
        return {max(range(len(counts)), key=lambda each: (counts[each], rank.trace.threads[each])): rank.window}
    if rank.device_kind != "gpu" or usual < 0:
        return {}
    rest = iv.union_of(rank.account.parts[f"idle_{cause}"] for cause in IDLE_CAUSES)
    gaps, found = rank.gaps, {}
    thread = np.where(gaps.launch >= 0, rank.trace.calls.thread[gaps.launch], usual)
    for number in occurring(thread[thread != usual]).tolist():
        of_thread = thread == number
        found[number] = iv.intersect(rest, iv.union(gaps.start_ns[of_thread], gaps.end_ns[of_thread]))
        rest = iv.subtract(rest, found[number])
    return {number: idle for number, idle in sorted({usual: rest, **found}.items()) if len(idle)}


def _nodes_of(runs: Runs, idle: Mapping[int, Intervals]) -> _Nodes:
    """The tree of some runs: those of one name within one node are one node. Roots are the threads, after all names."""
    # Of runs at the same time the first is around the next: by table and name, as a file has no order.
    rows = np.lexsort((runs.name, runs.table, -runs.end_ns, runs.start_ns))
    is_left_out = np.array([any(pattern.search(name) for pattern in _LEFT_OUT) for name in runs.names], bool)
    rows = rows[~is_left_out[runs.name[rows]]]
    start, end, name = runs.start_ns[rows], runs.end_ns[rows], runs.name[rows]
    root = np.searchsorted(list(idle), runs.lane[rows])
    parent, start = _stack(start, end, nesting.parents(start, end, runs.lane[rows]))
    codes, count = len(runs.names) + len(idle), len(idle)
    node_of = np.empty(len(rows), np.int64)
    keys = [NONE * codes + len(runs.names) + np.arange(count)]  # of each node that of its parent, and its name
    colours = [np.full(count, _THREAD)]
    for level in _levels(parent):
        above, up = root[level], parent[level]
        if up[0] >= 0:
            # What reaches out of its parent counts only within it: children never exceed their parent.
            start[level], end[level] = np.maximum(start[level], start[up]), np.minimum(end[level], end[up])
            above = node_of[up]
        found, first, which = np.unique(above * codes + name[level], return_index=True, return_inverse=True)
        node_of[level] = count + which
        count += len(found)
        keys.append(found)
        colours.append(runs.table[rows[level[first]]].astype(np.int64))
    time_ns = np.zeros(count, np.int64)
    for number, time in enumerate(idle.values()):
        time_ns[number] = iv.total(time)
        of_thread = np.flatnonzero(root == number)
        inside_ns = iv.overlap(start[of_thread], end[of_thread], time)
        time_ns += np.bincount(node_of[of_thread], inside_ns, count).astype(np.int64)
    key = np.concatenate(keys)
    return _Nodes(key % codes, key // codes, time_ns, np.concatenate(colours))


def _stack(start: Int64Array, end: Int64Array, open_at_start: Int32Array) -> tuple[Int32Array, Int64Array]:
    """For each run the innermost one around all of it, and where it begins once all that it outlives has ended.

    A range may be closed by the function that is called next, so that it ends within that. For example::

        range     0 to 10            range     0 to 10
          backward  8 to 100    ->   backward  10 to 100

    `open_at_start` is for each the row of the innermost run in which it starts, see `nesting.parents`.
    """
    parent, start = open_at_start.copy(), start.copy()
    rows = np.flatnonzero(parent >= 0)
    while len(rows := rows[end[parent[rows]] + _ROUNDING_NS < end[rows]]):
        start[rows] = np.maximum(start[rows], end[parent[rows]])
        parent[rows] = open_at_start[parent[rows]]
        rows = rows[parent[rows] >= 0]
    return parent, start


def _levels(parent: Int32Array) -> list[Int64Array]:
    """The rows at each depth, the outermost first."""
    depth = depth_of(parent)
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []


def _shorten(nodes: _Nodes) -> _Nodes:
    """The widest nodes; a parent is as wide as its children, and stands before them, so none loses its parent."""
    order = np.argsort(-nodes.time_ns, kind="stable")[:_MAX_NODES]
    min_ns = max(_MIN_SHARE * nodes.time_ns[nodes.parent == NONE].sum(), 1)
    kept = np.sort(order[nodes.time_ns[order] >= min_ns])
    number = np.full(len(nodes.name) + 1, NONE)
    number[kept] = np.arange(len(kept))
    return _Nodes(nodes.name[kept], number[nodes.parent[kept]], nodes.time_ns[kept], nodes.category[kept])


def _flame_graph(nodes: _Nodes, names: tuple[str, ...], whole_ns: int) -> FlameGraph:
    """The tree depth first, the widest child first, of equals by name, with roots of `whole_ns` together."""
    used, name_id = np.unique(nodes.name, return_inverse=True)
    texts = tuple(names[code] for code in used.tolist())
    children: dict[int, list[int]] = {}
    time_ns, parent = nodes.time_ns.tolist(), nodes.parent.tolist()
    for node in sorted(range(len(time_ns)), key=lambda node: (-time_ns[node], texts[name_id[node]])):
        children.setdefault(parent[node], []).append(node)
    order: list[int] = []
    open_nodes = children.get(NONE, [])[::-1]
    while open_nodes:
        order.append(open_nodes.pop())
        open_nodes += reversed(children.get(order[-1], []))
    position = np.full(len(order) + 1, NONE)
    position[order] = np.arange(len(order))
    scale = whole_ns / int(nodes.time_ns[nodes.parent == NONE].sum())
    return FlameGraph(
        texts,
        name_id[order].astype(np.int32),
        position[nodes.parent[order]].astype(np.int32),
        np.rint(nodes.time_ns[order] * scale).astype(np.int64),
        nodes.category[order].astype(np.int8),
        CATEGORIES,
    )
