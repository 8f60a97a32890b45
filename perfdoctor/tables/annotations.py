"""The table of annotations: what runs in the ranges that a program, its libraries and the profiler put around code."""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.analysis.host.locations import loop_thread_of
from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.shared_columns import choose_source
from perfdoctor.tables.work_in_window import sum_by
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import Trace

_NO_RANGES = (
    "the trace has no annotations: put `with torch.profiler.record_function(name):` around parts of the program"
)
_KINDS = (
    ("step", (vocabulary.PROFILER_STEP, vocabulary.COUNTED_STEP)),
    ("DataLoader", (vocabulary.LOADER_NEXT,)),
    ("optimizer", (vocabulary.OPTIMIZER_STEP, vocabulary.ZERO_GRAD)),
    ("collective", (vocabulary.COLLECTIVE_RANGE,)),
    ("parallel", (vocabulary.DDP_FORWARD, vocabulary.FSDP_FORWARD, vocabulary.DATA_PARALLEL_FORWARD)),
    ("perfdoctor", (vocabulary.OWN_MARK,)),
    ("compiled code", (vocabulary.COMPILED_CODE, vocabulary.COMPILE_PHASE, vocabulary.COMPILE_DATA)),
)
"""What ranges are for that no user wrote; the first pattern that fits counts."""


def annotations_table(rank: Rank, by: str) -> Table:
    """The annotations by name; steps by the name without their number."""
    source = choose_source("annotations", rank)
    trace = rank.trace
    nest = _nest_ranges(trace)
    if not len(nest.rows):
        return source.empty(by, _NO_RANGES)
    found = _Amounts.of(rank, nest)
    on_gpu = np.full(len(nest.names), rank.device_kind == "gpu")
    gpu_ns = found.gpu_ns if on_gpu.all() else found.cpu_ns
    columns = (
        source.time("backward_ns", found.backward_ns, on_gpu),
        source.time("idle_ns", found.idle_ns, on_gpu),
        source.time("cpu_ns", found.cpu_ns),
        source.count(found.counts),
        source.column("kind", [_kind_of(name) for name in nest.names]),
        source.time("gpu_span_ns", _spans(rank, nest), np.isin(np.arange(len(nest.names)), nest.labels_on_gpu)),
        source.column("launches", np.round(found.launches / source.steps, 2), known=on_gpu),
    )
    keep = found.counts + gpu_ns + found.idle_ns
    return source.build(by, "annotation", nest.names, gpu_ns, found.counts, *columns, keep=keep)


def _kind_of(name: str) -> str:
    return next((kind for kind, patterns in _KINDS if any(re.search(each, name) for each in patterns)), "user")


def _common_name(name: str) -> str:
    """The name that all ranges of one purpose share: that of a step without its number."""
    step = vocabulary.parse_counted_step(name)
    if vocabulary.profiler_step_number(name) is not None:
        return vocabulary.profiler_step_name(0).removesuffix("0") + "*"
    return name if step is None else f"{step.stem}*"


@frozen_dataclass(eq=False)
class _Nest:
    """The ranges of the CPU, and how they lie within each other.

    Attributes:
        trace: The trace.
        rows: The ranges that count, rows of `trace.ranges`.
        label: For each of them the number of its name.
        parent: For each the place in `rows` of the range around it, or NONE.
        names: The names.
        gpu_label: For each row of `trace.gpu_ranges` the number of its name; NONE for a name that the CPU has not.
    """

    trace: Trace
    rows: Int64Array
    label: Int64Array
    parent: Int32Array
    names: list[str]
    gpu_label: Int64Array

    @property
    def labels_on_gpu(self) -> Int64Array:
        """The numbers of the names that the GPU has ranges of."""
        labels: Int64Array = distinct(self.gpu_label[self.gpu_label >= 0])
        return labels

    def innermost(self, at_ns: Int64Array, thread: IntArray) -> Int32Array:
        """For each instant and thread the innermost range, a place in `rows`, or NONE."""
        ranges, rows = self.trace.ranges, self.rows
        start_ns, end_ns, of_thread = ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows]
        found = nesting.innermost(start_ns, end_ns, of_thread, at_ns, thread.astype(np.int32))
        return np.where(at_ns != NONE, found, NONE).astype(np.int32)

    def around(self, *innermost: Int32Array) -> tuple[Int64Array, Int64Array]:
        """All ranges around some pieces of work, by name, each once: numbers of the pieces, and of the names.

        Several columns of the innermost range around each piece count together.
        """
        pieces, labels = [], []
        for column in innermost:
            piece = np.flatnonzero(column >= 0)
            place = column[piece]
            while len(piece):
                pieces.append(piece)
                labels.append(self.label[place])
                place = self.parent[place]
                piece, place = piece[place >= 0], place[place >= 0]
        count = len(self.names)
        if not pieces:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        pairs = distinct(np.concatenate(pieces) * count + np.concatenate(labels))
        return pairs // count, pairs % count

    @property
    def is_inner(self) -> BoolArray:
        """For each range whether it lies in another one of its name."""
        inner, up = np.zeros(len(self.rows), bool), self.parent
        while (up >= 0).any():
            inner |= (up >= 0) & (self.label[up] == self.label)
            up = np.where(up >= 0, self.parent[up], NONE)
        return inner


def _nest_ranges(trace: Trace) -> _Nest:
    ranges, on_gpu = trace.ranges, trace.gpu_ranges
    rows = np.flatnonzero(~trace.match_rows(ranges, vocabulary.SOURCE_MARK))
    number_of: dict[str, int] = {}
    label = np.full(len(trace.strings) + 1, NONE, np.int64)
    for code in distinct(ranges.name[rows]).tolist():
        label[code] = number_of.setdefault(_common_name(trace.strings[code]), len(number_of))
    for code in distinct(on_gpu.name).tolist():
        label[code] = number_of.get(_common_name(trace.strings[code]), NONE)
    parent = nesting.parents(ranges.start_ns[rows], ranges.end_ns[rows], ranges.thread[rows])
    return _Nest(trace, rows, label[ranges.name[rows]], parent, list(number_of), label[on_gpu.name])


def _spans(rank: Rank, nest: _Nest) -> Int64Array:
    """For each name the time in the window that its ranges on the GPU cover."""
    on_gpu = rank.trace.gpu_ranges
    spans = np.zeros(len(nest.names), np.int64)
    for label in nest.labels_on_gpu.tolist():
        rows = nest.gpu_label == label
        spans[label] = iv.total(iv.intersect(iv.union(on_gpu.start_ns[rows], on_gpu.end_ns[rows]), rank.window))
    return spans


@frozen_dataclass(eq=False)
class _Amounts:
    """What belongs to each name, as recorded in the window."""

    gpu_ns: Int64Array
    backward_ns: Int64Array
    idle_ns: Int64Array
    cpu_ns: Int64Array
    counts: Int64Array
    launches: Int64Array

    @classmethod
    def of(cls, rank: Rank, nest: _Nest) -> _Amounts:
        """The amounts of each name.

        The engine runs a backward pass on threads of its own while the loop waits in backward(): what it launches is
        also launched within the ranges of the loop at that time.
        """
        trace, joins, count = rank.trace, rank.forward_ops, len(nest.names)
        at_ns, thread = launch_instants(trace)
        in_backward = np.append(joins.in_backward, False)
        loop = np.full(len(at_ns), loop_thread_of(trace))
        own = nest.innermost(at_ns, thread)
        waiting = nest.innermost(np.where(in_backward[trace.gpu.op], at_ns, NONE), loop)
        item, label = nest.around(own, waiting)
        inside, dur_ns = rank.in_window, trace.gpu.dur_ns
        forward = np.append(joins.forward, NONE)[trace.gpu.op]
        made_ns = np.where(forward >= 0, np.append(trace.ops.start_ns, 0)[forward], NONE)
        made = nest.innermost(made_ns, np.append(trace.ops.thread, 0)[forward])
        later, later_label = nest.around(made)
        outside = ~np.isin(later * count + later_label, item * count + label)
        idle = rank.idle_instants
        idle_waiting = nest.innermost(
            np.where(in_backward[idle.op], idle.at_ns, NONE), np.full(len(idle.piece), loop_thread_of(trace))
        )
        piece, idle_label = nest.around(nest.innermost(idle.at_ns, idle.thread), idle_waiting)
        counted = _counted_ranges(rank, nest, (own, waiting))
        ranges = trace.ranges
        range_ns = np.where(counted & ~nest.is_inner, (ranges.end_ns - ranges.start_ns)[nest.rows], 0)
        return cls(
            gpu_ns=sum_by(label, np.where(inside, dur_ns, 0)[item], count),
            backward_ns=sum_by(later_label, np.where(outside & inside[later], dur_ns[later], 0), count),
            idle_ns=sum_by(idle_label, idle.weight_ns[piece], count),
            cpu_ns=sum_by(nest.label, range_ns, count),
            counts=sum_by(nest.label, counted, count),
            launches=sum_by(label, inside[item], count),
        )


def _counted_ranges(rank: Rank, nest: _Nest, innermost: tuple[Int32Array, ...]) -> BoolArray:
    """The ranges that belong to the window: the CPU runs ahead of the GPU, so by what they launch where they do.

    A range counts where the window has most of what is launched in it; one that launches nothing counts as the range
    around it that does, else where it begins in the window.
    """
    dur_ns, inside = rank.trace.gpu.dur_ns, rank.in_window
    count = len(nest.rows)
    all_ns, inside_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for column in innermost:
        item = np.flatnonzero(column >= 0)
        place = column[item]
        while len(item):
            all_ns += sum_by(place, dur_ns[item], count)
            inside_ns += sum_by(place, np.where(inside, dur_ns, 0)[item], count)
            place = nest.parent[place]
            item, place = item[place >= 0], place[place >= 0]
    by = np.arange(count)
    while True:
        climbing = (by >= 0) & (np.append(all_ns, 1)[by] == 0)
        if not climbing.any():
            break
        by[climbing] = nest.parent[by[climbing]]
    begins = iv.contains(rank.window, rank.trace.ranges.start_ns[nest.rows])
    return np.where(by >= 0, (2 * inside_ns >= all_ns)[by], begins)
