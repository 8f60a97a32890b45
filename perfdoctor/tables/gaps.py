"""The table of gaps: the idle time of the GPU by its cause, by what the CPU did, by line, or gap by gap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoctor.analysis.host.hot_path import HotPath, find_hot_path
from perfdoctor.analysis.host.locations import has_locations
from perfdoctor.analysis.timeline import idle_pieces
from perfdoctor.analysis.timeline.account import IDLE_CAUSES
from perfdoctor.analysis.timeline.own_time import label_ops
from perfdoctor.analysis.timeline.queue_stalls import StallCause
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.kernel_names import short_kernel_name
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.line_columns import LinesOfWork, line_columns, lines_of_work
from perfdoctor.tables.shared_columns import Groups, Source, choose_source
from perfdoctor.trace import activity_kinds, vocabulary
from perfdoctor.trace.arrays import NONE, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals

_PYTHON = "Python, or what records nothing"
_OTHERS = "other ranks or streams"
_QUEUED = "between queued items"
_UNKNOWN = "not known"
_ENGINE = "run_backward of torch"
_NOTHING_IDLE = "the GPU is never idle in the analysed time"
_NO_LINE_KNOWN = "no idle time of the GPU comes from a line of the user's code that was recorded"
# So many of the longest gaps are asked one by one for what the CPU did: 1 ms each.
_MAX_PATHS = 30


def gaps_table(rank: Rank, by: str) -> Table:
    """The idle time of the GPU in the window, as the account has it.

    `by` is "cause"; "root" for what made the GPU wait within each cause; "line" for the user's line from which it
    comes; or "gap" for each gap by itself, the longest first.
    """
    source = choose_source("gaps", rank, "lines" if by == "line" else None, kind="gap" if by == "gap" else "")
    inner = source.rank
    if inner.device_kind == "gpu_not_recorded":
        return source.empty(by, explain_missing("gpu_items", rank.available_data))
    if not source.has_need:
        return source.empty(by, *source.notes)
    if not len(inner.idle_pieces):
        return source.empty(by, _NOTHING_IDLE)
    idle = _Idle.of(inner)
    if by == "gap":
        return _each_gap(source, idle)
    cause, nothing = idle.cause, np.zeros(len(idle.cause), np.int64)
    second = {"cause": nothing, "root": idle.root, "line": idle.lines.code.astype(np.int64)}[by]
    groups = Groups.by(
        inner.idle_instants.piece, inner.idle_instants.weight_ns, nothing if by == "line" else cause, second
    )
    counts = groups.count_distinct(groups.items)
    longest = np.zeros(len(groups), np.int64)
    np.maximum.at(longest, groups.group, inner.idle_pieces.dur_ns[groups.items])
    describing, of_lines = _describe(source, idle, groups)
    if by not in describing:
        return source.empty(by, *source.notes, _NO_LINE_KNOWN)
    names = describing.pop(by).values
    columns = (source.count(counts), *describing.values(), *of_lines)
    return source.build(by, by, names, groups.time_ns, counts, *columns, max_ns=longest)


@frozen_dataclass(eq=False)
class _Idle:
    """What is known of each of `Rank.idle_instants`.

    Attributes:
        cause: Index into `IDLE_CAUSES`.
        roots: What made the GPU wait, each once.
        root: The number of its root.
        lines: Its line.
    """

    cause: Int64Array
    roots: list[str]
    root: Int64Array
    lines: LinesOfWork

    @classmethod
    def of(cls, rank: Rank) -> _Idle:
        """What is known of the idle time of a rank."""
        instants = rank.idle_instants
        roots, root = _roots_of(rank, rank.idle_pieces)
        lines = LinesOfWork((), np.full(len(instants.piece), NONE, np.int32))
        if has_locations(rank.trace):
            lines = lines_of_work(rank, instants.at_ns, instants.thread, instants.op)
        return cls(rank.idle_pieces.cause[instants.piece].astype(np.int64), roots, root[instants.piece], lines)


def _describe(source: Source, idle: _Idle, groups: Groups) -> tuple[dict[str, Column], tuple[Column, ...]]:
    """The cause, the root and the line of most of each group, and columns of the line; no line where none is known."""
    causes = [IDLE_CAUSES[each] for each in groups.dominant_code(idle.cause).tolist()]
    roots = [idle.roots[each] for each in groups.dominant_code(idle.root).tolist()]
    columns = {"cause": source.column("cause", causes), "root": source.column("root", roots)}
    if not len(idle.lines.locations):
        return columns, ()
    lines = groups.dominant_code(idle.lines.code).tolist()
    columns["line"] = source.column("at", idle.lines.names(lines))
    return columns, line_columns(idle.lines, lines)


class _Roots(dict[str, int]):
    """The names of roots, each with its number."""

    def number(self, name: str) -> int:
        """The number of a name, which is added if it is new."""
        return self.setdefault(name, len(self))


def _roots_of(rank: Rank, pieces: idle_pieces.IdlePieces) -> tuple[list[str], Int64Array]:
    """What made the GPU wait, each once, and for each piece the number of it."""
    roots = _Roots()
    root = np.full(len(pieces), roots.number(_UNKNOWN), np.int64)
    root[pieces.cause == idle_pieces.DATALOADER] = roots.number("DataLoader")
    root[pieces.cause == idle_pieces.COMMUNICATION] = roots.number(_OTHERS)
    called = np.flatnonzero(np.isin(pieces.cause, (idle_pieces.SYNC, idle_pieces.ALLOCATOR)) & (pieces.call >= 0))
    root[called] = _number_calls(rank, pieces, called, roots)
    launching = pieces.cause == idle_pieces.LAUNCH
    root[launching] = roots.number(_PYTHON)
    label = np.append(rank.gpu_labels.label, NONE)[_next_items(rank, pieces)]
    of_label = np.array([roots.number(f"launch of {name}") for name in _labels(rank)], np.int64)
    labelled = launching & (label >= 0)
    root[labelled] = of_label[label[labelled]]
    root[pieces.queued] = roots.number(_QUEUED)
    for group in rank.pauses:
        name = _name_path(group.path)
        if name is not None:
            inside_ns = iv.overlap(pieces.start_ns, pieces.end_ns, group.time)
            root[launching & (2 * inside_ns > pieces.dur_ns)] = roots.number(name)
    stalled = (pieces.cause == idle_pieces.UNEXPLAINED) & (pieces.gap >= 0)
    stalled[stalled] = rank.gaps.stall[pieces.gap[stalled]] == StallCause.MISSING_KERNELS
    root[stalled] = roots.number("a CUDA graph of which kernels are missing in the file")
    return list(roots), root


def _labels(rank: Rank) -> list[str]:
    """The names of `Rank.gpu_labels`; those of kernels without ops in short."""
    labels = rank.gpu_labels
    of_op = np.zeros(len(labels.names), bool)
    of_op[labels.label[labels.known]] = True
    return [
        name if is_op else short_kernel_name(name) for name, is_op in zip(labels.names, of_op.tolist(), strict=True)
    ]


def _next_items(rank: Rank, pieces: idle_pieces.IdlePieces) -> Int64Array:
    """For each piece the GPU item that ends its gap, or NONE."""
    gap = np.where(pieces.gap >= 0, pieces.gap, len(rank.gaps))
    return np.append(rank.gaps.next_item, NONE)[gap].astype(np.int64)


def _number_calls(rank: Rank, pieces: idle_pieces.IdlePieces, which: Int64Array, roots: _Roots) -> Int64Array:
    """The roots of pieces that a call made: "cudaStreamSynchronize in item"."""
    trace, call = rank.trace, pieces.call[which]
    op = trace.calls.op[call]
    inside = np.flatnonzero(op >= 0)
    label = np.full(len(which), NONE, np.int64)
    labels, label[inside], _ = label_ops(trace, nesting.outermost(trace.ops.parent, op[inside]))
    groups = Groups.by(which, pieces.dur_ns[which], trace.calls.name[call], label)
    names = [trace.strings[each] for each in groups.of_first(trace.calls.name[call])]
    of_op = [f" in {labels[each]}" if each >= 0 else "" for each in groups.of_first(label)]
    numbers = [roots.number(name + op) for name, op in zip(names, of_op, strict=True)]
    return np.array(numbers, np.int64)[groups.group]


def _name_path(path: HotPath) -> str | None:
    """What the CPU did: its kind of work, else the deepest activity that takes most of the time; None for neither.

    That the loop waits for the engine in backward() says nothing of what the engine did.
    """
    if path.kind is not None:
        return path.kind
    deepest = path.deepest
    if deepest is None or _ENGINE in deepest.name:
        return None
    return f"in {activity_kinds.short_name(deepest.name.removeprefix(vocabulary.AUTOGRAD_OP_PREFIX))}"


# --- gap by gap ------------------------------------------------------------------------------------------------------


def _each_gap(source: Source, idle: _Idle) -> Table:
    """Each gap, the longest first; what the window cuts off at its ends does not count."""
    rank = source.rank
    instants, pieces = rank.idle_instants, rank.idle_pieces
    gap = np.where(pieces.gap >= 0, pieces.gap, len(rank.gaps) + np.arange(len(pieces)))
    groups = Groups.by(instants.piece, instants.weight_ns, gap[instants.piece])
    order = np.argsort(-groups.time_ns, kind="stable")
    start_ns, end_ns = np.full(len(groups), np.iinfo(np.int64).max), np.zeros(len(groups), np.int64)
    np.minimum.at(start_ns, groups.group, pieces.start_ns[groups.items])
    np.maximum.at(end_ns, groups.group, pieces.end_ns[groups.items])
    (describing, of_lines), causes = _describe(source, idle, groups), groups.dominant_code(idle.cause)
    roots = [str(each) for each in describing["root"].values]
    for row in order[:_MAX_PATHS].tolist():
        piece = int(groups.items[groups.first[row]])
        if causes[row] == idle_pieces.LAUNCH and end_ns[row] - start_ns[row] >= rank.pause_threshold_ns:
            roots[row] = _name_gap(rank, pieces, piece, iv.window(int(start_ns[row]), int(end_ns[row]))) or roots[row]
    describing["root"] = replace(describing["root"], values=tuple(roots))
    before = np.append(rank.gpu_labels.label, NONE)[_next_items(rank, pieces)[groups.items[groups.first]]]
    labels = _labels(rank)
    names = [labels[each] if each >= 0 else None for each in before.tolist()]
    step, first_ns = rank.steps.at(start_ns), rank.trace.extent_ns[0]
    columns = (
        source.column("length_ns", groups.time_ns),
        source.column("share", groups.time_ns / max(rank.window_ns, 1)),
        *describing.values(),
        source.column("before", names),
        source.column("offset_ns", start_ns - first_ns),
        source.column("start_ns", start_ns - rank.clock_shift.shift_ns),
        source.column("step", step, known=step >= 0),
        *of_lines,
    )
    table = Table("gaps", "gap", columns, "length_ns", source.number, source.notes).take(order.tolist())
    numbered = source.column("name", [f"gap {number}" for number in range(1, len(groups) + 1)], title="gap")
    return replace(table, columns=(numbered, *table.columns))


def _name_gap(rank: Rank, pieces: idle_pieces.IdlePieces, piece: int, gap: Intervals) -> str | None:
    """What the launching thread did in one gap; None where no name says it."""
    call = int(pieces.call[piece])
    path = find_hot_path(rank.trace, gap, int(rank.trace.calls.thread[call]) if call >= 0 else rank.launching_thread)
    return _name_path(path)
