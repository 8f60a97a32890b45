"""The table of what activation checkpointing computes again: work of the forward pass within the backward pass."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.recomputed_work import match_recomputed
from perfdoctor.rank import Rank
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
from perfdoctor.trace.arrays import NONE, Int64Array, IntArray
from perfdoctor.units import format_time

_NOTHING = "nothing is computed again in the backward pass of the analysed time, as activation checkpointing does"
_UNSEEN = "without Python frames only the older kind of activation checkpointing is seen (use_reentrant=True)"


def recompute_table(rank: Rank, by: str) -> Table:
    """What the GPU computes again, because activation checkpointing did not keep it.

    `by` is "op", "category" or "module".
    """
    source = choose_source(rank, "lines")
    inner = source.rank
    trace = inner.trace
    notes = source.notes if source.has_need else (source.notes[0], _UNSEEN)
    if "kernels" not in inner.available_data:
        return empty_table("recompute", by, rank, explain_missing("kernels", inner.available_data))
    items = np.flatnonzero(match_recomputed(trace, *launch_instants(trace)) & inner.in_window)
    if not len(items):
        return empty_table("recompute", by, rank, _NOTHING, *notes[1:])
    names, code = _key_of(inner, items, by)
    groups = Groups.of_gpu(trace, items, code)
    time_ns, work = groups.time_ns, work_of_groups(inner, groups)
    kernels = [trace.strings[each] for each in groups.dominant_code(trace.gpu.name[items]).tolist()]
    columns = (
        text_column("name", by, [names[each] for each in groups.of_first(code)]),
        *step_columns(source, time_ns),
        count_column(source, groups.counts),
        text_column("kernel", "kernel", kernels, "The kernel that takes most of its time."),
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
