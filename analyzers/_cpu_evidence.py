"""Programs on the CPU: the own time of ops, and what a window with recorded inputs says of the window without them.

`perfdoctor run` analyses a window that has no shapes, because recording them costs time, and records shapes of the same
program in another one. What is known of an op there holds for the op that stands at the same place of the step here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import orjson

from perfdoctor.rules import (
    NONE,
    Advice,
    Analyzer,
    BoolArray,
    Claim,
    Evidence,
    Finding,
    Int64Array,
    Intervals,
    Rank,
    Recurrence,
    Saving,
    SourceLocation,
    Trace,
    nesting,
)
from perfdoctor.rules import intervals as iv

# An op that takes less computes nothing worth counting: 5 us are the dispatcher's (`LATENCY_FLOOR_NS` of the account).
_MIN_NS = 5_000
# From the call to the op that does its work: linear [ matmul [ mm ] ], dropout [ native_dropout [ bernoulli_ ] ].
_MAX_DEPTH = 3


class FoundWork(NamedTuple):
    """Work that a rule finds, as the parts of its finding.

    Attributes:
        title, advice, location, evidence, confidence, subject: Of the finding.
        time: When it runs, which is its cost.
        saving: What the fix saves of a step; None where all of the time is the bound.
        worth_ns: What has to reach the rule's `min_share`, in ns a step; None for the cost.
        recurrence: Of the finding, if known.
    """

    title: str
    advice: str | Advice
    time: Intervals
    saving: Saving | None = None
    location: SourceLocation | None = None
    evidence: tuple[Evidence, ...] = ()
    confidence: float = 0.7
    subject: str = ""
    worth_ns: int | None = None
    recurrence: Recurrence | None = None


def report_work(
    rule: Analyzer, rank: Rank, work: FoundWork | None, min_share: float = 0.0, *, by_table: bool = False
) -> Iterator[Finding]:
    """The finding of a rule on some work, where it takes `min_share` of the step and the rule's own; else none.

    `by_table` says that its saving was measured elsewhere, and gives way to a form that was measured here.
    """
    if work is None:
        return
    cost_ns = rank.per_step(iv.total(work.time))
    if rule.exceeds_min_share(rank, cost_ns if work.worth_ns is None else work.worth_ns, min_share):
        finding = rule.finding(
            rank,
            title=work.title,
            cost_ns=cost_ns,
            saving=(work.saving or Saving(0, None, cost_ns, "bounded")).cap(cost_ns),
            advice=work.advice,
            claim=Claim(work.time),
            confidence=work.confidence,
            location=work.location,
            evidence=work.evidence,
            subject=work.subject,
            recurrence=work.recurrence,
        )
        yield replace(finding, has_table_price=by_table)


def own_time_of(trace: Trace) -> Int64Array:
    """The time of each op without the ops inside: a convolution allocates its result, and computes after that."""
    return nesting.own_durations(trace.ops.parent, trace.ops.dur_ns)


def ops_within(trace: Trace, around: BoolArray) -> BoolArray:
    """For each op whether it is one of some ops, or lies in one."""
    result = around
    for _ in range(_MAX_DEPTH):
        result = result | np.append(result, False)[trace.ops.parent]
    return result


def name_longest(trace: Trace, rows: Int64Array) -> str:
    """The name of the op with the most time among some ops, of which there is one at least."""
    ops = trace.ops
    names, codes = np.unique(ops.name[rows], return_inverse=True)
    return trace.strings[int(names[np.bincount(codes, ops.dur_ns[rows]).argmax()])]


def computing_ops(rank: Rank) -> BoolArray:
    """For each op of the window whether it computes itself, and longer than it takes to call it.

    Ops that run while the loop waits for a batch are the loader's.
    """
    ops = rank.trace.ops
    inside = iv.contains(iv.subtract(rank.window, rank.loader_waits.intervals), ops.start_ns)
    result: BoolArray = inside & (own_time_of(rank.trace) >= _MIN_NS)
    return result


def rank_with_shapes(rank: Rank) -> Rank | None:
    """The rank where its ops have recorded inputs, else its evidence window; None where neither has any."""
    return _first_window(rank, _has_shapes)


def rank_with_stacks(rank: Rank, *, with_shapes: bool = False) -> Rank | None:
    """The same for Python's frames, and for recorded inputs with them."""
    return _first_window(rank, lambda trace: len(trace.frames) > 0 and (not with_shapes or _has_shapes(trace)))


def _first_window(rank: Rank, shows: Callable[[Trace], bool]) -> Rank | None:
    """The rank where its trace shows something, else its evidence window where that does."""
    return next((each for each in (rank, rank.evidence) if each is not None and shows(each.trace)), None)


def _has_shapes(trace: Trace) -> bool:
    return bool((trace.ops.dims >= 0).any())


def project(rank: Rank, shaped: Rank, marks: BoolArray) -> BoolArray:
    """What is true of some ops of another window, for the ops of this one.

    Ops are the same where they are as many of a name in the step, and at the same place among them. Of a name that is
    called more or less often in a step than there, all are marked if most of its time there is::

        last step of the other window   mul*  add  mul        (* marked)
        a step of this one              mul*  add  mul
        a step of this one              mul   add  mul  mul   half of mul's time or less is marked there

    Args:
        rank: The rank.
        shaped: The rank itself, or its evidence window.
        marks: For each op of `shaped` whether it is marked.
    """
    if shaped is rank:
        return marks
    here, there = _Places(rank), _Places(shaped)
    codes = {name: code for code, name in enumerate(shaped.trace.strings)}
    same = np.array([codes.get(name, NONE) for name in rank.trace.strings], np.int64)
    of_marked, of_all = (
        np.bincount(there.name, weights=there.dur_ns * weight, minlength=len(codes) + 1)
        for weight in (marks[there.rows], np.ones(len(there.rows)))
    )
    mostly = np.append(of_marked > of_all / 2, False)
    last = np.flatnonzero(there.step == there.step.max()) if len(there.rows) else np.empty(0, np.int64)
    count = np.bincount(there.name[last], minlength=len(codes) + 1)
    first = np.cumsum(count) - count
    at = np.zeros(len(last) + 1, bool)
    at[first[there.name[last]] + there.place[last]] = marks[there.rows[last]]
    name = same[here.name]
    known = (name >= 0) & (count[name] == here.count) & (here.count > 0)
    result = np.zeros(len(rank.trace.ops), bool)
    result[here.rows] = np.where(known, at[np.where(known, first[name] + here.place, len(last))], mostly[name])
    return result


class _Places:
    """Where each op of the steps stands among those of its name and step.

    Attributes:
        rows: The ops in the steps, rows of `trace.ops`.
        name, dur_ns: Their columns.
        step: The number of each op's step.
        place: How many of its name began before it in the step.
        count: How many of its name there are in the step.
    """

    def __init__(self, rank: Rank) -> None:
        ops, starts = rank.trace.ops, rank.window[:, 0]
        self.rows: Int64Array = np.flatnonzero(iv.contains(rank.window, ops.start_ns))
        if rank.steps.count:
            starts = rank.steps.intervals[:, 0]
        self.name, self.dur_ns = ops.name[self.rows].astype(np.int64), ops.dur_ns[self.rows]
        self.step: Int64Array = np.searchsorted(starts, ops.start_ns[self.rows], "right")
        group = self.step * (len(rank.trace.strings) + 1) + self.name
        order = np.argsort(group, kind="stable")  # the rows are sorted by start
        _, first, number, count = np.unique(group[order], return_index=True, return_inverse=True, return_counts=True)
        self.place = np.empty(len(order), np.int64)
        self.place[order] = np.arange(len(order)) - first[number]
        self.count = np.empty(len(order), np.int64)
        self.count[order] = count[number]


def time_of_ops(rank: Rank, rows: BoolArray) -> Intervals:
    """When any of some ops ran in the window, without the time in which the loop waits for a batch."""
    ops = rank.trace.ops
    time = iv.intersect(iv.union(ops.start_ns[rows], ops.end_ns[rows]), rank.window)
    return iv.subtract(time, rank.loader_waits.intervals)


def time_of_both_passes(rank: Rank, forward: BoolArray) -> Intervals:
    """When some ops of the forward pass, and those of their backward pass, ran in the window, outside of loading."""
    return time_of_ops(rank, forward | np.append(forward, False)[rank.forward_ops.forward])


@lru_cache(maxsize=4096)  # a recording has many ops of few sizes
def sizes_of(dims: str | None) -> tuple[tuple[int, ...], ...]:
    """The sizes of an op's arguments by their recorded text, () for a number; empty where that is not known.

    Lists of tensors, such as the argument of cat, are left out.
    """
    try:
        sizes = orjson.loads(dims or "[]")
    except orjson.JSONDecodeError:
        return ()
    lists = [size for size in sizes if isinstance(size, list)] if isinstance(sizes, list) else []
    return tuple(tuple(size) for size in lists if all(type(n) is int for n in size))


def arguments_of(trace: Trace, row: int) -> list[int | None]:
    """The arguments of an op that are whole numbers, None for others; empty where they were not recorded."""
    try:
        values = orjson.loads(trace.text(int(trace.ops.concrete[row])) or "[]")
    except orjson.JSONDecodeError:
        return []
    return [int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else None for value in values]


# The argument of a product that holds its rows, by the name of the op.
ROWS_ARGUMENT = {"linear": 0, "addmm": 1, "mm": 0, "matmul": 0}


def size_of_rows(trace: Trace, row: int) -> tuple[int, ...]:
    """The sizes of the argument whose rows a product multiplies, by its row in `trace.ops`; () for other ops."""
    ops = trace.ops
    return rows_argument(trace.strings[ops.name[row]].removeprefix("aten::"), sizes_of(trace.text(int(ops.dims[row]))))


def rows_argument(name: str, sizes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The same by the op's name without its namespace, and by the sizes of its arguments."""
    argument = ROWS_ARGUMENT.get(name)
    return sizes[argument] if argument is not None and len(sizes) > argument else ()
