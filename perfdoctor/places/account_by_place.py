"""The account by place and cause: a two-way table of a rank's window that adds up exactly, both ways.

It is what everybody asks for lines: the report for the places of a step, and rules for the line of some work.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation, find_locations, innermost_frame, is_in_library_code
from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.facts.forms import MeasuredForm
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.places.answer_questions import CallCounts, answer_by_forms, answer_questions
from perfdoctor.places.name_places import BETWEEN, PHASES, CalledFunctions, called_functions, find_lines, name_call
from perfdoctor.places.place import OUTSIDE, Place, PlaceName, Within, WithinKind
from perfdoctor.places.placed_window import Cells, PlacedWindow, What, apportion, move_to_lines, weigh_places
from perfdoctor.places.worker_waits import Shares, move_to_workers
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals

MAX_PLACES = 40
"""Places of a rank in a report: the largest; the others are one row."""
_MAX_WITHIN = 4
# What holds less of the time of a place is not named.
_MIN_WITHIN_SHARE = 0.1
# Of the ops inside of those that a place calls the largest is named, where it has this share of its time.
_MIN_INNER_SHARE = 0.3
# One that runs as often as what calls it says no more: a `linear` is an `addmm`.
_MIN_INNER_CALLS = 1.5


class Stack(NamedTuple):
    """A part of the loop, a place in it, the op or the library's function that it calls, and the innermost op."""

    phase: str
    place: PlaceName
    kind: WithinKind
    called: str
    inner: str


@frozen_dataclass(eq=False)
class PlaceAccount:
    """The account of a rank's window by place and cause.

    Attributes:
        timed: The window that is timed.
        lined: The window that has lines: the same one, or the evidence window.
        step_ns: The mean step without the profiler: what the places of a report add up to.
        rank: The rank's number.
        workers: Where the workers of its loaders are, see `shares_of_workers`.
        made_at: By the line that calls an optimizer's `step` the line that made it.
        forms: Other forms of its calls that were measured.
    """

    timed: PlacedWindow
    lined: PlacedWindow
    step_ns: int
    rank: int | None = None
    workers: Shares = field(default_factory=dict)
    made_at: Mapping[tuple[str | None, int | None], SourceLocation] = field(default_factory=dict)
    forms: Sequence[MeasuredForm] = ()

    @cached_property
    def cells(self) -> Cells:
        """The time of the window by what it is, cause and place."""
        return self.locate(self.timed.all_cells)

    def locate(self, cells: Cells) -> Cells:
        """Cells of the timed window with the places of the window that has lines."""
        cells = cells if self.lined is self.timed else move_to_lines(cells, self._weights)
        return move_to_workers(cells, self.workers) if self.workers else cells

    @cached_property
    def _weights(self) -> Mapping[tuple[object, ...], dict[PlaceName, int]]:
        return weigh_places(self.lined.all_cells)

    @cached_property
    def window_ns(self) -> dict[PlaceName, dict[str, int]]:
        """For each place its time in the window by cause; it adds up to the account, in all and by cause."""
        return _sum_by_place(self.cells)

    def of_step(self, number: int) -> dict[PlaceName, dict[str, int]]:
        """The same of one recorded step; it adds up to its length in the window."""
        rows = self.timed.pieces.within(self.timed.steps[number : number + 1])
        return _sum_by_place(self.locate(self.timed.tally(rows)))

    def per_step(self, ns: int) -> int:
        """Time in the window as time a step."""
        return round(ns * self.step_ns / self._whole_ns) if self._whole_ns else 0

    @cached_property
    def _whole_ns(self) -> int:
        return sum(self.cells.ns)

    def places_of(self, rows: Int64Array) -> list[tuple[PlaceName, int]]:
        """Where some pieces of the timed window are, with their time in it, the largest first."""
        sums: dict[PlaceName, int] = defaultdict(int)
        for _, _, place, ns in zip(*self.locate(self.timed.tally(rows)), strict=True):
            sums[place] += ns
        return sorted(sums.items(), key=lambda item: (-item[1], item[0].short))

    def ops_of(self, rows: Int64Array) -> list[tuple[str, int]]:
        """The innermost ops in which some pieces of the timed window lie, with their time in it, the largest first."""
        sums: dict[str, int] = defaultdict(int)
        for what, _, _, ns in zip(*self.timed.tally(rows), strict=True):
            if not what[2].startswith(BETWEEN):
                sums[what[2]] += ns
        sums.pop("", None)
        return sorted(sums.items(), key=lambda item: -item[1])

    def rows(self, most: int = MAX_PLACES) -> tuple[Place, ...]:
        """The places of a step, the largest first; all but the first `most` are one row.

        They add up to the step exactly.
        """
        table = self.window_ns
        order = sorted(table, key=lambda place: (-sum(table[place].values()), place.short))
        named = [place for place in order if place != OUTSIDE][:most]
        rest = [place for place in order if place not in set(named)]
        causes = [table[place] for place in named]
        if rest:
            causes.append({name: sum(table[place][name] for place in rest) for name in DETAILS})
            named.append(OUTSIDE)
        # First the step by cause, then each cause by place: so both ways add up.
        totals = [sum(row[name] for row in causes) for name in DETAILS]
        by_cause = [
            apportion(step_ns, [row[name] for row in causes])
            for name, step_ns in zip(DETAILS, apportion(self.step_ns, totals), strict=True)
        ]
        rows = []
        for number, place in enumerate(named):
            of_place = {name: by_cause[i][number] for i, name in enumerate(DETAILS)}
            ns = sum(of_place.values())
            within = self.within(place)
            backward_ns = self.per_step(self.by_phase[place]["backward"]) if place in self.by_phase else 0
            rows.append(
                Place(
                    rank=self.rank,
                    file=place.file,
                    line=place.line,
                    function=place.function,
                    source=None,
                    module=place.module,
                    annotation=place.annotation,
                    kind=place.kind,
                    ns=ns,
                    share=min(ns / self.step_ns, 1.0) if self.step_ns else None,
                    causes=of_place,
                    backward_ns=min(backward_ns, ns),
                    calls=max((each.calls for each in within), default=None),
                    within=within,
                    answers=(
                        *answer_questions(within, self._counts.get(place, _NO_COUNTS).outer),
                        *answer_by_forms(self.forms, place, ns),
                    ),
                )
            )
        return tuple(sorted(rows, key=lambda row: -row.ns))

    @cached_property
    def by_phase(self) -> dict[PlaceName, dict[str, int]]:
        """For each place its time in the window by part of the loop."""
        sums: dict[PlaceName, dict[str, int]] = {}
        for what, _, place, ns in zip(*self.cells, strict=True):
            sums.setdefault(place, dict.fromkeys(PHASES, 0))[PHASES[what[0]]] += ns
        return sums

    def in_phase(self, phase: str) -> list[tuple[PlaceName, int]]:
        """The places that take time in a part of the loop, with that time in the window, the largest first."""
        found = [(place, phases[phase]) for place, phases in self.by_phase.items() if phases[phase]]
        return sorted(found, key=lambda item: (-item[1], item[0].short))

    def main_phase_of(self, place: PlaceName) -> str:
        """The part of the loop that takes most of a place."""
        phases = self.by_phase.get(place, {})
        return max(phases, key=lambda phase: phases[phase], default="other")

    # --- the line of some work, for rules: that which most of it belongs to, backward work to the line of its forward
    # op; None where the recording does not tell -----------------------------------------------------------------------

    def line_in(self, time: Intervals) -> SourceLocation | None:
        """The line of some time of the window."""
        return self._line_of_pieces(self.timed.pieces.within(time))

    def line_of_ops(self, rows: BoolArray | Int64Array) -> SourceLocation | None:
        """The line of some ops (a mask, or rows of the timed trace's `ops`) and of what runs inside them."""
        ops = self.timed.trace.ops
        op = np.arange(len(ops))[rows]
        inside = np.append(nesting.match_within(ops.parent, np.isin(np.arange(len(ops)), op)), False)
        return self._line_of_pieces(np.flatnonzero(inside[self.timed.pieces.op])) or self.timed.find_line(
            ops.start_ns[op], ops.thread[op], op, ops.dur_ns[op]
        )

    def is_in_library(self, rows: Int64Array) -> bool:
        """Whether most of the time of some ops, rows of the timed trace's `ops`, is called by a library's code."""
        ops = self.timed.trace.ops
        inside = is_in_library_code(self.timed.trace, ops.thread[rows], ops.start_ns[rows])
        return bool(2 * ops.dur_ns[rows[inside]].sum() > ops.dur_ns[rows].sum())

    def line_of_items(self, rows: BoolArray | Int64Array) -> SourceLocation | None:
        """The line that launched some GPU items (a mask, or rows of the timed trace's `gpu`)."""
        gpu, pieces = self.timed.trace.gpu, self.timed.pieces
        chosen = np.zeros(len(gpu) + 1, bool)
        chosen[:-1][rows] = True
        rows = np.flatnonzero(chosen[:-1])
        at_ns, thread = launch_instants(self.timed.trace)
        return self._line_of_pieces(np.flatnonzero(chosen[pieces.item])) or self.timed.find_line(
            at_ns[rows], thread[rows], gpu.op[rows], gpu.dur_ns[rows]
        )

    def lines_of_items(self, rows: Int64Array) -> list[SourceLocation | None]:
        """For each of some GPU items the line that launched it; else that of those with the same name and size."""
        trace = self.timed.trace
        gpu, (at_ns, thread) = trace.gpu, launch_instants(trace)
        names, code = find_lines(trace, self.timed.joins, at_ns[rows], thread[rows], gpu.op[rows])
        lines = [name.location if name.kind == "line" else None for name in names] + [None]  # code NONE finds the last
        found = [lines[each] for each in code.tolist()]
        lost = np.flatnonzero([each is None for each in found])
        if self.lined is not self.timed and len(lost):
            _, alike = np.unique(np.column_stack((gpu.name, gpu.bytes))[rows[lost]], axis=0, return_inverse=True)
            of_group = [self.line_of_items(rows[lost][alike.ravel() == each]) for each in range(alike.max() + 1)]
            for row, group in zip(lost.tolist(), alike.ravel().tolist(), strict=True):
                found[row] = of_group[group]
        return found

    def line_of_calls(self, rows: BoolArray | Int64Array) -> SourceLocation | None:
        """The line that makes some runtime calls (a mask, or rows of the timed trace's `calls`)."""
        calls = self.timed.trace.calls
        return self.timed.find_line(calls.start_ns[rows], calls.thread[rows], calls.op[rows], calls.dur_ns[rows])

    def line_of_named(self, pattern: str | re.Pattern[str]) -> SourceLocation | None:
        """The line of the ranges whose name matches, else of the ops; the first window that has one tells it."""
        for window in (self.timed, self.lined):
            for table in (window.trace.ranges, window.trace.ops):
                rows = np.flatnonzero(window.trace.match_rows(table, pattern))
                op = rows if table is window.trace.ops else np.full(len(rows), NONE)
                line = window.find_line(table.start_ns[rows], table.thread[rows], op, table.dur_ns[rows])
                if line is not None:
                    return line
        return None

    def lines_at(self, thread: Int32Array, at_ns: Int64Array) -> list[SourceLocation | None]:
        """For each instant and thread of the timed trace the line that was executing."""
        return find_locations(self.timed.trace, thread, at_ns)

    def _line_of_pieces(self, rows: Int64Array) -> SourceLocation | None:
        """The line of some pieces: of those of a backward pass without forward ops only where there are no others."""
        op, joins = self.timed.pieces.op[rows], self.timed.joins
        node = np.append(joins.node, np.int32(NONE))[op]
        written = ~np.append(joins.in_backward, False)[op] | (np.append(joins.forward, NONE)[node] >= 0)
        for some in (rows[written], rows):
            line = next((place.location for place, _ in self.places_of(some) if place.kind == "line"), None)
            if line is not None:
                return line
        return None

    # --- what stands below a place ------------------------------------------------------------------------------------

    def within(self, place: PlaceName) -> tuple[Within, ...]:
        """What holds the time of a place: what its code calls, and the op inside that has most of it."""
        outer: dict[str, int] = defaultdict(int)
        inner: dict[str, int] = defaultdict(int)
        for what, ns in self._contents.get(place, ()):
            outer[what[1]] += ns
            if not what[2].startswith(BETWEEN):
                inner[what[2]] += ns
        total = sum(outer.values())
        found: list[Within] = []
        counts = self._counts.get(place, _NO_COUNTS)
        for name, ns in sorted(outer.items(), key=lambda item: -item[1]):
            if ns < _MIN_WITHIN_SHARE * total:
                continue
            if name:
                op = counts.outer.get(name)
                calls, inside = (0.0, 0.0) if op is None else (op.calls, op.inner_ops)
                found.append(Within(name, "op", calls, inside, self.per_step(ns)))
            else:
                found += self._functions_of(place, counts, ns, _MIN_WITHIN_SHARE * total)
        largest = max(inner, key=lambda name: inner[name], default="")
        calls = counts.inner.get(largest, 0.0)
        is_many = calls > _MIN_INNER_CALLS * max((each.calls for each in found), default=0.0)
        if largest and largest not in outer and is_many and inner[largest] >= _MIN_INNER_SHARE * total:
            found.append(Within(largest, "op", calls, 0, self.per_step(inner[largest])))
        return tuple(found[:_MAX_WITHIN])

    def _functions_of(self, place: PlaceName, counts: _Counts, ns: int, min_ns: float) -> list[Within]:
        made_at, found = self.made_at.get((place.file, place.line)), []
        for name, part in _split_by_function(counts, ns):
            if name and part >= min_ns:
                short = name_call(name)
                if made_at is not None and short.endswith(".step"):
                    short += f" (made at {made_at.short})"
                found.append(Within(short, "function", counts.functions[name][0], 0, self.per_step(part)))
        return found

    def stacks(self) -> dict[Stack, int]:
        """The time of the window by part of the loop, place, what that calls, and the innermost op; it adds up to it.

        A name is "" where there is none: a place's own code.
        """
        sums: dict[Stack, int] = defaultdict(int)
        for (phase, outer, inner), _, place, ns in zip(*self.cells, strict=True):
            if outer:
                sums[Stack(PHASES[phase], place, "op", outer, inner)] += ns
                continue
            for name, part in _split_by_function(self._counts.get(place, _NO_COUNTS), ns):
                sums[Stack(PHASES[phase], place, "function", name and name_call(name), "")] += part
        return sums

    @cached_property
    def _contents(self) -> Mapping[PlaceName, list[tuple[What, int]]]:
        """For each place what it is, with the time of it."""
        by_place: dict[PlaceName, list[tuple[What, int]]] = defaultdict(list)
        for what, _, place, ns in zip(*self.cells, strict=True):
            by_place[place].append((what, ns))
        return by_place

    @cached_property
    def _counts(self) -> Mapping[PlaceName, _Counts]:
        return _count_calls(self.lined)


def _sum_by_place(cells: Cells) -> dict[PlaceName, dict[str, int]]:
    table: dict[PlaceName, dict[str, int]] = {}
    for _, cause, place, ns in zip(*cells, strict=True):
        row = table.setdefault(place, dict.fromkeys(DETAILS, 0))
        row[DETAILS[cause]] += ns
    return table


class _Counts(NamedTuple):
    """What a place calls, a step.

    Attributes:
        outer: By op that Python called.
        inner: By innermost op how often.
        functions: By function how often, and how much time of the window lies in it outside of ops; "" for own code.
    """

    outer: dict[str, CallCounts]
    inner: dict[str, float]
    functions: dict[str, tuple[float, int]]


_NO_COUNTS = _Counts({}, {}, {})


def _split_by_function(counts: _Counts, ns: int) -> list[tuple[str, int]]:
    """Time in which no op runs by what the code calls then; its shares are those of the window with lines."""
    names = sorted(counts.functions, key=lambda name: -counts.functions[name][1]) or [""]
    weights = [counts.functions[name][1] for name in names] if counts.functions else [1]
    return list(zip(names, apportion(ns, weights), strict=True))


def _count_calls(window: PlacedWindow) -> dict[PlaceName, _Counts]:
    """How often each place calls what, in the window that has lines."""
    labels, pieces, ops = window.labels, window.pieces, window.trace.ops
    size = max(len(labels.names), 1)
    found: dict[PlaceName, _Counts] = defaultdict(lambda: _Counts({}, {}, {}))
    roots = nesting.outermost(ops.parent, np.arange(len(ops), dtype=np.int32))
    inside = np.bincount(roots, minlength=len(ops)) - 1 if len(ops) else np.empty(0, np.int64)
    node = np.append(window.joins.node, np.int32(NONE))[pieces.op]
    inner_op = np.where(node >= 0, node, pieces.op)
    for label, op, is_outer in ((labels.outer, labels.outer_op, True), (labels.inner, inner_op, False)):
        rows = np.flatnonzero(op >= 0)
        rows = rows[iv.contains(window.steps, ops.start_ns[op[rows]])]  # a step may end what the one before began
        _, first = np.unique(op[rows] * np.int64(len(window.places)) + window.place[rows], return_index=True)
        rows = rows[first]
        keys, group = np.unique(window.place[rows] * size + label[rows], return_inverse=True)
        calls = np.bincount(group, minlength=len(keys))
        if is_outer:
            ops_inside = np.bincount(group, inside[op[rows]], minlength=len(keys)) / calls
            by_code, first = _count_by_code(window, op[rows], group), np.unique(group, return_index=True)[1]
            full_names = [window.trace.strings[each] for each in ops.name[op[rows[first]]].tolist()]
        for number, (key, count) in enumerate(zip(keys.tolist(), (calls / window.step_count).tolist(), strict=True)):
            counts, name = found[window.places[key // size]], labels.names[key % size]
            if is_outer:
                of_code = round(by_code[number] / window.step_count, 2)
                op_name = full_names[number]
                counts.outer[name] = CallCounts(round(count, 2), round(ops_inside[number], 1), of_code, op_name)
            else:
                counts.inner[name] = round(count, 2)
    called = called_functions(window.trace, pieces, window.entry)
    size = len(called.names) + 1
    python = np.flatnonzero(pieces.op < 0)
    keys, group = np.unique(window.place[python] * size + called.code[python] + 1, return_inverse=True)
    ns = np.zeros(len(keys), np.int64)
    np.add.at(ns, group, pieces.time_ns[python])
    at_lines = _count_at_lines(window, called)
    for key, time_ns in zip(keys.tolist(), ns.tolist(), strict=True):
        place, name = window.places[key // size], ["", *called.names][key % size]
        found[place].functions[name] = (round(at_lines[place, name] / window.step_count, 2), time_ns)
    return found


def _count_by_code(window: PlacedWindow, op: IntArray, group: Int64Array) -> Int64Array:
    """For each group of ops how often the user's code calls them: itself, or by one call of a library's function.

    0 where calls of functions were not recorded.
    """
    trace = window.trace
    entry = np.append(window.entry, NONE)[innermost_frame(trace, trace.ops.thread[op], trace.ops.start_ns[op])]
    size = len(trace.frames) + len(op)
    caller = np.where(entry >= 0, entry, len(trace.frames) + np.arange(len(op)))
    calls = np.unique(group * np.int64(size) + caller) if len(trace.frames) else np.empty(0, np.int64)
    return np.bincount(calls // max(size, 1), minlength=group.max(initial=-1) + 1)


def _count_at_lines(window: PlacedWindow, called: CalledFunctions) -> Counter[tuple[PlaceName, str]]:
    """How often the functions are called from each line, in the steps of the window."""
    trace, rows = window.trace, called.frames
    start_ns, thread = trace.frames.start_ns[rows], trace.frames.thread[rows]
    inside = iv.contains(window.steps, start_ns)
    names, code = find_lines(trace, window.joins, start_ns[inside], thread[inside], np.full(inside.sum(), NONE))
    known = np.flatnonzero(code >= 0)
    size = len(called.names)
    keys, counts = np.unique(code[known] * np.int64(size) + called.of_frame[inside][known], return_counts=True)
    found = Counter[tuple[PlaceName, str]]()
    for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
        found[names[key // size], called.names[key % size]] += count  # a line may have several numbers
    return found
