"""PD309: large embeddings with dense gradients, by the recorded inputs of ops, and what they take of the step.

What sparse gradients take was measured on a CPU with AVX-512 (AMD EPYC, 2.6 GHz, torch 2.13, one thread, CPU time) for
tables of 0.3 to 19 million numbers and 512 to 8,192 looked-up rows: some 0.1 to 0.2 ms a table, and for each number of
a looked-up row 2.5 ns with SGD, 13 ns with Adagrad, 20 ns with SparseAdam, give or take a factor of 2. A table of
100,000 rows that 4,096 were looked up in took as long as with a fused dense Adam, larger ones 1 to 40 % of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from perfdoctor.analyzers._cpu_evidence import project, rank_with_shapes, time_of_ops
from perfdoctor.rules import (
    BoolArray,
    Edit,
    FloatArray,
    Intervals,
    Rank,
    Saving,
    SourceLocation,
    captured_location,
    frozen_dataclass,
    occurring,
    optimizer_steps_of,
    scale_durations,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

_DENSE_BACKWARD = r"^aten::(embedding_dense_backward|_embedding_bag_dense_backward)$"
_LOOKUP = r"^aten::(embedding|_embedding_bag\w*|embedding_bag)$"
_MATRIX_OP = r"^aten::(linear|addmm|mm|matmul|bmm)$"
# Where each of the ops has the number of rows of the table.
_ROWS_ARGUMENT = {"aten::embedding_dense_backward": 2, "aten::_embedding_bag_dense_backward": 5}
# Of the optimizer's class: ns a table, and ns for each number of a looked-up row.
_SPARSE_NS: Mapping[str, tuple[float, float]] = {"SGD": (100_000, 2.5), "Adagrad": (200_000, 13)}
_SPARSE_ADAM_NS = (200_000, 20.0)
_SPARSE_RANGE = (0.5, 1.0, 2.0)

Table = tuple[int, int]
"""Rows and columns of an embedding."""


@frozen_dataclass(eq=False)
class DenseTables:
    """The large embeddings of a rank that get dense gradients, and are looked up in few places.

    Attributes:
        rows: How many rows a step looks up in each, by its sizes; of several of one size in the mean.
        numbers: How many there are of each size.
        gradient_time: When their gradients are made: zeros for all rows, and few numbers added.
        optimizer_time: When the optimizer goes over them, as far as that is their part of its time.
        edit: What sparse gradients change on a GPU at most; None on the CPU.
        optimizer: The class of the optimizer; None where it does not show.
        location: The line that makes the largest of them, else one that looks up in it.
    """

    rows: Mapping[Table, int]
    numbers: Mapping[Table, int]
    gradient_time: Intervals
    optimizer_time: Intervals
    edit: Edit | None
    optimizer: str | None
    location: SourceLocation | None

    @property
    def time(self) -> Intervals:
        """All of that time."""
        return iv.union_of((self.gradient_time, self.optimizer_time))

    @property
    def largest(self) -> Table:
        """The largest of them."""
        return max(self.rows, key=math.prod)


def find_dense_tables(rank: Rank, min_elements: float, min_rows_ratio: float) -> DenseTables | None:
    """The large embeddings with dense gradients; None without any, or without recorded inputs.

    Args:
        rank: The rank.
        min_elements: Smaller tables do not count.
        min_rows_ratio: Nor do those with less than so many rows for each one that a step looks up.
    """
    shaped = rank_with_shapes(rank)
    if shaped is None:
        return None
    table_of = _tables_of_gradients(shaped)
    around = optimizer_steps_of(shaped.trace).around(shaped.trace.ops.start_ns, shaped.trace.ops.thread)
    numbers = _count_tables(shaped, set(table_of.values()), around >= 0)
    looked_up = {table: -(-count // numbers[table]) for table, count in _count_lookups(shaped, table_of).items()}
    tied = _sizes_in_products(shaped)
    rows = {
        table: count
        for table, count in looked_up.items()
        if math.prod(table) >= min_elements and table[0] >= min_rows_ratio * count and table not in tied
    }
    if not rows:
        return None
    gradients = np.zeros(len(shaped.trace.ops), bool)
    gradients[[row for row, table in table_of.items() if table in rows]] = True
    share = np.where(around >= 0, _shares_of_tables(shaped, set(rows), around >= 0), 0.0)
    dur_ns = shaped.trace.ops.dur_ns
    updates = share > 0
    of_tables = float((share * dur_ns)[updates].sum() / max(int(dur_ns[updates].sum()), 1))
    making, updating = project(rank, shaped, gradients), project(rank, shaped, updates)
    return DenseTables(
        rows=rows,
        numbers={table: numbers[table] for table in rows},
        gradient_time=_time_of(rank, making),
        optimizer_time=_shorten(_time_of(rank, updating), of_tables),
        edit=None if rank.device_kind == "cpu" else _edit(rank, making, updating, of_tables),
        optimizer=_class_of(shaped, np.asarray(around[updates])),
        location=_locate(rank, shaped, max(rows, key=math.prod)),
    )


def saving_of(rank: Rank, tables: DenseTables) -> Saving:
    """What sparse gradients save: all but what it takes to handle the looked-up rows."""
    cost_ns = rank.per_step(iv.total(tables.time))
    if rank.device_kind != "cpu":
        share = max(1 - count / table[0] for table, count in tables.rows.items())
        return Saving(0, None, round(cost_ns * share), "bounded")
    table_ns, number_ns = _SPARSE_NS.get(tables.optimizer or "", _SPARSE_ADAM_NS)
    remains_ns = sum(
        tables.numbers[table] * (table_ns + number_ns * count * table[1]) for table, count in tables.rows.items()
    )
    high, expected, low = (max(cost_ns - round(remains_ns * factor), 0) for factor in _SPARSE_RANGE)
    return Saving(low, expected, high, "bounded")


def _time_of(rank: Rank, ops: BoolArray) -> Intervals:
    """When some ops ran; on a GPU their kernels."""
    return time_of_ops(rank, ops) if rank.device_kind == "cpu" else rank.ops.where(ops).kernels.time


def _edit(rank: Rank, gradients: BoolArray, updates: BoolArray, of_tables: float) -> Edit:
    """No dense gradients, and the optimizer's kernels without the tables."""
    of_gradients, of_updates = (rank.ops.where(ops).kernels.where(rank.in_window) for ops in (gradients, updates))
    return scale_durations(of_gradients.rows, 1.0) | scale_durations((of_updates - of_gradients).rows, of_tables)


def _shorten(time: Intervals, share: float) -> Intervals:
    """The first part of each interval: what a share of it frees lies nowhere else."""
    shorter = time.copy()
    shorter[:, 1] = time[:, 0] + np.round((time[:, 1] - time[:, 0]) * share).astype(np.int64)
    return shorter[shorter[:, 1] > shorter[:, 0]]


def _tables_of_gradients(shaped: Rank) -> dict[int, Table]:
    """The ops of the window that make a dense gradient, rows of `trace.ops`, each with the sizes of its table."""
    trace, ops = shaped.trace, shaped.trace.ops
    found = {}
    for row in np.flatnonzero(shaped.ops.named(_DENSE_BACKWARD).in_steps().mask & (ops.dims >= 0)).tolist():
        concrete, dims = _read(trace.text(int(ops.concrete[row]))), _read(trace.text(int(ops.dims[row])))
        argument = _ROWS_ARGUMENT[trace.strings[int(ops.name[row])]]
        try:
            found[row] = (int(concrete[argument]), int(dims[0][-1]))
        except (LookupError, TypeError, ValueError):
            continue
    return found


def _count_lookups(shaped: Rank, table_of: Mapping[int, Table]) -> dict[Table, int]:
    """How many rows a step looks up in each table, at most: some may be looked up twice."""
    counts: dict[Table, int] = {}
    for row, table in table_of.items():
        indices = _read(shaped.trace.text(int(shaped.trace.ops.dims[row])))[1]
        counts[table] = counts.get(table, 0) + math.prod(indices)
    return {table: -(-count // max(shaped.steps.count, 1)) for table, count in counts.items()}


def _count_tables(shaped: Rank, tables: set[Table], in_optimizer: BoolArray) -> dict[Table, int]:
    """How many tables there are of each size: as often as it stands in a list of the optimizer; one without a list."""
    trace, ops = shaped.trace, shaped.trace.ops
    counts = dict.fromkeys(tables, 1)
    for code in occurring(ops.dims[in_optimizer]).tolist():
        arguments = _read(trace.strings[code]) if code >= 0 else []
        sizes = [tuple(each) for each in (arguments[0] if arguments else ()) if isinstance(each, list)]
        for table in tables.intersection(sizes):
            counts[table] = max(counts[table], sizes.count(table))
    return counts


def _sizes_in_products(shaped: Rank) -> set[Table]:
    """The sizes of all matrices that are multiplied: such a table is the head's weight, too, with a dense gradient."""
    trace, ops = shaped.trace, shaped.trace.ops
    found: set[Table] = set()
    for code in occurring(ops.dims[trace.match_rows(ops, _MATRIX_OP)]).tolist():
        for size in _read(trace.strings[code]) if code >= 0 else ():
            if isinstance(size, list) and len(size) == 2 and all(type(each) is int for each in size):
                found |= {(size[0], size[1]), (size[1], size[0])}
    return found


def _shares_of_tables(shaped: Rank, tables: set[Table], rows: BoolArray) -> FloatArray:
    """For each op the share of the numbers in its first argument, a tensor or a list of them, that are of tables."""
    trace, ops = shaped.trace, shaped.trace.ops
    shares = np.zeros(len(trace.strings) + 1)
    for code in occurring(ops.dims[rows]).tolist():
        arguments = _read(trace.strings[code]) if code >= 0 else []
        first = arguments[0] if arguments and isinstance(arguments[0], list) else []
        sizes = first if first and isinstance(first[0], list) else [first]
        numbers = [math.prod(size) if size else 0 for size in sizes]
        of_tables = [n for size, n in zip(sizes, numbers, strict=True) if tuple(size) in tables]
        shares[code] = sum(of_tables) / max(sum(numbers), 1)
    result: FloatArray = shares[ops.dims]
    return result


def _class_of(shaped: Rank, ranges: Any) -> str | None:
    """The class of the optimizer whose steps these are most often, by rows of `trace.ranges`."""
    if not len(ranges):
        return None
    names = shaped.trace.ranges.name[ranges]
    return vocabulary.optimizer_class(shaped.trace.strings[int(np.bincount(names).argmax())])


def _locate(rank: Rank, shaped: Rank, table: Table) -> SourceLocation | None:
    """The line that makes the table, as captured; else one that looks up in it."""
    for model in rank.facts.models:
        for each in model.embeddings:
            if (each.num_embeddings, each.embedding_dim) == table:
                found = captured_location(each.created)
                if found is not None:
                    return found
    trace, ops = shaped.trace, shaped.trace.ops
    lookups = np.flatnonzero(trace.match_rows(ops, _LOOKUP) & (ops.dims >= 0))
    sizes = [_read(trace.text(int(code))) for code in ops.dims[lookups]]
    of_table = [bool(each) and each[0] == list(table) for each in sizes]
    return shaped.places.line_of_ops(lookups[np.array(of_table, bool)])


def _read(text: str | None) -> list[Any]:
    """A recorded list; empty where there is none."""
    try:
        value = orjson.loads(text or "[]")
    except orjson.JSONDecodeError:
        return []
    return value if isinstance(value, list) else []
