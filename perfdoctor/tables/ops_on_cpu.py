"""The table of ops of a program on the CPU: the own time of ops, of parts of the loop, and of Python."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.host.locations import loop_thread_of
from perfdoctor.analysis.step_breakdown import is_op_row
from perfdoctor.analysis.timeline.own_time import LOADER, PYTHON, ZERO_GRAD, Pieces, cut_by_op
from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.group_items import (
    NamedGroups,
    category_by_name,
    code_modules,
    name_lines,
    number_texts,
    shape_columns,
)
from perfdoctor.tables.line_columns import lines_of_work
from perfdoctor.tables.shared_columns import Groups, Source, make_column
from perfdoctor.trace.arrays import NONE, Int64Array, IntArray

_CATEGORY_OF_PART = {LOADER: "data loading", ZERO_GRAD: "optimizer", PYTHON: "python"}


def own_time_table(source: Source, by: str) -> Table:
    """The window of a program on the CPU by the own time of its ops: the rows add up to it.

    `by` is "name", "shape", "category", "module" or "line".
    """
    rank = source.rank
    pieces = cut_by_op(rank.trace, rank.window, rank.loader_waits.intervals)
    named = _group_pieces(rank, pieces, by)
    groups = named.groups
    is_op = is_op_row(pieces)
    calls = groups.count_distinct(np.where(is_op, pieces.call, NONE))
    if by in ("name", "shape"):
        # A part of the loop, such as the DataLoader, is one row.
        in_part = ~is_op[groups.first]
        calls[in_part] = np.array(pieces.counts, np.int64)[pieces.row[groups.first[in_part]]]
    time_ns, title = groups.time_ns, by if by not in ("name", "shape") else "op"
    return source.build(by, title, named.names, time_ns, calls, source.count(calls), *named.columns, keep=time_ns)


def _group_pieces(rank: Rank, pieces: Pieces, by: str) -> NamedGroups:
    trace, op, at_ns = rank.trace, pieces.op, pieces.intervals[:, 0]
    thread = np.where(op >= 0, np.append(trace.ops.thread, 0)[op], loop_thread_of(trace)).astype(np.int32)
    if by == "line":
        lines = lines_of_work(rank, at_ns, thread, op)
        groups = _group(pieces, lines.code)
        return NamedGroups(groups, *name_lines(lines, groups.of_first(lines.code)))
    names, label = number_texts(pieces.names)
    row = label[pieces.row]
    if by == "module":
        modules, module = code_modules(rank, at_ns, thread, op)
        return NamedGroups.by_code(_group(pieces, module), modules, module)
    categories, of_name = number_texts([_category_of_part(name) for name in names])
    category = of_name[row]
    if by == "category":
        return NamedGroups.by_code(_group(pieces, category), categories, category)
    return _by_name_or_shape(rank, pieces, row, names, [categories[each] for each in of_name], with_shape=by == "shape")


def _by_name_or_shape(
    rank: Rank, pieces: Pieces, row: Int64Array, names: list[str], categories: list[str], *, with_shape: bool
) -> NamedGroups:
    trace = rank.trace
    of_op = np.where(is_op_row(pieces), pieces.op, NONE)
    dims, types = (np.append(column, np.int32(NONE))[of_op] for column in (trace.ops.dims, trace.ops.types))
    groups = _group(pieces, row, dims, types) if with_shape else _group(pieces, row)
    shapes = shape_columns(trace, groups.of_first(dims), groups.of_first(types)) if with_shape else ()
    category = make_column("category", [categories[each] for each in groups.of_first(row)])
    return NamedGroups.by_code(groups, names, row, *shapes, category)


def _group(pieces: Pieces, *keys: IntArray) -> Groups:
    return Groups.by(np.arange(len(pieces.row)), pieces.intervals[:, 1] - pieces.intervals[:, 0], *keys)


def _category_of_part(name: str) -> str:
    """The category of a row: of an op by its name."""
    if name in _CATEGORY_OF_PART:
        return _CATEGORY_OF_PART[name]
    return category_by_name(name) or ("optimizer" if name.endswith(".step") else "other")
