"""The table of what activation checkpointing computes again: work of the forward pass within the backward pass."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.rank import Rank
from perfdoctor.report.slice_facts import format_time
from perfdoctor.report.table import Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import category_of_items, code_modules
from perfdoctor.tables.kernels import work_of_groups
from perfdoctor.tables.shared_columns import (
    Groups,
    choose_source,
    count_column,
    empty_table,
    step_columns,
    text_column,
    window_columns,
)
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.model import Trace

_NOTHING = "nothing is computed again in the backward pass of the analysed time, as activation checkpointing does"
_UNSEEN = "without Python frames only the older kind of activation checkpointing is seen (use_reentrant=True)"


def recompute_table(rank: Rank, by: str) -> Table:
    """What the GPU computes again, because activation checkpointing did not keep it.

    Args:
        rank: The rank.
        by: "op", "category" or "module".
    """
    source = choose_source(rank, "lines")
    inner = source.rank
    trace = inner.trace
    notes = source.notes if source.has_need else (source.notes[0], _UNSEEN)
    if "kernels" not in inner.available_data:
        return empty_table("recompute", by, rank, explain_missing("kernels", inner.available_data))
    items = np.flatnonzero(_is_recomputed(trace) & inner.in_window)
    if not len(items):
        return empty_table("recompute", by, rank, _NOTHING, *notes[1:])
    names, code = _key_of(inner, items, by)
    groups = Groups.of_gpu(trace, items, code)
    time_ns, work = groups.time_ns, work_of_groups(inner, groups)
    kernels = [trace.strings[each] for each in groups.most_time(trace.gpu.name[items]).tolist()]
    columns = (
        text_column("name", by, [names[each] for each in groups.of_first(code)]),
        *step_columns(source, time_ns),
        count_column(source, groups.counts),
        text_column("kernel", "kernel", kernels, "The kernel with most of its time."),
        *work.columns,
        *window_columns(time_ns, groups.counts, groups.max_ns),
    )
    whole_ns = round(int(time_ns.sum()) / max(inner.window_ns, 1) * source.step_ns)
    share = f"{format_time(whole_ns)} of a step ({whole_ns / max(source.step_ns, 1):.1%}) are computed again"
    return Table("recompute", by, columns, rank=rank.rank, notes=(*notes, share, *work.notes)).sort("step_ns")


def _key_of(rank: Rank, items: Int64Array, by: str) -> tuple[list[str], IntArray]:
    """The names of groups, and for each item the number of its own."""
    trace = rank.trace
    if by == "category":
        return category_of_items(rank, items)
    if by == "module":
        at_ns, thread = launch_instants(trace)
        return code_modules(rank, at_ns[items], thread[items], trace.gpu.op[items])
    op = trace.gpu.op[items]
    code = np.where(op >= 0, np.append(trace.ops.name, NONE)[op], trace.gpu.name[items])
    codes, number = np.unique(code, return_inverse=True)
    return [trace.strings[each].removeprefix("aten::") for each in codes.tolist()], number


def _is_recomputed(trace: Trace) -> BoolArray:
    """For each GPU item whether it was launched in a checkpoint's function, and by none of its own backward nodes.

    The older kind runs the backward pass of what it computed inside of its own node, the newer kind computes when a
    node asks for what it had saved::

        older   CheckpointFunctionBackward [ addmm   evaluate_function: AddmmBackward0 [ mm ] ]     again: addmm
        newer   evaluate_function: MulBackward0 [ unpack_hook [ addmm ] mul ]                      again: addmm
    """
    at_ns, thread = launch_instants(trace)
    node = _innermost_start(trace, trace.match_rows(trace.ops, vocabulary.BACKWARD_NODE), at_ns, thread)
    again = np.zeros(len(trace.gpu), bool)
    frames, ops = trace.frames, trace.ops
    for table, pattern in ((frames, vocabulary.RECOMPUTE_FRAME), (ops, vocabulary.RECOMPUTE_OP)):
        rows = trace.match_rows(table, pattern)
        if rows.any():
            inside = nesting.innermost(table.start_ns[rows], table.end_ns[rows], table.thread[rows], at_ns, thread)
            began_ns = np.append(table.start_ns[rows], NONE)[inside]
            again |= (inside >= 0) & (at_ns >= 0) & (node <= began_ns)
    return again


def _innermost_start(trace: Trace, rows: BoolArray, at_ns: Int64Array, thread: Int32Array) -> Int64Array:
    """For each instant and thread when the innermost of some ops around it began; before all where there is none."""
    ops = trace.ops
    start_ns = ops.start_ns[rows]
    inside = nesting.innermost(start_ns, ops.end_ns[rows], ops.thread[rows], at_ns, thread)
    return np.append(start_ns, np.iinfo(np.int64).min)[inside]
