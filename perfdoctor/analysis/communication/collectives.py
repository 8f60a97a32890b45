"""The collectives of one rank as a small table: when it came to each, how long it took, what it did before.

This is what a rank tells the others: ranks are compared by these tables alone (`matching`), never by their traces, so
that they can be made in other processes and on other machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from perfdoctor.analysis.communication.collective_metadata import CollectiveMetadata, collective_metadata
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.launching_ops import launching_ranges
from perfdoctor.analysis.timeline.phases import PHASES
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# A row takes about 100 bytes: so many keep a rank's summary under 200 KB.
MAX_ROWS = 1500
# Exposed communication in more pieces than this is told by its longest ones.
_MOST_PIECES = 2000


@dataclass(frozen=True, slots=True)
class CollectiveTotal:
    """All collectives of one kind and group in the window.

    Attributes:
        kind: One of COLLECTIVE_KINDS.
        group: Purpose of the process group, else its name; None where it is not recorded.
        group_size: Number of its ranks, None where it is not recorded.
        count: How many.
        bytes: What this rank put in, all together; None where it is not recorded for each of them.
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


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveTable:
    """Collectives of one rank, sorted by end, on the rank's own clock. Picklable, some 100 bytes a row.

    Attributes:
        rank: The rank.
        host: What tells its machine from others; None where the trace does not say.
        base_ns: What the file says must be added to the times to get nanoseconds since the epoch.
        on_gpu: Whether kernels ran them, or threads of the CPU.
        strings: The texts that `group` and `dtype` are codes of.
        start_ns, end_ns: When this rank came to it, and when it was over.
        kind: Indices into COLLECTIVE_KINDS.
        group: Code of the process group's name with its ranks, where recorded; -1.
        group_size: Ranks in the group; -1 where not recorded.
        seq: Sequence number within the group; -1 where not recorded.
        bytes: What this rank put in; -1 where not recorded.
        dtype: Code of the element type; -1 where not recorded.
        stream: GPU stream; -1 on the CPU.
        step: Index of the analysed step in which it started; -1 outside of all.
        exposed_ns: Its time in the window in which nothing computed.
        before_ns: float32 (n, PHASES): what this rank did from the start of the row before (by start) until this start,
            as far as that lies in the window. float32 holds 1e-7 of a figure, far below what clocks agree on.
        exposed: The time of the window in which collectives ran and nothing computed.
        totals: By kind and group, over the whole window, whatever was left out of the rows.
        phase_ns: By name of PHASES its share of the window.
        step_numbers: What the profiler calls the analysed steps; empty where it did not number them.
        step_start_ns: Where they begin.
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
    exposed: Intervals = field(default_factory=lambda: iv.EMPTY)
    totals: tuple[CollectiveTotal, ...] = ()
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    step_numbers: tuple[int, ...] = ()
    step_start_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    window_ns: int = 0
    dropped_rows: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def in_window(self) -> BoolArray:
        """Whether each row began in the analysed window; without steps that is everything."""
        return np.asarray(self.step >= 0, bool) if len(self.step_start_ns) else np.ones(len(self), bool)


def collectives_of(
    classes: KernelClasses,
    window: Intervals,
    steps: Steps,
    *,
    on_gpu: bool,
    exposed: Intervals,
    phases: Mapping[str, Intervals],
    step_numbers: Sequence[int] = (),
    most: int = MAX_ROWS,
) -> CollectiveTable:
    """The collectives of a rank, at most `most` of them: the last ones, because ranks stop recording together.

    Those outside the analysed window are included with `step` -1: they help to align the clocks.

    Args:
        classes: The classes of the trace's kernels.
        window: The analysed time.
        steps: The analysed steps.
        on_gpu: Whether kernels ran them, or threads of the CPU.
        exposed: The time of the window in which collectives ran and nothing computed (`Account.parts`).
        phases: What the rank did in the window, by PHASES.
        step_numbers: What the profiler calls the analysed steps, where it numbered them.
        most: Rows to keep.
    """
    trace = classes.trace
    found = _kernels(classes) if on_gpu else _cpu_ranges(trace)
    order = np.lexsort((found.start_ns, found.end_ns))
    found = _Found(*(getattr(found, column.name)[order] for column in fields(found)))
    metadata = collective_metadata(trace, found.comms)
    kept = slice(max(len(order) - most, 0), None)
    return CollectiveTable(
        rank=trace.rank,
        host=trace.host,
        base_ns=trace.base_ns,
        on_gpu=on_gpu,
        strings=metadata.strings,
        start_ns=found.start_ns[kept],
        end_ns=found.end_ns[kept],
        kind=found.kind[kept],
        group=metadata.group[kept],
        group_size=metadata.group_size[kept],
        seq=metadata.seq[kept],
        bytes=metadata.bytes[kept],
        dtype=metadata.dtype[kept],
        stream=found.stream[kept],
        step=steps.at(found.start_ns[kept]).astype(np.int32),
        exposed_ns=iv.overlap(found.start_ns[kept], found.end_ns[kept], exposed),
        preceding_phase_ns=_time_before(window, phases, found.start_ns)[kept],
        exposed=_longest_intervals(exposed),
        totals=_totals(window, exposed, found, metadata),
        phase_ns={name: iv.total(phase) for name, phase in phases.items()},
        step_numbers=tuple(step_numbers),
        step_start_ns=steps.intervals[:, 0],
        window_ns=iv.total(window),
        dropped_rows=kept.start,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Collectives of a trace: when, of which kind, on which stream (-1: none), and their rows in `comms` (or -1)."""

    start_ns: Int64Array
    end_ns: Int64Array
    kind: Int8Array
    stream: Int64Array
    comms: Int32Array


def _kernels(classes: KernelClasses) -> _Found:
    """The kernels that are collectives.

    A kernel that serves several kinds (NCCL's send and receive, RCCL's generic one) is of the kind that the range
    around its launch names, or else of the one that is recorded of it.
    """
    trace, gpu = classes.trace, classes.trace.gpu
    rows = np.flatnonzero(classes.match_rows(lambda k: k.category == "communication"))
    kind = _kinds(trace, gpu.name[rows])
    vague = np.isin(kind, [COLLECTIVE_KINDS.index("send_recv"), vocabulary.OTHER_COLLECTIVE])
    launched_in = launching_ranges(trace, vocabulary.COLLECTIVE_RANGE)[rows]
    by_range = vague & (launched_in >= 0)
    kind[by_range] = _kinds(trace, trace.ranges.name[launched_in[by_range]])
    recorded = np.full(len(gpu), NONE, np.int32)
    of_items = np.flatnonzero(trace.comms.gpu >= 0)
    recorded[trace.comms.gpu[of_items]] = of_items
    comms = recorded[rows]
    by_record = vague & (comms >= 0)
    named = _kinds(trace, trace.comms.collective[comms[by_record]])
    kind[by_record] = np.where(named == vocabulary.OTHER_COLLECTIVE, kind[by_record], named)
    return _Found(gpu.start_ns[rows], gpu.end_ns[rows], kind, gpu.stream[rows], comms)


def _cpu_ranges(trace: Trace) -> _Found:
    """The collectives that threads of the CPU ran: their ranges, or the ops that recorded them where there are none."""
    ranges, ops = trace.ranges, trace.ops
    rows = np.flatnonzero(trace.match_rows(ranges, vocabulary.CPU_COLLECTIVE_RANGE))
    issued = np.flatnonzero((trace.comms.gpu < 0) & (trace.comms.op >= 0))
    issued = issued[_kinds(trace, trace.comms.collective[issued]) != vocabulary.OTHER_COLLECTIVE].astype(np.int32)
    nowhere = np.full(max(len(rows), len(issued)), NONE, np.int64)
    if not len(rows):
        op = trace.comms.op[issued]
        kind = _kinds(trace, trace.comms.collective[issued])
        return _Found(ops.start_ns[op], ops.end_ns[op], kind, nowhere, issued)
    # Each was issued by one op, in the order in which they began. Where there are more or fewer, nobody knows by which.
    comms = issued if len(issued) == len(rows) else nowhere[: len(rows)].astype(np.int32)
    kind = _kinds(trace, ranges.name[rows])
    return _Found(ranges.start_ns[rows], ranges.end_ns[rows], kind, nowhere[: len(rows)], comms)


def _kinds(trace: Trace, names: Int32Array) -> Int8Array:
    """The kinds that names (codes of the trace) mean; worked out once a distinct name."""
    distinct, which = np.unique(names, return_inverse=True)
    kinds = [COLLECTIVE_KINDS.index(vocabulary.collective_kind(trace.text(code) or "")) for code in distinct.tolist()]
    return np.array(kinds, np.int8)[which]


def _time_before(window: Intervals, phases: Mapping[str, Intervals], start_ns: Int64Array) -> npt.NDArray[np.float32]:
    """For each row the time of each phase between the start before it (or the begin of the window) and its own."""
    order = np.argsort(start_ns, kind="stable")
    until = start_ns[order]
    since = np.concatenate(([window[0, 0]] if len(window) else [0], until[:-1]))[: len(until)]
    spent = np.empty((len(start_ns), len(PHASES)), np.float32)
    for column, phase in enumerate(phases.values()):
        spent[order, column] = iv.overlap(np.minimum(since, until), until, phase)
    return spent


def _longest_intervals(intervals: Intervals) -> Intervals:
    """The longest intervals of a set, as many as a summary should hold."""
    if len(intervals) <= _MOST_PIECES:
        return intervals
    by_length = np.argsort(intervals[:, 0] - intervals[:, 1], kind="stable")
    return intervals[np.sort(by_length[:_MOST_PIECES])]


def _totals(
    window: Intervals, exposed: Intervals, found: _Found, metadata: CollectiveMetadata
) -> tuple[CollectiveTotal, ...]:
    """Sums over the window by kind and group, the longest exposed one first."""
    inside: BoolArray = iv.contains(window, found.start_ns)
    totals = []
    for kind, group in sorted(set(zip(found.kind[inside].tolist(), metadata.label[inside].tolist(), strict=True))):
        rows = inside & (found.kind == kind) & (metadata.label == group)
        running = iv.intersect(iv.union(found.start_ns[rows], found.end_ns[rows]), window)
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
