"""Split a trace that holds several ranks into one trace for each."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import Comms, MemoryEvents, Table, Trace
from perfdoctor.trace.tables.trace_warnings import link_warnings, merged_warning

_AnyTable = TypeVar("_AnyTable", bound=Table | Comms | MemoryEvents)


def ranks_in(trace: Trace) -> tuple[int, ...]:
    """The ranks that a trace holds, ascending: those that have GPU items, calls or ops."""
    on_cpu = np.zeros(len(trace.threads), bool)
    on_cpu[trace.calls.thread] = on_cpu[trace.ops.thread] = True
    found = distinct(np.concatenate((distinct(trace.gpu.process), _process_of_thread(trace)[on_cpu])))
    return tuple(found[found >= 0].tolist())


def split_ranks(trace: Trace) -> tuple[Trace, ...]:
    """One trace for each rank; the trace itself when it holds one rank.

    Each has the rank's events with the links among them, and its number as `rank`. Strings and threads are shared, the
    columns are copies. Events of none of the ranks are left out, such as those of a DataLoader's workers, which the
    recording of a whole node holds too.
    """
    if not trace.processes and not trace.gpu.process.any():  # as in nearly all files
        return (trace,)
    ranks = ranks_in(trace)
    if len(ranks) < 2:
        return (trace,)
    # These two are about the file as a whole.
    of_file = {*link_warnings(trace), merged_warning(len(ranks))}
    warnings = tuple(warning for warning in trace.warnings if warning not in of_file)
    process = _process_of_thread(trace)
    return tuple(_extract_rank(replace(trace, warnings=warnings), process == rank, rank) for rank in ranks)


def _process_of_thread(trace: Trace) -> Int32Array:
    return np.array(trace.processes or [0] * len(trace.threads), np.int32)


def _extract_rank(trace: Trace, of_rank: BoolArray, rank: int) -> Trace:
    """The part of a trace that belongs to one rank; `of_rank` says for each thread whether it does."""
    on_cpu = (trace.calls, trace.ops, trace.ranges, trace.gpu_ranges, trace.frames)
    calls, ops, ranges, gpu_ranges, frames = (of_rank[table.thread] for table in on_cpu)
    items = trace.gpu.process == rank
    new_call, new_op, new_frame, new_item = (_new_rows(rows) for rows in (calls, ops, frames, items))
    own_gpu, own_calls = _select_rows(trace.gpu, items), _select_rows(trace.calls, calls)
    own_ops, own_frames = _select_rows(trace.ops, ops), _select_rows(trace.frames, frames)
    # Row NONE reads the last entry of the new rows, which is NONE.
    own = replace(
        trace,
        rank=rank,
        gpu=replace(own_gpu, call=new_call[own_gpu.call], op=new_op[own_gpu.op]),
        calls=replace(own_calls, op=new_op[own_calls.op]),
        ops=replace(own_ops, parent=new_op[own_ops.parent]),
        ranges=_select_rows(trace.ranges, ranges),
        gpu_ranges=_select_rows(trace.gpu_ranges, gpu_ranges),
        frames=replace(own_frames, parent=new_frame[own_frames.parent]),
        syncs=_select_rows(trace.syncs, trace.syncs.process == rank),
        comms=_select_comms(trace.comms, new_item, new_op),
        memory=_select_rows(trace.memory, of_rank[trace.memory.thread]),
    )
    own.freeze()
    return replace(own, warnings=(*own.warnings, *link_warnings(own)))


def _select_comms(comms: Comms, new_item: Int32Array, new_op: Int32Array) -> Comms:
    """The rows about the items and ops of one rank."""
    rows = np.where(comms.gpu >= 0, new_item[comms.gpu], new_op[comms.op]) >= 0
    own = _select_rows(comms, rows)
    return replace(own, gpu=new_item[own.gpu], op=new_op[own.op])


def _select_rows(table: _AnyTable, rows: BoolArray) -> _AnyTable:
    """A table of some of the rows."""
    return type(table)(**{column.name: getattr(table, column.name)[rows] for column in fields(table)})


def _new_rows(selected: BoolArray) -> Int32Array:
    """For each row of a table its row among the selected ones, NONE for the others; one entry more for row NONE."""
    rows = np.full(len(selected) + 1, NONE, np.int32)
    rows[:-1][selected] = np.arange(int(selected.sum()), dtype=np.int32)
    return rows
