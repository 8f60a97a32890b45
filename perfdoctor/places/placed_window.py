"""A window of a rank with the place of each of its pieces, and how two windows of a program are reconciled.

Where lines were recorded in another window than the one that is timed, the timed one says how long each cause and each
part of the loop takes, and the one with lines says where within it: what is alike in both (part of the loop, op that
Python called, op inside) is split over the lines in the proportion in which it takes them there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.host.module_tree import ModuleTree
from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.places.name_places import BETWEEN, PHASES, Labels, find_entries, find_lines, label_pieces, name_places
from perfdoctor.places.pieces import Pieces, charge_engine
from perfdoctor.places.place import PlaceName
from perfdoctor.places.python_loops import join_loops
from perfdoctor.trace.arrays import Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

What: TypeAlias = tuple[int, str, str]
"""Part of the loop, op that Python called, innermost op."""


class Cells(NamedTuple):
    """Time by what it is: a row for each part of the loop, outer op, inner op, cause and place that occur together."""

    what: list[What]
    cause: list[int]
    place: list[PlaceName]
    ns: list[int]


@frozen_dataclass(eq=False)
class PlacedWindow:
    """A window of a rank with the place of each of its pieces.

    Attributes:
        trace: Its trace.
        joins: The forward ops of its backward passes.
        pieces: The pieces.
        labels: What they are.
        places: The places, each once.
        place: For each piece the number of its place.
        entry: For each Python frame the call of a library's function that it is in, see `find_entries`.
        steps: Its steps; the window where there are none.
        step_count: How many steps these are; without any the window counts as one.
    """

    trace: Trace
    joins: ForwardOps
    pieces: Pieces
    labels: Labels
    places: Sequence[PlaceName]
    place: Int64Array
    entry: Int64Array
    steps: Intervals
    step_count: int

    def tally(self, rows: Int64Array | slice = slice(None)) -> Cells:
        """The time of some pieces, or of all, by what it is and by place."""
        labels = self.labels
        sizes = len(PHASES), len(labels.names), len(labels.names), len(DETAILS), len(self.places)
        columns = labels.phase[rows], labels.outer[rows], labels.inner[rows], self.pieces.cause[rows], self.place[rows]
        flat = np.ravel_multi_index(columns, sizes) if len(columns[0]) else np.empty(0, np.int64)
        keys, row = np.unique(flat, return_inverse=True)
        ns = np.zeros(len(keys), np.int64)
        np.add.at(ns, row, self.pieces.time_ns[rows])
        phase, outer, inner, cause, place = (each.tolist() for each in np.unravel_index(keys, sizes))
        what = [(p, labels.names[o], labels.names[i]) for p, o, i in zip(phase, outer, inner, strict=True)]
        return Cells(what, cause, [self.places[each] for each in place], ns.tolist())

    @cached_property
    def all_cells(self) -> Cells:
        """The time of the window."""
        return self.tally()

    def ops_at(self, place: PlaceName) -> Int64Array:
        """The ops that Python calls at a place in the window, rows of `trace.ops`.

        At a line those below the recorder's hooks count, too, whose time is left out of the pieces.
        """
        rows, names, code = self._called_ops
        if place.kind != "line":
            names, code = list(self.places), self.place
            rows = self.labels.outer_op.astype(np.int64)
        found = distinct(rows[np.isin(code, [number for number, each in enumerate(names) if each == place])])
        return found[found >= 0]

    @cached_property
    def _called_ops(self) -> tuple[Int64Array, list[PlaceName], IntArray]:
        """The outermost ops of the window, the lines that call them, and for each the number of its line."""
        ops = self.trace.ops
        rows = np.flatnonzero((ops.parent < 0) & iv.contains(self.steps, ops.start_ns))
        return rows, *find_lines(self.trace, self.joins, ops.start_ns[rows], ops.thread[rows], rows)

    def find_line(
        self, at_ns: Int64Array, thread: IntArray, op: IntArray, time_ns: Int64Array
    ) -> SourceLocation | None:
        """The line to which most of some work belongs, in the window or not; see `find_lines`. None if not known."""
        names, code = find_lines(self.trace, self.joins, at_ns, thread, op)
        known = code >= 0
        sums_ns = np.bincount(code[known], time_ns[known], len(names)).tolist()
        lines = [
            (ns, name.short, name.location) for ns, name in zip(sums_ns, names, strict=True) if name.kind == "line"
        ]
        return max(lines, key=lambda each: each[:2])[2] if lines else None


def place_window(
    trace: Trace,
    joins: ForwardOps,
    modules: ModuleTree,
    pieces: Pieces,
    *,
    steps: Intervals,
    step_count: int,
    loading: Intervals,
    is_split: bool = False,
) -> PlacedWindow:
    """A window with the places of its pieces; `loading` is when the loop waits for its DataLoader.

    `is_split` where another window has the lines of this one, or the times.
    """
    pieces = charge_engine(trace, joins, pieces.cut_at(steps))
    labels = label_pieces(trace, joins, pieces, loading, with_neighbours=is_split)
    places, place = name_places(trace, joins, modules, pieces, labels)
    entry = find_entries(trace)
    place = join_loops(trace, joins, pieces, places, place, entry=entry, steps=steps, step_count=step_count)
    return PlacedWindow(trace, joins, pieces, labels, places, place, entry, steps, step_count)


def weigh_places(lines: Cells) -> Mapping[tuple[object, ...], dict[PlaceName, int]]:
    """The time of a window at each place, by what its cells may have in common with those of another."""
    weights: dict[tuple[object, ...], dict[PlaceName, int]] = defaultdict(lambda: defaultdict(int))
    for what, cause, place, ns in zip(*lines, strict=True):
        for key in _keys(what, cause):
            weights[key][place] += ns
    return {key: places for key, places in weights.items() if any(places.values())}


def move_to_lines(cells: Cells, weights: Mapping[tuple[object, ...], dict[PlaceName, int]]) -> Cells:
    """The cells with their time at the places that the same time has in another window, which knows more of them.

    `weights` are those of the other window, see `weigh_places`. Of each cell the most that both windows have in common
    decides: all of what it is and its cause, then what it is, the op that Python called, the part of the loop. The time
    of each cell is kept to the nanosecond.
    """

    def shares_of(what: What, cause: int, place: PlaceName) -> Mapping[PlaceName, int]:
        return next((weights[key] for key in _keys(what, cause) if key in weights), {place: 1})

    return share_cells(cells, shares_of)


def share_cells(cells: Cells, shares_of: Callable[[What, int, PlaceName], Mapping[PlaceName, int]]) -> Cells:
    """The cells with the time of each apportioned to some places by weights; it is kept to the nanosecond."""
    moved = Cells([], [], [], [])
    for what, cause, place, ns in zip(*cells, strict=True):
        shares = shares_of(what, cause, place)
        for each, part_ns in zip(shares, apportion(ns, list(shares.values())), strict=True):
            if part_ns:
                moved.what.append(what)
                moved.cause.append(cause)
                moved.place.append(each)
                moved.ns.append(part_ns)
    return moved


def _keys(what: What, cause: int) -> tuple[tuple[object, ...], ...]:
    """What cells of two windows may have in common, the most first."""
    phase, outer, inner = what
    if inner.startswith(BETWEEN):  # how long it takes decides on its cause, and stacks lengthen it
        return (what, (outer, inner), ((phase, outer), cause), (phase, outer), (phase,))
    return ((*what, cause), (phase, outer, inner), (phase, outer), (phase,))


def apportion(whole: int, weights: Sequence[int]) -> list[int]:
    """A whole number in parts that are in proportion to weights and add up to it: the largest remainders get one more.

    Without any weight the first part is all of it.
    """
    total = sum(weights)
    if not total:
        return [whole, *([0] * (len(weights) - 1))] if weights else []
    parts = [whole * weight // total for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: -(whole * weights[i] % total))
    for i in order[: whole - sum(parts)]:
        parts[i] += 1
    return parts
