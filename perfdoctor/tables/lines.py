"""The table of lines: GPU time and idle time by the user's lines, backward work at the line of its forward op."""

from __future__ import annotations

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.tables.line_columns import NO_LINE, lines_of_work
from perfdoctor.tables.shared_columns import Source, choose_source
from perfdoctor.tables.work_in_window import Work, costs_of_work, sum_by, work_in_window
from perfdoctor.trace.arrays import NONE, FloatArray, Int64Array

_NOT_THE_SAME = "the short table of a report gives the work of the backward pass to the line that calls backward()"

_NO_NUMBERS = (
    "the trace has no sequence numbers, which recent versions of PyTorch record: the work of the backward pass stays "
    "at the line that calls backward()"
)


def lines_table(rank: Rank, by: str) -> Table:
    """The user's lines with the time of what they launch, forward and backward, and the idle time that they cause.

    Where Python stacks were recorded a line is that of the function's definition, and where `perfdoctor run` recorded
    lines the one that ran. `by` is "line", "function" or "file".
    """
    source = choose_source("lines", rank, "lines")
    inner = source.rank
    if not source.has_need:
        return source.empty(by, *source.notes)
    work, idle = work_in_window(inner), inner.idle_instants
    keys, row, idle_row = _rows_of(inner, work, by)
    count = len(keys) + 1  # the last row is that of no line
    time_ns = sum_by(row, work.time_ns, count)
    backward_ns = sum_by(row, np.where(work.in_backward, work.time_ns, 0), count)
    # What a program on the CPU does is cut where ops begin and end: such pieces are not counted.
    launches = sum_by(row[: len(work.items)], np.ones(len(work.items), np.int64), count)
    known = idle.at_ns != NONE  # waits for other ranks, and what no cause explains, are no line's
    idle_ns = sum_by(idle_row[known], idle.weight_ns[known], count)
    longest = np.zeros(count, np.int64)
    np.maximum.at(longest, row, work.time_ns)
    costs, on_gpu = costs_of_work(inner, work), np.full(count, inner.device_kind == "gpu")
    places = [*keys, ("", None, None)]
    columns = (
        source.time("forward_ns", time_ns - backward_ns),
        source.time("backward_ns", backward_ns),
        source.time("idle_ns", idle_ns, on_gpu),
        source.count(launches),
        source.column("source", [None] * count),
        source.column("function", [function for _, _, function in places]),
        source.column("file", [file for file, _, _ in places]),
        source.column("line", [line for _, line, _ in places]),
        *(_total(source, name, row, getattr(costs, name), count) for name in ("flops", "bytes")),
    )
    notes = [_NOT_THE_SAME if inner.forward_ops.has_numbers else _NO_NUMBERS] if work.in_backward.any() else []
    names, keep = [*map(_name, keys), NO_LINE], time_ns + idle_ns
    return source.build(by, by, names, time_ns, launches, *columns, max_ns=longest, notes=notes, keep=keep)


_Key = tuple[str, int | None, str | None]


def _rows_of(rank: Rank, work: Work, by: str) -> tuple[list[_Key], Int64Array, Int64Array]:
    """The keys of the rows, and for each piece of work, and for each instant of idle time, the number of its row."""
    idle = rank.idle_instants
    lines = lines_of_work(
        rank,
        np.concatenate((work.at_ns, idle.at_ns)),
        np.concatenate((work.thread, idle.thread)),
        np.concatenate((work.op, idle.op)),
    )
    keys = [_key(each.file, each.line, each.function, by) for each in lines.locations]
    number_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    row_of = np.array([*(number_of[key] for key in keys), len(number_of)], np.int64)
    row, idle_row = np.split(row_of[lines.code], [len(work)])
    return list(number_of), row, idle_row


def _key(file: str, line: int | None, function: str | None, by: str) -> _Key:
    if by == "file":
        return file, None, None
    return (file, None, function) if by == "function" else (file, line, function)


def _name(key: _Key) -> str:
    """What a row is called: "train.py:12", "train.py:step" or "train.py"."""
    file, line, function = key
    short = file.replace("\\", "/").rpartition("/")[2]
    place = function if line is None else line
    return short if place is None else f"{short}:{place}"


def _total(source: Source, name: str, row: Int64Array, amounts: FloatArray, count: int) -> Column:
    known = ~np.isnan(amounts)
    total = np.bincount(row, np.where(known, amounts, 0), count)
    return source.column(name, total, known=np.bincount(row, known, count) > 0)
