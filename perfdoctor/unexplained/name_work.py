"""What ran in a slice of time, in words: items and gaps in it, their ops, kernels and calls, how many they are."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import numpy as np

from perfdoctor.gpu.kernel_names import cut_name, short_kernel_name
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.units import format_count, format_time

Rows: TypeAlias = IntArray
# Of a list of names those with less of the time are left out.
_MIN_NAMED_SHARE = 0.05


def format_unprofiled(rank: Rank, recorded_ns: float) -> str:
    """A recorded length of time, as it is without the profiler."""
    return format_time(recorded_ns / (rank.profiler_factor or 1))


def find_items_in(rank: Rank, time: Intervals, candidates: BoolArray) -> Rows:
    """Those of the candidates (a mask of GPU items) of which more than half ran in `time`."""
    gpu = rank.trace.gpu
    rows = np.flatnonzero(candidates)
    inside = iv.overlap(gpu.start_ns[rows], gpu.end_ns[rows], time)
    return rows[2 * inside > gpu.dur_ns[rows]]


def find_gaps_in(rank: Rank, time: Intervals) -> tuple[Rows, Int64Array]:
    """The idle gaps that have time in `time`, and how much of it each has."""
    inside = iv.overlap(rank.gaps.start_ns, rank.gaps.end_ns, time)
    rows = np.flatnonzero(inside)
    return rows, inside[rows]


def count_events(rank: Rank, number: int, noun: str, plural: str | None = None) -> str:
    """A number of events of the window, in words: "12 gaps a step", "1 gap in 4 steps", "12 gaps" without steps."""
    if not rank.steps.count:
        return format_count(number, noun, plural)
    each = number / rank.steps.count
    if each < 1:
        return f"{format_count(number, noun, plural)} in {rank.steps.count} steps"
    about = "" if each >= 10 or each == round(each) else "about "
    return f"{about}{format_count(round(each), noun, plural)} a step"


def name_launchers(rank: Rank, rows: Rows, max_names: int = 2) -> str:
    """The ops that launched some GPU items, those with most time first: "mm in linear() (62 %), copy_ (30 %)".

    Items without an op are named by their kernel. An empty text where there are no items.
    """
    gpu, ops = rank.trace.gpu, rank.trace.ops
    op = gpu.op[rows]
    known = op >= 0
    inner = np.where(known, _at(ops.name, op), -1)
    outer = np.where(known, _at(ops.name, nesting.outermost(ops.parent, op) if len(ops) else op), -1)
    # Compiled code has one op for all that it launches: there the kernel's name says more.
    in_compiled = np.append(rank.trace.match_strings(ops, vocabulary.COMPILED_OP), False)[inner]
    kernel = np.where(known & ~in_compiled, -1, gpu.name[rows])
    return _name_largest(rank, (inner, outer, kernel), gpu.dur_ns[rows], max_names)


def name_gpu_items(rank: Rank, rows: Rows, max_names: int = 2) -> str:
    """The names of some GPU items, those with most time first."""
    gpu, none = rank.trace.gpu, np.full(len(rows), -1)
    return _name_largest(rank, (none, none, gpu.name[rows]), gpu.dur_ns[rows], max_names)


def name_ops(rank: Rank, rows: Rows, weight_ns: Int64Array, max_names: int = 1) -> str:
    """The names of some ops (rows of `Trace.ops`, -1 for none), those with most weight first."""
    known = rows >= 0
    rows, weight_ns = rows[known], weight_ns[known]
    ops = rank.trace.ops
    outer = _at(ops.name, nesting.outermost(ops.parent, rows.astype(np.int32))) if len(rows) else rows
    return _name_largest(rank, (_at(ops.name, rows), outer, np.full(len(rows), -1)), weight_ns, max_names)


def name_calls(rank: Rank, rows: Rows, weight_ns: Int64Array, max_names: int = 1) -> str:
    """The names of some runtime calls (rows of `Trace.calls`, -1 for none), those with most weight first."""
    known = rows >= 0
    rows, weight_ns = rows[known], weight_ns[known]
    none = np.full(len(rows), -1)
    return _name_largest(rank, (none, none, _at(rank.trace.calls.name, rows)), weight_ns, max_names)


def _name_largest(rank: Rank, columns: tuple[IntArray, ...], weight_ns: Int64Array, max_names: int) -> str:
    if not len(weight_ns):
        return ""
    number, first = distinct_rows(tuple(each.astype(np.int64) for each in columns), len(rank.trace.strings))
    totals: Counter[str] = Counter()
    for row, total in zip(first.tolist(), np.bincount(number, weights=weight_ns).tolist(), strict=True):
        totals[_name_group(rank, *(int(column[row]) for column in columns))] += total
    if len(totals) == 1:
        return next(iter(totals))
    whole = max(totals.total(), 1)
    largest = sorted(totals, key=lambda name: (-totals[name], name))[:max_names]
    largest = [name for name in largest if totals[name] >= _MIN_NAMED_SHARE * whole] or largest[:1]
    return ", ".join(f"{name} ({totals[name] / whole:.0%})" for name in largest)


def _name_group(rank: Rank, inner: int, outer: int, kernel: int) -> str:
    strings = rank.trace.strings
    if inner < 0 and kernel < 0:
        return "work without a name"
    if kernel >= 0:
        short = short_kernel_name(strings[kernel])
        return short if inner < 0 else f"{short} in {cut_name(strings[inner])}"
    name = strings[inner].removeprefix("aten::")
    around = strings[outer].removeprefix(vocabulary.AUTOGRAD_OP_PREFIX).removeprefix("aten::") if outer >= 0 else name
    # An op such as `to` has the name of a method, which reads as one with its brackets.
    brackets = "()" if strings[outer].startswith("aten::") else ""
    return cut_name(name if around == name else f"{name} in {around}{brackets}")


def _at(column: Any, rows: Any) -> Int64Array:
    """The values of a column at some rows; anything where a row is -1."""
    values: Int64Array = np.append(column, -1)[rows].astype(np.int64)
    return values


def explain_calls(rank: Rank, time: Intervals) -> str:
    """Which calls of a device's runtime a program on the CPU makes in this time, and from which op."""
    calls = rank.trace.calls
    inside = iv.overlap(calls.start_ns, calls.end_ns, time)
    rows = np.flatnonzero(inside)
    op = name_ops(rank, calls.op[rows], inside[rows])
    return (
        f"{count_events(rank, len(rows), 'call')} of the GPU's runtime ({name_calls(rank, rows, inside[rows], 2)})"
        f"{f', from {op}' if op else ''}; what the GPU did meanwhile is not in the file."
    )
