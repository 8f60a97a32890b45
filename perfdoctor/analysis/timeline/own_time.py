"""Where the time of a step goes by op: own time, so that the shares add up to the step.

On a CPU the time of a piece of code goes to the innermost op, and what no op takes to Python. Work inside a DataLoader,
an optimizer's step and `zero_grad` goes to these, work of the autograd engine to the node that it runs::

    __next__  [ Python, stack, copy_      ]                                      -> DataLoader
    forward                                 [ linear: addmm ]                    -> addmm
    backward                                                 [ Addmm...: mm, mm ] -> addmm backward

On a GPU it is the time of kernels and copies, by the op that launched them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.locations import loop_thread_of
from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.analysis.timeline.account import innermost_ops
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct, distinct_rows
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

LOADER, ZERO_GRAD, PYTHON = "DataLoader", "zero_grad", "Python, outside of ops"
"""Names of what is no op."""
_NODE_NUMBER = re.compile(r"Backward\d*$")
_NEW_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=\d)(?=[A-Z][a-z])|(?<=\dD)(?=[A-Z])")


class _Area(NamedTuple):
    """A part of the step that is one row: its name, its time, and when its calls begin."""

    name: str
    time: Intervals
    start_ns: Int64Array


class Pieces(NamedTuple):
    """The window cut into pieces, each of which belongs to one row; together they are the window.

    Attributes:
        intervals: The pieces, disjoint, in any order.
        row: For each piece the number of its row.
        op: For each piece the op that runs in it; NONE where none does.
        call: For each piece the op that counts as its call: in the backward pass that of a node; NONE where none does.
        names: The name of each row; two rows may have the same.
        counts: How often each row ran; 0 for Python.
    """

    intervals: Intervals
    row: Int64Array
    op: Int32Array
    call: Int32Array
    names: list[str]
    counts: list[int]


def cut_by_op(trace: Trace, window: Intervals, loading: Intervals) -> Pieces:
    """The window of a program on the CPU, cut into the own time of ops, of parts of the loop, and of Python."""
    ops = trace.ops
    start, end, owner = innermost_ops(ops)
    names, label, call = label_ops(trace, np.arange(len(ops), dtype=np.int32))
    label, areas = label[owner], _areas_of_step(trace, loading)
    for number, area in enumerate(areas, len(names)):
        label[iv.contains(area.time, start)] = number
    names += [area.name for area in areas]
    intervals, piece, free = _cut_pieces(trace, start, end, ops.thread[owner], window)
    row, op = label[piece], owner[piece]
    first = piece[np.unique(call[op], return_index=True)[1]]
    counts = np.bincount(label[first], minlength=len(names)).tolist()
    parts, rows = [intervals], [row]
    for number, area in enumerate(areas, len(names) - len(areas)):
        # What no op takes in it is its Python.
        parts.append(iv.intersect(free, area.time))
        rows.append(np.full(len(parts[-1]), number))
        counts[number] = int(iv.contains(window, area.start_ns).sum())
        free = iv.subtract(free, area.time)
    for area in _collectives(trace):
        # Other threads run them: only what nothing else takes is theirs.
        parts.append(iv.intersect(free, area.time))
        rows.append(np.full(len(parts[-1]), len(names)))
        names.append(area.name)
        counts.append(int(iv.contains(window, area.start_ns).sum()))
        free = iv.subtract(free, area.time)
    parts.append(free)
    rows.append(np.full(len(free), len(names)))
    without_op = np.full(sum(map(len, parts[1:])), NONE, np.int32)
    every = np.concatenate(rows).astype(np.int64)
    call = np.concatenate((call[op], without_op))
    return Pieces(np.concatenate(parts), every, np.concatenate((op, without_op)), call, [*names, PYTHON], [*counts, 0])


class GpuLabels(NamedTuple):
    """What some GPU items are called by: their ops, as a rule.

    Attributes:
        names: The names, each once.
        label: For each item the number of its name.
        known: For each item whether that is the name of an op or of an optimizer, and not its own.
        call: For each item the number of the call that launched it: items of one op, of one node of the backward pass
            or of one step of an optimizer have the same. An item of its own name is a call of its own.
    """

    names: list[str]
    label: Int64Array
    known: BoolArray
    call: Int64Array


def label_gpu_items(trace: Trace, rows: Int64Array) -> GpuLabels:
    """The labels of some GPU items.

    The name is that of the op which launched the item, else of the optimizer, else the item's own.
    """
    gpu, ops = trace.gpu, trace.ops
    # Compiled code has one op for all that it launches, and collectives run in whatever op ends last before them.
    by_kernel = np.append(trace.match_rows(ops, vocabulary.COMPILED_OP), False)[gpu.op[rows]]
    known = (gpu.op[rows] >= 0) & ~by_kernel & ~trace.match_rows(gpu, vocabulary.NCCL_KERNEL)[rows]
    label = np.empty(len(rows), np.int64)
    call = len(ops) + np.arange(len(rows))
    names, label[known], call[known] = label_ops(trace, gpu.op[rows[known]])
    launched_ns = np.where(gpu.call[rows] >= 0, _at(trace.calls.start_ns, gpu.call[rows]), -1)
    areas, calls = _optimizer_areas(trace), len(ops) + len(rows)
    for number, area in enumerate(areas, len(names)):
        inside = known & iv.contains(area.time, launched_ns)
        label[inside] = number
        call[inside] = calls + np.searchsorted(area.start_ns, launched_ns[inside], side="right")
        calls += len(area.start_ns) + 1
    names += [area.name for area in areas]
    of_kernel, kernel = np.unique(gpu.name[rows[~known]], return_inverse=True)
    label[~known] = len(names) + kernel
    names += [_kernel_name(trace.strings[code]) for code in of_kernel.tolist()]
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return GpuLabels(list(number_of), np.array([number_of[name] for name in names], np.int64)[label], known, call)


def cut_by_thread(trace: Trace, window: Intervals) -> tuple[Intervals, Int32Array]:
    """The window in pieces, each with the innermost op that runs in it; NONE where none does.

    Where several threads run ops it is the loop's, else that of the thread with the most ops.
    """
    start, end, owner = innermost_ops(trace.ops)
    time, piece, free = _cut_pieces(trace, start, end, trace.ops.thread[owner], window)
    return np.concatenate((time, free)), np.concatenate((owner[piece], np.full(len(free), NONE, np.int32)))


def _cut_pieces(
    trace: Trace, start: Int64Array, end: Int64Array, thread: Int32Array, window: Intervals
) -> tuple[Intervals, Int64Array, Intervals]:
    """The parts of pieces of ops in the window that no other thread takes, the piece of each, and when no op runs.

    The thread of the loop comes first, then the others by how much they run.
    """
    parts, pieces, free = [iv.EMPTY], [np.empty(0, np.int64)], window
    busy_ns, loop = np.bincount(thread, weights=end - start), loop_thread_of(trace)
    for number in sorted(np.flatnonzero(busy_ns).tolist(), key=lambda each: (each != loop, -busy_ns[each])):
        rows = np.flatnonzero(thread == number)
        part, _, row = iv.intersect_rows(free, np.column_stack((start[rows], end[rows])))
        parts.append(part)
        pieces.append(rows[row])
        free = iv.subtract(free, iv.union(start[rows], end[rows]))
    return np.concatenate(parts), np.concatenate(pieces), free


def label_ops(trace: Trace, rows: Int32Array) -> tuple[list[str], Int64Array, Int32Array]:
    """For some ops: names, for each op the number of its name, and the op that counts as its call.

    An op of the backward pass has the name of the node that the autograd engine runs, which is the call.
    """
    ops, count = trace.ops, len(trace.strings)
    if not len(rows):
        return [], np.empty(0, np.int64), rows
    top = nesting.outermost(ops.parent, rows)
    in_node = trace.match_rows(ops, vocabulary.AUTOGRAD_OP)[top]
    code = np.where(in_node, count + ops.name[top].astype(np.int64), ops.name[rows])
    label, first = distinct_rows((code,), 2 * count)
    strings, codes = trace.strings, code[first].tolist()
    names = [
        _node_name(strings[each - count]) if each >= count else strings[each].removeprefix("aten::") for each in codes
    ]
    return names, label, np.where(in_node, top, rows).astype(np.int32)


def _kernel_name(name: str) -> str:
    return _collective_name(name) if re.search(vocabulary.NCCL_KERNEL, name) else name


def _collective_name(name: str) -> str:
    return f"{vocabulary.collective_kind(name)}, communication"


def _node_name(name: str) -> str:
    """The name of a node of the graph as the op that it belongs to: "addmm backward"."""
    node = name.removeprefix(vocabulary.AUTOGRAD_OP_PREFIX).removeprefix("torch::autograd::")
    words = _NEW_WORD.sub("_", _NODE_NUMBER.sub("", node)).lower()
    return f"{words} backward" if _NODE_NUMBER.search(node) else words


def _areas_of_step(trace: Trace, loading: Intervals) -> list[_Area]:
    """The DataLoader, zeroing and the optimizers, disjoint."""
    ranges = trace.ranges
    zeroing = trace.match_rows(ranges, vocabulary.ZERO_GRAD)
    zeroed = iv.union(ranges.start_ns[zeroing], ranges.end_ns[zeroing])
    areas, taken = [], iv.EMPTY
    for area in (
        _Area(LOADER, loading, loading[:, 0]),
        _Area(ZERO_GRAD, zeroed, ranges.start_ns[zeroing]),
        *_optimizer_areas(trace),
    ):
        areas.append(area._replace(time=iv.subtract(area.time, taken)))
        taken = iv.union_of((taken, area.time))
    return [area for area in areas if len(area.time)]


def _collectives(trace: Trace) -> list[_Area]:
    """The collectives that threads of the CPU run, by their kind."""
    ranges = trace.ranges
    areas = []
    for code in distinct(ranges.name[trace.match_rows(ranges, vocabulary.CPU_COLLECTIVE_RANGE)]).tolist():
        rows = ranges.name == code
        start, end = ranges.start_ns[rows], ranges.end_ns[rows]
        areas.append(_Area(_collective_name(trace.strings[code]), iv.union(start, end), start))
    return areas


def _optimizer_areas(trace: Trace) -> list[_Area]:
    """The own time of each class of optimizer, without closures in its steps."""
    ranges, steps = trace.ranges, optimizer_steps_of(trace)
    areas = []
    for code in distinct(ranges.name[steps.rows]).tolist():
        rows = steps.rows[ranges.name[steps.rows] == code]
        name = f"{vocabulary.optimizer_class(trace.strings[code])}.step"
        areas.append(_Area(name, steps.own_time(rows), ranges.start_ns[rows]))
    return areas


def _at(column: IntArray, rows: IntArray) -> Int64Array:
    values: Int64Array = np.append(column, -1)[rows].astype(np.int64)
    return values
