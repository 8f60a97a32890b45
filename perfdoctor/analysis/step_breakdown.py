"""The step cut into rows that add up to it, by kernel, op, module and collective: what two recordings are compared by.

Every instant of a step belongs to one row of each table. Where several GPU items run, it belongs to the part of the
account that has it, and within this to the item that started first; where none runs, to the cause of the idle time::

    stream 7    [ gemm a     ]           a: 6, b: 2, idle: 2
    stream 20       [ copy b     ]
    instants    0123456789
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.communication.collective_metadata import collective_metadata
from perfdoctor.analysis.communication.collectives import gpu_collectives
from perfdoctor.analysis.device_work import DeviceWork
from perfdoctor.analysis.host.module_tree import find_module_calls, innermost_modules
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.launching_ops import match_op_names
from perfdoctor.analysis.timeline.account import BUSY_DETAILS, DETAILS, gpu_rows_by_detail
from perfdoctor.analysis.timeline.own_time import LOADER, ZERO_GRAD, Pieces, cut_by_op, label_gpu_items
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, Trace

OUTSIDE_OF_MODULES = "outside of modules"
BACKWARD = "backward pass"
NO_COLLECTIVE = "everything else"
"""Names of rows that are no module and no collective."""

_OUTSIDE = (OUTSIDE_OF_MODULES, BACKWARD, LOADER)
_IDLE_DETAILS = tuple(name for name in DETAILS if name not in BUSY_DETAILS)
# So many times as many shapes in all steps as in one: then the shapes change from step to step.
_VARYING_SHAPES = 1.5


class RowKey(NamedTuple):
    """What a row of a table is, the same in every recording of one program.

    Attributes:
        name: Of a kernel its name, of an op its name, and so on.
        op: The op that launched a kernel; of a place its function and file; "" where not known, and in other tables.
        shape: The shapes of the op's inputs as recorded, "[[64,784],[784,10]]"; of a place what it calls; "" where not
            known.
        kind: "kernel", "copy", "op", "module", "collective", "rest", the detail of the account for idle time, such as
            "idle_launch", or the kind of a place, such as "line".
    """

    name: str
    op: str = ""
    shape: str = ""
    kind: str = "op"


@frozen_dataclass(eq=False)
class BreakdownTable:
    """The steps by rows that add up to them.

    Attributes:
        keys: What each row is.
        time_ns: int64 (rows, steps): the recorded time of each row in each step.
        counts: How often each row ran in all steps; 0 for what cannot be counted.
        scale: What its time is multiplied by to be that of the steps; 1 unless other steps were recorded for it.
    """

    keys: tuple[RowKey, ...]
    time_ns: Int64Array
    counts: Int64Array
    scale: float = 1.0


@frozen_dataclass(eq=False)
class StepBreakdown:
    """What the steps of one rank hold, for a comparison with another recording. Picklable, some 100 KB.

    Attributes:
        rank: The number of the rank.
        device_kind: What the program ran on: "gpu", "cpu" or "gpu_not_recorded".
        step_ns: The length of each recorded step; of the window where there are no steps.
        has_steps: Whether these are steps.
        unprofiled_step_ns: The length of each step that ran without the profiler; empty where none was timed.
        time_scale: What recorded time is multiplied by to be time without the profiler.
        tables: By name the tables. Each adds up to the steps.
        matrix_ops: By (name, shape) how often a step calls each op that multiplies matrices, convolves or attends.
        has_varying_shapes: Whether their shapes change from step to step.
        recorded: What the profiler recorded beside times: "shapes", "stacks".
        device_work: The GPU's work, for a recording on another device; empty without a GPU.
        scaling_ns: The mean step by what its time scales with on another device, by name of SCALES_WITH.
    """

    rank: int | None
    device_kind: str
    step_ns: Int64Array
    has_steps: bool
    unprofiled_step_ns: tuple[int, ...] = ()
    time_scale: float = 1.0
    tables: Mapping[str, BreakdownTable] = field(default_factory=dict)
    matrix_ops: Mapping[tuple[str, str], float] = field(default_factory=dict)
    has_varying_shapes: bool = False
    recorded: tuple[str, ...] = ()
    device_work: tuple[DeviceWork, ...] = ()
    scaling_ns: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean_step_ns(self) -> float:
        """The mean recorded step; 0 for an empty window."""
        return float(self.step_ns.mean()) if len(self.step_ns) else 0.0


def complete_with_evidence(breakdown: StepBreakdown, evidence: StepBreakdown) -> StepBreakdown:
    """What only the evidence window of a capture knows: the shapes of matrix work, and the time of modules.

    The time of its modules is scaled to the steps, because shapes and stacks take time to record.
    """
    tables, work = dict(breakdown.tables), breakdown
    if "modules" not in tables and "modules" in evidence.tables and evidence.step_ns.any():
        scale = breakdown.mean_step_ns / evidence.mean_step_ns
        tables["modules"] = replace(evidence.tables["modules"], scale=scale)
    if not any(shape for _, shape in breakdown.matrix_ops) and evidence.matrix_ops:
        work = evidence
    return replace(breakdown, tables=tables, matrix_ops=work.matrix_ops, has_varying_shapes=work.has_varying_shapes)


def break_down_gpu_steps(
    classes: KernelClasses, roof_classes: Int8Array, parts: Mapping[str, Intervals], steps: Intervals
) -> dict[str, BreakdownTable]:
    """The tables of a program on a GPU.

    `steps` is the window where there are none.
    """
    trace = classes.trace
    gpu = trace.gpu
    pieces, owner = _cut_by_gpu_item(trace, gpu_rows_by_detail(classes, roof_classes), parts)
    counted = np.append(
        iv.overlap(gpu.start_ns, gpu.end_ns, iv.union_of((steps,))) > 0, np.zeros(len(_IDLE_DETAILS), bool)
    ).astype(np.int64)
    rows = np.arange(len(gpu))
    labels, label, known, _ = label_gpu_items(trace, rows)
    shape = np.where(known, np.append(trace.ops.dims, NONE)[gpu.op], NONE)
    of_table = {
        "kernels": _kernel_keys(trace, labels, label, known, shape),
        "ops": _op_keys(trace, labels, label, known, shape),
        "modules": module_keys(trace, *launches_of(trace), [labels[each] for each in label.tolist()]),
        "collectives": _collective_keys(classes),
    }
    return {
        name: _tabulate(pieces, owner, _with_idle(*keys), counted, steps) for name, keys in of_table.items() if keys[0]
    }


def break_down_cpu_steps(trace: Trace, loading: Intervals, steps: Intervals) -> dict[str, BreakdownTable]:
    """The tables of a program on the CPU, by the own time of ops; the others only where there is something in them.

    `steps` is the window where there are none.
    """
    pieces = cut_by_op(trace, iv.union_of((steps,)), loading)
    op = pieces.op
    shape = np.append(trace.ops.dims, NONE)[np.where(is_op_row(pieces), op, NONE)]
    counts = _count_calls(pieces)
    owner = np.arange(len(pieces.row))
    thread = np.append(trace.ops.thread, 0)[op]
    names = [pieces.names[row] for row in pieces.row.tolist()]
    of_table = {
        "ops": _op_keys(trace, pieces.names, pieces.row, np.ones(len(owner), bool), shape),
        "modules": module_keys(trace, np.where(op >= 0, pieces.intervals[:, 0], NONE), thread, names),
        "collectives": _named_collective_keys(pieces),
    }
    return {name: _tabulate(pieces.intervals, owner, keys, counts, steps) for name, keys in of_table.items() if keys[0]}


_Keys = tuple[list[RowKey], Int64Array]
"""The keys of a table, and for each owner of time the number of its key."""


def _cut_by_gpu_item(
    trace: Trace, rows_of_detail: Mapping[str, BoolArray], parts: Mapping[str, Intervals]
) -> tuple[Intervals, Int64Array]:
    """The window cut into pieces, and for each piece its GPU item; behind the last item come the causes of idleness."""
    gpu = trace.gpu
    pieces, owners = [iv.EMPTY], [np.empty(0, np.int64)]
    for detail, mask in rows_of_detail.items():
        rows = np.flatnonzero(mask)
        rows = rows[np.argsort(gpu.start_ns[rows], kind="stable")]
        start, end = gpu.start_ns[rows], gpu.end_ns[rows]
        # Of items of one detail that overlap, the time goes to the one that started first.
        taken = np.maximum.accumulate(end)
        start = np.maximum(start, np.concatenate((start[:1], taken[:-1])))
        own = np.flatnonzero(end > start)
        cut, row, _ = iv.intersect_rows(np.column_stack((start, end))[own], parts[detail])
        pieces.append(cut)
        owners.append(rows[own[row]])
    for number, detail in enumerate(_IDLE_DETAILS, len(gpu)):
        pieces.append(parts[detail])
        owners.append(np.full(len(parts[detail]), number))
    return np.concatenate(pieces), np.concatenate(owners)


def _with_idle(keys: list[RowKey], row: Int64Array) -> _Keys:
    """The keys with those of the idle time behind them."""
    idle = [RowKey(detail, kind=detail) for detail in _IDLE_DETAILS]
    return [*keys, *idle], np.append(row, np.arange(len(keys), len(keys) + len(idle)))


def _tabulate(pieces: Intervals, owner: Int64Array, keys: _Keys, counted: IntArray, steps: Intervals) -> BreakdownTable:
    """The table of some pieces; rows without time are left out."""
    names, row = keys
    order = np.argsort(pieces[:, 0], kind="stable")
    cut, piece, step = iv.intersect_rows(pieces[order], steps)
    of_piece = row[owner[order]][piece]
    time_ns = np.zeros((len(names), len(steps)), np.int64)
    np.add.at(time_ns, (of_piece, step), cut[:, 1] - cut[:, 0])
    counts = np.bincount(row, weights=counted, minlength=len(names)).astype(np.int64)
    kept = np.flatnonzero(time_ns.any(axis=1))
    return BreakdownTable(tuple(names[each] for each in kept.tolist()), time_ns[kept], counts[kept])


def _distinct_keys(*columns: IntArray) -> tuple[list[tuple[int, ...]], Int64Array]:
    """The distinct rows of some columns of codes (-1 for none), and the number of each row's."""
    if not len(columns[0]):
        return [], np.empty(0, np.int64)
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, compact = np.unique(column, return_inverse=True)
        code = code * (int(compact.max()) + 1) + compact
        _, code = np.unique(code, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), code.astype(np.int64)


def _shape_text(trace: Trace, code: int) -> str:
    return (trace.text(code) or "").replace(" ", "")


def _kernel_keys(trace: Trace, labels: Sequence[str], label: Int64Array, known: BoolArray, shape: IntArray) -> _Keys:
    gpu = trace.gpu
    rows, row = _distinct_keys(gpu.name, np.where(known, label, NONE), shape, (gpu.kind == KERNEL).astype(np.int64))
    keys = [
        RowKey(trace.strings[n], labels[op] if op >= 0 else "", _shape_text(trace, dims), "kernel" if k else "copy")
        for n, op, dims, k in rows
    ]
    return keys, row


def _op_keys(trace: Trace, labels: Sequence[str], label: Int64Array, known: BoolArray, shape: IntArray) -> _Keys:
    rows, row = _distinct_keys(label, known.astype(np.int64), shape)
    keys = [RowKey(labels[op], "", _shape_text(trace, dims), "op" if k else "kernel") for op, k, dims in rows]
    return keys, row


def launches_of(trace: Trace) -> tuple[Int64Array, Int32Array]:
    """When and on which thread each GPU item was launched; NONE where not known."""
    call = trace.gpu.call
    start_ns: Int64Array = np.append(trace.calls.start_ns, NONE)[call]
    return start_ns, np.append(trace.calls.thread, 0)[call].astype(np.int32)


def module_keys(trace: Trace, at_ns: Int64Array, thread: IntArray, names: Sequence[str]) -> _Keys:
    """By the innermost nn.Module around each instant; empty where no modules were recorded.

    `names` are those of the op of each instant, which is NONE where not known.
    """
    if not len(find_module_calls(trace)):
        return [], np.empty(0, np.int64)
    code = innermost_modules(trace, at_ns, thread)
    outside = np.array([_OUTSIDE.index(_name_outside(name)) for name in names], np.int64)
    modules, row = _distinct_keys(code, np.where(code >= 0, 0, outside))
    keys = [
        RowKey(trace.strings[each].removeprefix(vocabulary.MODULE_FRAME_PREFIX), kind="module")
        if each >= 0
        else RowKey(_OUTSIDE[number], kind="rest")
        for each, number in modules
    ]
    return keys, row


def _name_outside(name: str) -> str:
    """What an op or a part of the loop is that no module runs."""
    if name == LOADER:
        return LOADER
    return BACKWARD if name.endswith(" backward") else OUTSIDE_OF_MODULES


def _collective_keys(classes: KernelClasses) -> _Keys:
    """By kind, size and group of each collective; empty where there are none."""
    trace = classes.trace
    found = gpu_collectives(classes)
    if not len(found.item):
        return [], np.empty(0, np.int64)
    metadata = collective_metadata(trace, found.comms)
    rows, row = _distinct_keys(found.kind, metadata.bytes, metadata.group_size, metadata.dtype)
    keys = [RowKey(NO_COLLECTIVE, kind="rest")]
    for kind, size_bytes, ranks, dtype in rows:
        sizes = [f"{size_bytes} bytes"] if size_bytes >= 0 else []
        sizes += [metadata.strings[dtype]] if dtype >= 0 else []
        sizes += [f"{ranks} ranks"] if ranks >= 0 else []
        keys.append(RowKey(vocabulary.COLLECTIVE_KINDS[kind], "", ", ".join(sizes), "collective"))
    of_item = np.zeros(len(trace.gpu), np.int64)
    of_item[found.item] = 1 + row
    return keys, of_item


def _named_collective_keys(pieces: Pieces) -> _Keys:
    """By the names of ops and ranges that communicate; empty where none does."""
    names = sorted({name for name in pieces.names if classify_op(name) == "communication"})
    if not names:
        return [], np.empty(0, np.int64)
    number = {name: position for position, name in enumerate(names, 1)}
    of_row = np.array([number.get(name, 0) for name in pieces.names], np.int64)
    keys = [RowKey(NO_COLLECTIVE, kind="rest"), *(RowKey(name, kind="collective") for name in names)]
    return keys, of_row[pieces.row]


def is_op_row(pieces: Pieces) -> BoolArray:
    """For each piece whether its row is an op, and no part of the loop in which ops run."""
    is_area = np.array([name in (LOADER, ZERO_GRAD) or name.endswith(".step") for name in pieces.names], bool)
    return ~is_area[pieces.row] & (pieces.op >= 0)


def _count_calls(pieces: Pieces) -> Int64Array:
    """For each piece 1 if it is the first of its op, so that the sum over the pieces of an op's row is its calls."""
    first = np.zeros(len(pieces.row), np.int64)
    known = np.flatnonzero(is_op_row(pieces))
    first[known[np.unique(pieces.op[known], return_index=True)[1]]] = 1
    return first


class MatrixWork(NamedTuple):
    """The ops that multiply matrices, convolve or attend: what tells one model from another.

    Attributes:
        counts: By (name, shape) how often a step calls each.
        has_varying_shapes: Whether the shapes change from step to step.
    """

    counts: dict[tuple[str, str], float]
    has_varying_shapes: bool


def count_matrix_work(classes: KernelClasses, steps: Intervals) -> MatrixWork:
    """The ops of matrix work in the steps, and compiled regions, which hide theirs; without ops kernels by category.

    An op inside another one that is matrix work is a part of it. On a GPU an op belongs to the step in which its first
    kernel runs: the CPU may be ahead by more than a step.
    """
    trace, gpu, window = classes.trace, classes.trace.gpu, iv.union_of((steps,))
    rows, start_ns = _find_matrix_ops(trace)
    inside = iv.contains(window, start_ns)
    rows, start_ns = rows[inside], start_ns[inside]
    if len(rows):
        keys, row = _distinct_keys(trace.ops.name[rows], trace.ops.dims[rows])
        named = [(trace.strings[name], _shape_text(trace, dims)) for name, dims in keys]
    else:
        is_matrix = classes.match_rows(lambda k: k.category in MATRIX_CATEGORIES)
        rows = np.flatnonzero(is_matrix & iv.contains(window, gpu.start_ns))
        start_ns = gpu.start_ns[rows]
        keys, row = _distinct_keys(gpu.name[rows])
        named = [(classes.by_name[name].category, "") for (name,) in keys]
    counts: dict[tuple[str, str], float] = {}
    for key, count in zip(named, np.bincount(row, minlength=len(named)).tolist(), strict=True):
        counts[key] = counts.get(key, 0.0) + count / len(steps)
    if len(steps) < 2 or not len(rows):
        return MatrixWork(counts, has_varying_shapes=False)
    step = np.searchsorted(steps[:, 0], start_ns, side="right") - 1
    in_one_step = np.bincount(distinct(step * len(named) + row) // len(named))
    return MatrixWork(counts, len(named) > _VARYING_SHAPES * max(float(np.median(in_one_step)), 1.0))


def _find_matrix_ops(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """The outermost ops of matrix work and the compiled regions, and when the work of each begins."""
    ops, gpu = trace.ops, trace.gpu
    if not len(ops):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    is_matrix = match_op_names(trace, lambda name: classify_op(name) in MATRIX_CATEGORIES)[ops.name]
    wanted = (is_matrix | trace.match_rows(ops, vocabulary.COMPILED_OP)) & ~np.append(is_matrix, False)[ops.parent]
    begins_ns = ops.start_ns.copy()
    if len(gpu):
        begins_ns[:] = np.iinfo(np.int64).max
        op, items = gpu.op, np.arange(len(gpu))
        while len(op):
            known = op >= 0
            op, items = op[known], items[known]
            np.minimum.at(begins_ns, op, gpu.start_ns[items])
            op = ops.parent[op]
    rows: Int64Array = np.flatnonzero(wanted & (begins_ns < np.iinfo(np.int64).max))
    return rows, begins_ns[rows]
