"""Several ranks in one file become several traces."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import Comms, Table, Trace
from perfdoctor.trace.tables.trace_warnings import link_warnings, merged_warning

_AnyTable = TypeVar("_AnyTable", bound=Table | Comms)


def ranks_in(trace: Trace) -> tuple[int, ...]:
    """The ranks that a trace holds, in order: those that have GPU items, calls or ops."""
    on_cpu = np.zeros(len(trace.threads), bool)
    on_cpu[trace.calls.thread] = on_cpu[trace.ops.thread] = True
    found = distinct(np.concatenate((distinct(trace.gpu.process), _by_thread(trace)[on_cpu])))
    return tuple(found[found >= 0].tolist())


def split_ranks(trace: Trace) -> tuple[Trace, ...]:
    """One trace a rank; the trace itself when it holds one.

    Each has the rank's events with the links among them, and its number as `rank`. Strings and threads are shared, the
    columns are copies. What belongs to none of the ranks, such as the processes of a DataLoader's workers that a whole
    node's recording holds too, is left out.
    """
    if not trace.processes and not trace.gpu.process.any():  # as nearly all files
        return (trace,)
    ranks = ranks_in(trace)
    if len(ranks) < 2:
        return (trace,)
    # They speak of the file as a whole.
    general = {*link_warnings(trace), merged_warning(len(ranks))}
    kept = tuple(warning for warning in trace.warnings if warning not in general)
    process = _by_thread(trace)
    return tuple(_of_rank(replace(trace, warnings=kept), process == rank, rank) for rank in ranks)


def _by_thread(trace: Trace) -> Int32Array:
    return np.array(trace.processes or [0] * len(trace.threads), np.int32)


def _of_rank(trace: Trace, own_threads: BoolArray, rank: int) -> Trace:
    """The part of a trace that one rank did."""
    on_cpu = (trace.calls, trace.ops, trace.ranges, trace.gpu_ranges, trace.frames)
    calls, ops, ranges, gpu_ranges, frames = (own_threads[table.thread] for table in on_cpu)
    new_call, new_op, new_frame = _new_rows(calls), _new_rows(ops), _new_rows(frames)
    own_items = trace.gpu.process == rank
    gpu = _taken(trace.gpu, own_items)
    own_calls, own_ops, own_frames = _taken(trace.calls, calls), _taken(trace.ops, ops), _taken(trace.frames, frames)
    own = replace(
        trace,
        rank=rank,
        gpu=replace(gpu, call=_moved(gpu.call, new_call), op=_moved(gpu.op, new_op)),
        calls=replace(own_calls, op=_moved(own_calls.op, new_op)),
        ops=replace(own_ops, parent=_moved(own_ops.parent, new_op)),
        ranges=_taken(trace.ranges, ranges),
        gpu_ranges=_taken(trace.gpu_ranges, gpu_ranges),
        frames=replace(own_frames, parent=_moved(own_frames.parent, new_frame)),
        syncs=_taken(trace.syncs, trace.syncs.process == rank),
        comms=_own_comms(trace.comms, _new_rows(own_items), new_op),
    )
    own.freeze()
    return replace(own, warnings=(*own.warnings, *link_warnings(own)))


def _own_comms(comms: Comms, new_item: Int32Array, new_op: Int32Array) -> Comms:
    """What is said of the items and ops that were kept."""
    own = _taken(comms, np.where(comms.gpu >= 0, new_item[comms.gpu], new_op[comms.op]) >= 0)
    return replace(own, gpu=_moved(own.gpu, new_item), op=_moved(own.op, new_op))


def _taken(table: _AnyTable, which: BoolArray) -> _AnyTable:
    """Some rows of a table."""
    return type(table)(**{column.name: getattr(table, column.name)[which] for column in fields(table)})


def _new_rows(kept: BoolArray) -> Int32Array:
    """For each row of a table its row among those that are kept, -1 for the others; one more for the row -1."""
    rows = np.full(len(kept) + 1, NONE, np.int32)
    rows[:-1][kept] = np.arange(int(kept.sum()), dtype=np.int32)
    return rows


def _moved(rows: Int32Array, new_rows: Int32Array) -> Int32Array:
    """Links to the rows of a table as links to those that were kept; row -1 reads the last entry, which is -1."""
    return new_rows[rows]
