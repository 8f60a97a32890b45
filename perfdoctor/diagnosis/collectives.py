"""The collectives of one rank as a small table: when it came to each, how long it took, what it did before.

This is what a rank tells the others: ranks are compared by these tables alone (`matching`), never by their traces, so
that they can be made in other processes and on other machines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from perfdoctor.diagnosis.phases import PHASES, phases_of
from perfdoctor.diagnosis.traffic import launched_in
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Int64Array, Intervals
from perfdoctor.trace.model import NONE, BoolArray, Int8Array, Int32Array, Trace

if TYPE_CHECKING:
    from perfdoctor.diagnosis.run import RankRun

KINDS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "barrier",
    "send_recv",
    "reduce",
    "gather",
    "scatter",
    "other",
)
# How libraries spell them; the first that fits counts. deep_ep's kernels for experts are the halves of an all-to-all.
_SPELLINGS = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_reduce", r"all_?reduce|cross_device_reduce|quick_?reduce|lamport"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?(to|2)_?all|(ep|internode|intranode)\b.*(dispatch|combine)"),
    ("broadcast", r"broadcast|bcast"),
    ("barrier", r"barrier"),
    ("send_recv", r"send|recv"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
# The range that torch opens around a collective: on the calling thread where a GPU runs it, over all of its run where
# a thread of the CPU does (gloo, mpi, ucc).
_BY_CPU = r"^(gloo|mpi|ucc):"
_CALLED = r"^(nccl|rccl|xccl|gloo|mpi|ucc):"
_MARK = re.compile(r"^ProfilerStep#(\d+)$")

# A row takes about 100 bytes: so many keep a rank's summary under 200 KB.
MOST_ROWS = 1500
# Exposed communication in more pieces than this is told by its longest ones.
_MOST_PIECES = 2000


@dataclass(frozen=True, slots=True)
class CollectiveTotal:
    """All collectives of one kind and group in the window.

    Attributes:
        kind: One of KINDS.
        group: Name of the process group; None where it is not recorded.
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
        host: Where it ran, as far as captured facts or the trace say.
        base_ns: What the file says must be added to the times to get nanoseconds since the epoch.
        on_gpu: Whether kernels ran them, or threads of the CPU.
        strings: The texts that `group` and `dtype` are codes of.
        start_ns, end_ns: When this rank came to it, and when it was over.
        kind: Indices into KINDS.
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
        step_numbers: What the profiler calls the analysed steps; empty where it did not number them.
        step_start_ns: Where they begin.
        window_ns: Length of the analysed time.
        left_out: Rows that were left out for size: the earliest ones.
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
    before_ns: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, len(PHASES)), np.float32))
    exposed: Intervals = field(default_factory=lambda: iv.EMPTY)
    totals: tuple[CollectiveTotal, ...] = ()
    step_numbers: tuple[int, ...] = ()
    step_start_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    window_ns: int = 0
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)


def kind_of(name: str) -> str:
    """Which of KINDS a kernel, range or recorded name means."""
    text = name.lower()
    return next((kind for kind, spelling in _SPELLINGS if re.search(spelling, text)), "other")


def collectives_of(rank: RankRun, most: int = MOST_ROWS) -> CollectiveTable:
    """The collectives of a rank, at most so many of them: the last ones, because ranks stop recording together.

    Those outside the analysed window are there, too, with `step` -1: they help to align the clocks.
    """
    trace = rank.trace
    on_gpu = rank.device_kind == "gpu"
    start, end, kind, stream = _on_the_gpu(rank) if on_gpu else _on_the_cpu(trace)
    order = np.lexsort((start, end))
    start, end, kind, stream = start[order], end[order], kind[order], stream[order]
    exposed = rank.account.parts["communication"]
    exposed_ns = iv.overlap(start, end, exposed)
    unknown = np.full(len(start), NONE, np.int32)
    kept = slice(max(len(start) - most, 0), None)
    return CollectiveTable(
        rank=trace.rank,
        host=_host(rank),
        base_ns=trace.base_ns,
        on_gpu=on_gpu,
        start_ns=start[kept],
        end_ns=end[kept],
        kind=kind[kept],
        group=unknown[kept],
        group_size=unknown[kept],
        seq=unknown[kept].astype(np.int64),
        bytes=unknown[kept].astype(np.int64),
        dtype=unknown[kept],
        stream=stream[kept],
        step=_steps(rank, start[kept]),
        exposed_ns=exposed_ns[kept],
        before_ns=_before(rank, start)[kept],
        exposed=_longest(exposed),
        totals=_totals(rank, start, end, kind),
        step_numbers=_step_numbers(rank),
        step_start_ns=rank.steps.intervals[:, 0],
        window_ns=rank.window_ns,
        left_out=kept.start,
    )


def _on_the_gpu(rank: RankRun) -> tuple[Int64Array, Int64Array, Int8Array, Int64Array]:
    """Start, end, kind and stream of the kernels that are collectives.

    A kernel that serves several kinds (NCCL's send and receive, RCCL's generic one) is what the range around its launch
    says.
    """
    trace, gpu = rank.trace, rank.trace.gpu
    rows = np.flatnonzero(rank.kernels_where(lambda k: k.category == "communication"))
    by_name = _kinds(trace, gpu.name[rows])
    called = launched_in(trace, _CALLED)[rows]
    by_range = _kinds(trace, trace.ranges.name[called]) if len(trace.ranges) else by_name
    vague = np.isin(by_name, [KINDS.index("send_recv"), KINDS.index("other")]) & (called >= 0)
    kind = np.where(vague, by_range, by_name).astype(np.int8)
    return gpu.start_ns[rows], gpu.end_ns[rows], kind, gpu.stream[rows]


def _on_the_cpu(trace: Trace) -> tuple[Int64Array, Int64Array, Int8Array, Int64Array]:
    """Start, end and kind of the collectives that threads of the CPU ran."""
    ranges = trace.ranges
    rows = np.flatnonzero(trace.named(ranges, _BY_CPU))
    kind = _kinds(trace, ranges.name[rows])
    return ranges.start_ns[rows], ranges.end_ns[rows], kind, np.full(len(rows), NONE, np.int64)


def _kinds(trace: Trace, names: Int32Array) -> Int8Array:
    """The kinds that names (codes of the trace) mean; worked out once a distinct name."""
    distinct, which = np.unique(names, return_inverse=True)
    kinds = [KINDS.index(kind_of(trace.text(code) or "")) for code in distinct.tolist()]
    return np.array(kinds, np.int8)[which]


def _before(rank: RankRun, start: Int64Array) -> npt.NDArray[np.float32]:
    """For each row the time of each phase between the start before it (or the begin of the window) and its own."""
    order = np.argsort(start, kind="stable")
    until = start[order]
    since = np.concatenate(([rank.window[0, 0]] if len(rank.window) else [0], until[:-1]))[: len(until)]
    spent = np.empty((len(start), len(PHASES)), np.float32)
    for column, phase in enumerate(phases_of(rank).values()):
        spent[order, column] = iv.overlap(np.minimum(since, until), until, phase)
    return spent


def _steps(rank: RankRun, at_ns: Int64Array) -> Int32Array:
    """The analysed step that each instant lies in, or -1."""
    steps = rank.steps.intervals
    if not len(steps):
        return np.full(len(at_ns), NONE, np.int32)
    row = np.searchsorted(steps[:, 0], at_ns, side="right") - 1
    return np.where((row >= 0) & (at_ns < steps[row, 1]), row, NONE).astype(np.int32)


def _step_numbers(rank: RankRun) -> tuple[int, ...]:
    """The numbers in the marks of the analysed steps; none where marks and steps do not correspond."""
    trace = rank.trace
    codes = np.unique(trace.ranges.name[trace.named(trace.ranges, _MARK)]).tolist()
    numbers = sorted(int(mark[1]) for code in codes if (mark := _MARK.match(trace.strings[code])))
    chosen = numbers[rank.step_slice]
    return tuple(chosen) if len(chosen) == rank.steps.count else ()


def _longest(pieces: Intervals) -> Intervals:
    """The longest intervals of a set, as many as a summary should hold."""
    if len(pieces) <= _MOST_PIECES:
        return pieces
    return pieces[np.sort(np.argsort(pieces[:, 0] - pieces[:, 1], kind="stable")[:_MOST_PIECES])]


def _totals(rank: RankRun, start: Int64Array, end: Int64Array, kind: Int8Array) -> tuple[CollectiveTotal, ...]:
    """Sums over the window by kind, the longest exposed one first."""
    inside: BoolArray = iv.contains(rank.window, start)
    exposed = rank.account.parts["communication"]
    totals = []
    for code in np.unique(kind[inside]).tolist():
        rows = inside & (kind == code)
        running = iv.intersect(iv.union(start[rows], end[rows]), rank.window)
        totals.append(
            CollectiveTotal(
                kind=KINDS[code],
                group=None,
                group_size=None,
                count=int(rows.sum()),
                bytes=None,
                running_ns=iv.total(running),
                exposed_ns=iv.total(iv.intersect(running, exposed)),
            )
        )
    return tuple(sorted(totals, key=lambda total: (-total.exposed_ns, total.kind)))


def _host(rank: RankRun) -> str | None:
    """The host's name, where captured facts hold it."""
    host = (rank.facts or {}).get("host")
    return host if isinstance(host, str) else None
