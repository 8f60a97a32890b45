"""The collectives of one rank as a small table: when the rank came to each, how long it took, what the rank did before.

Ranks are compared by these tables alone (`match_collectives`), never by their traces, so that the tables can be made in
other processes and on other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfdoctor.analysis.communication.bus_bandwidth import bus_bytes
from perfdoctor.analysis.communication.collective_metadata import CollectiveMetadata, collective_metadata
from perfdoctor.analysis.communication.pack_columns import PackedColumns, pack_columns
from perfdoctor.analysis.communication.pass_starts import find_pass_starts, time_since_pass_start
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.launching_ops import launching_ranges
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# Maximum number of rows: one takes about 60 bytes packed, and a rank's summary stays below 150 KB.
MAX_ROWS = 1500
# Of more intervals of exposed communication than this only the longest are in the table.
_MAX_INTERVALS = 2000


@frozen_dataclass
class CollectiveTotal:
    """All collectives of one kind and group in the window.

    Attributes:
        kind: One of COLLECTIVE_KINDS.
        group: Purpose of the process group, else its name; None where neither is recorded.
        group_size: Number of its ranks; None where it is not recorded.
        count: How many.
        bytes: What this rank put into all of them; None where it is not recorded for each.
        running_ns: Time in which one of them ran.
        exposed_ns: The part of it in which nothing computed.
    """

    kind: str
    group: str | None
    group_size: int | None
    count: int
    bytes: int | None
    running_ns: int
    exposed_ns: int

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Bytes that cross the busiest link in each second that one of them runs; None where that is unknown.

        The time in which a rank waits for the last one to arrive is in it.
        """
        size_bytes = -1 if self.bytes is None else self.bytes
        kind = np.array([COLLECTIVE_KINDS.index(self.kind)], np.int8)
        crossing = bus_bytes(kind, np.array([size_bytes], np.int64), np.array([self.group_size or -1], np.int32))
        return None if np.isnan(crossing[0]) or not self.running_ns else float(crossing[0]) / self.running_ns * 1e9


@frozen_dataclass(eq=False)
class CollectiveTable:
    """Collectives of one rank, sorted by end, on the rank's own clock.

    A table that is pickled, or packed (`pack`), takes a third of the memory: each use of a column unpacks it then.

    Attributes:
        rank: The rank.
        host: Identifies its machine; None where the trace does not name it.
        base_ns: What to add to the times to get nanoseconds since the epoch, by the trace file.
        on_gpu: Whether they ran as kernels, or on threads of the CPU.
        strings: The texts that `group` and `dtype` are codes of.
        start_ns: When this rank came to the collective.
        end_ns: When it was over.
        kind: Indices into COLLECTIVE_KINDS.
        group: Code of the process group's name with its ranks, where recorded; -1.
        group_size: Ranks in the group; -1 where not recorded.
        seq: Sequence number within the group; -1 where not recorded.
        bytes: What this rank put into it; -1 where not recorded.
        dtype: Code of the element type; -1 where not recorded.
        stream: GPU stream; -1 on the CPU.
        step: Index of the analysed step in which it started; -1 outside of all.
        exposed_ns: The part of its time in the window in which nothing computed.
        preceding_phase_ns: float32 (n, PHASES): time of this rank in each phase from the previous collective's start to
            this one's, inside the window. float32 is exact to 1e-7, far below the error of the clocks.
        preceding_once_ns: Time in the same span that the rank idled for what happens once (`Rank.one_offs`).
        since_pass_start_ns: Time since this rank began the pass that the collective is the first one of; -1 for the
            others, see `time_since_pass_start`.
        exposed: The time of the window in which collectives ran and nothing computed.
        totals: By kind and group, over the whole window, including rows that were left out.
        phase_ns: By name of PHASES the time in the window.
        step_numbers: The profiler's numbers of the analysed steps; empty where it did not number them.
        step_start_ns: When the analysed steps begin.
        window_ns: Length of the analysed time.
        dropped_rows: Rows that were left out for size: the earliest ones.
    """

    rank: int | None = None
    host: str | None = None
    base_ns: int = 0
    on_gpu: bool = True
    strings: tuple[str, ...] = ()
    start_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    kind: Int8Array = field(default_factory=lambda: np.empty(0, np.int8))
    group: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    group_size: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    seq: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    bytes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    dtype: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    stream: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    step: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    exposed_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    preceding_phase_ns: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, len(PHASES)), np.float32))
    preceding_once_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    since_pass_start_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    exposed: Intervals = field(default_factory=lambda: iv.EMPTY)
    totals: tuple[CollectiveTotal, ...] = ()
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    step_numbers: tuple[int, ...] = ()
    step_start_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    window_ns: int = 0
    dropped_rows: int = 0
    _packed: PackedColumns | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.start_ns) if self._packed is None else self._packed.length("start_ns")

    if not TYPE_CHECKING:  # or mypy would find an attribute of any name

        def __getattr__(self, name: str) -> object:
            """A column of a packed table: its slot is empty, so that Python asks here."""
            packed = None if name == "_packed" else self._packed
            if packed is None or name not in packed:
                raise AttributeError(f"{type(self).__name__} has no {name}")
            column = packed.unpack(name)
            return tuple(column.tolist()) if name == "step_numbers" else column

    def content_of(self, *names: str) -> Hashable:
        """Something that is equal for two tables only if these columns are: quick for packed tables."""
        if self._packed is not None:
            return tuple(self._packed.content_of(name) for name in names)
        return tuple(getattr(self, name).tobytes() for name in names)

    def renumber(self, rank: int) -> CollectiveTable:
        """The same table of a rank with another number; a packed one stays packed."""
        if self._packed is None:
            return replace(self, rank=rank)
        values, packed = self._state()
        return _restore_table({**values, "rank": rank}, packed)

    def pack(self) -> CollectiveTable:
        """The same table, packed."""
        return self if self._packed is not None else _restore_table(*self._state())

    def __reduce__(self) -> tuple[Callable[..., CollectiveTable], tuple[dict[str, object], PackedColumns]]:
        return _restore_table, self._state()

    def _state(self) -> tuple[dict[str, object], PackedColumns]:
        """What makes the table again: its single values by name, and its columns."""
        names = [each.name for each in fields(self) if each.init]
        if self._packed is not None:
            return {name: getattr(self, name) for name in names if name not in self._packed}, self._packed
        values = {name: getattr(self, name) for name in names}
        columns = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        columns["step_numbers"] = np.array(self.step_numbers, np.int64)
        return {name: value for name, value in values.items() if name not in columns}, pack_columns(columns)

    @property
    def has_all_exposed(self) -> bool:
        """Whether `exposed` is whole: of many intervals only the longest are kept."""
        count = len(self.exposed) if self._packed is None else self._packed.length("exposed")
        return count < _MAX_INTERVALS

    @property
    def in_window(self) -> BoolArray:
        """For each row whether it began in an analysed step; without steps all did."""
        return np.asarray(self.step >= 0, bool) if len(self.step_start_ns) else np.ones(len(self), bool)


def _restore_table(values: dict[str, object], packed: PackedColumns) -> CollectiveTable:
    """A table whose columns stay packed."""
    table = object.__new__(CollectiveTable)
    for name, value in values.items():
        object.__setattr__(table, name, value)
    object.__setattr__(table, "_packed", packed)
    return table


def collectives_of(
    classes: KernelClasses,
    window: Intervals,
    steps: Steps,
    *,
    on_gpu: bool,
    exposed: Intervals,
    phases: Mapping[str, Intervals],
    one_offs: Intervals,
    step_numbers: Sequence[int] = (),
    max_rows: int = MAX_ROWS,
) -> CollectiveTable:
    """The collectives of a rank, at most `max_rows`: the last ones, because ranks stop recording at the same time.

    Those outside the analysed window are included with `step` -1: they help to align the clocks. `exposed` is the time
    of the window in which collectives ran and nothing computed (`Rank.exposed_parts`), `one_offs` the idle time of what
    happens once, and `step_numbers` are the profiler's numbers of the analysed steps, where it numbered them.
    """
    trace = classes.trace
    events = collective_events(classes, on_gpu=on_gpu)
    pass_starts_ns = find_pass_starts(classes, steps, on_gpu=on_gpu)
    metadata = collective_metadata(trace, events.comms)
    last = slice(max(len(events) - max_rows, 0), None)
    return CollectiveTable(
        rank=trace.rank,
        host=trace.host,
        base_ns=trace.base_ns,
        on_gpu=on_gpu,
        strings=metadata.strings,
        start_ns=events.start_ns[last],
        end_ns=events.end_ns[last],
        kind=events.kind[last],
        group=metadata.group[last],
        group_size=metadata.group_size[last],
        seq=metadata.seq[last],
        bytes=metadata.bytes[last],
        dtype=metadata.dtype[last],
        stream=events.stream[last],
        step=steps.at(events.start_ns[last]).astype(np.int32),
        exposed_ns=iv.overlap(events.start_ns[last], events.end_ns[last], exposed),
        preceding_phase_ns=_preceding_times(window, tuple(phases.values()), events.start_ns)[last].astype(np.float32),
        preceding_once_ns=_preceding_times(window, (one_offs,), events.start_ns)[last, 0],
        since_pass_start_ns=time_since_pass_start(pass_starts_ns, events.start_ns)[last],
        exposed=_longest_intervals(exposed),
        totals=_totals(window, exposed, events, metadata),
        phase_ns={name: iv.total(phase) for name, phase in phases.items()},
        step_numbers=tuple(step_numbers),
        step_start_ns=steps.intervals[:, 0],
        window_ns=iv.total(window),
        dropped_rows=last.start,
    )


@frozen_dataclass(eq=False)
class CollectiveEvents:
    """The collectives of a trace, one row each.

    Attributes:
        start_ns, end_ns: When each ran.
        kind: Index into COLLECTIVE_KINDS.
        stream: GPU stream; -1 on the CPU.
        comms: Row of `Trace.comms`; -1 where nothing is recorded.
        item: Row of `Trace.gpu`; -1 on the CPU.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    kind: Int8Array
    stream: Int64Array
    comms: Int32Array
    item: Int64Array

    def __len__(self) -> int:
        return len(self.start_ns)


def collective_events(classes: KernelClasses, *, on_gpu: bool) -> CollectiveEvents:
    """The collectives of a trace, by end: those that ran as kernels, or those on threads of the CPU."""
    events = gpu_collectives(classes) if on_gpu else _cpu_collectives(classes.trace)
    order = np.lexsort((events.start_ns, events.end_ns))
    return CollectiveEvents(*(getattr(events, column.name)[order] for column in fields(events)))


def gpu_collectives(classes: KernelClasses) -> CollectiveEvents:
    """The kernels that are collectives.

    Some kernels run collectives of several kinds (NCCL's send and receive, RCCL's generic one). Their kind is what the
    range around their launch names, else what `Trace.comms` has recorded.
    """
    trace, gpu = classes.trace, classes.trace.gpu
    rows = np.flatnonzero(classes.match_rows(lambda k: k.category == "communication"))
    kind = _kinds(trace, gpu.name[rows])
    ambiguous = np.isin(kind, [COLLECTIVE_KINDS.index("send_recv"), vocabulary.OTHER_COLLECTIVE])
    launch_range = launching_ranges(trace, vocabulary.COLLECTIVE_RANGE)[rows]
    by_range = ambiguous & (launch_range >= 0)
    kind[by_range] = _kinds(trace, trace.ranges.name[launch_range[by_range]])
    row_in_comms = np.full(len(gpu), NONE, np.int32)
    linked = np.flatnonzero(trace.comms.gpu >= 0)
    row_in_comms[trace.comms.gpu[linked]] = linked
    comms = row_in_comms[rows]
    by_record = ambiguous & (comms >= 0)
    recorded = _kinds(trace, trace.comms.collective[comms[by_record]])
    kind[by_record] = np.where(recorded == vocabulary.OTHER_COLLECTIVE, kind[by_record], recorded)
    return CollectiveEvents(gpu.start_ns[rows], gpu.end_ns[rows], kind, gpu.stream[rows], comms, rows)


def _cpu_collectives(trace: Trace) -> CollectiveEvents:
    """The collectives on threads of the CPU: their ranges, or the ops that recorded them where there are no ranges."""
    ranges, ops = trace.ranges, trace.ops
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.CPU_COLLECTIVE_RANGE))
    issued = np.flatnonzero((trace.comms.gpu < 0) & (trace.comms.op >= 0))
    issued = issued[_kinds(trace, trace.comms.collective[issued]) != vocabulary.OTHER_COLLECTIVE].astype(np.int32)
    none = np.full(max(len(rows), len(issued)), NONE, np.int64)
    if not len(rows):
        op = trace.comms.op[issued]
        kind = _kinds(trace, trace.comms.collective[issued])
        return CollectiveEvents(ops.start_ns[op], ops.end_ns[op], kind, none, issued, none)
    # Ops issue the ranges in the order of their starts, one each. With unequal counts their pairs are unknown.
    comms = issued if len(issued) == len(rows) else none[: len(rows)].astype(np.int32)
    kind = _kinds(trace, ranges.name[rows])
    none = none[: len(rows)]
    return CollectiveEvents(ranges.start_ns[rows], ranges.end_ns[rows], kind, none, comms, none)


def _kinds(trace: Trace, names: Int32Array) -> Int8Array:
    """For each name (a code of the trace) the index of its kind in COLLECTIVE_KINDS."""
    distinct, which = np.unique(names, return_inverse=True)
    kinds = [COLLECTIVE_KINDS.index(vocabulary.collective_kind(trace.text(code) or "")) for code in distinct.tolist()]
    return np.array(kinds, np.int8)[which]


def _preceding_times(window: Intervals, times: Sequence[Intervals], start_ns: Int64Array) -> Int64Array:
    """For each row how much of some times lies between the previous row's start (or the window's) and its start."""
    order = np.argsort(start_ns, kind="stable")
    until = start_ns[order]
    since = np.concatenate(([window[0, 0]] if len(window) else [0], until[:-1]))[: len(until)]
    spent_ns = np.empty((len(start_ns), len(times)), np.int64)
    for column, time in enumerate(times):
        spent_ns[order, column] = iv.overlap(np.minimum(since, until), until, time)
    return spent_ns


def _longest_intervals(intervals: Intervals) -> Intervals:
    """The longest intervals of a set, at most _MAX_INTERVALS."""
    if len(intervals) <= _MAX_INTERVALS:
        return intervals
    by_length = np.argsort(intervals[:, 0] - intervals[:, 1], kind="stable")
    return intervals[np.sort(by_length[:_MAX_INTERVALS])]


def _totals(
    window: Intervals, exposed: Intervals, events: CollectiveEvents, metadata: CollectiveMetadata
) -> tuple[CollectiveTotal, ...]:
    """Sums over the window by kind and group, the longest exposed one first."""
    inside: BoolArray = iv.contains(window, events.start_ns)
    totals = []
    for kind, group in sorted(set(zip(events.kind[inside].tolist(), metadata.label[inside].tolist(), strict=True))):
        rows = inside & (events.kind == kind) & (metadata.label == group)
        running = iv.intersect(iv.union(events.start_ns[rows], events.end_ns[rows]), window)
        sizes = metadata.bytes[rows]
        totals.append(
            CollectiveTotal(
                kind=COLLECTIVE_KINDS[kind],
                group=metadata.strings[group] if group >= 0 else None,
                group_size=int(metadata.group_size[rows].max()) if group >= 0 else None,
                count=int(rows.sum()),
                bytes=int(sizes.sum()) if (sizes >= 0).all() else None,
                running_ns=iv.total(running),
                exposed_ns=iv.total(iv.intersect(running, exposed)),
            )
        )
    return tuple(sorted(totals, key=lambda total: (-total.exposed_ns, total.kind, total.group or "")))
