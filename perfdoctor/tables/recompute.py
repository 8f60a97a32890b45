"""The table of what activation checkpointing computes again: work of the forward pass within the backward pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.recomputed_work import match_recomputed
from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import category_of_items, code_modules
from perfdoctor.tables.kernels import work_of_groups
from perfdoctor.tables.shared_columns import Groups, choose_source
from perfdoctor.trace.arrays import NONE, Int64Array, IntArray
from perfdoctor.units import format_time

_NOTHING = "nothing is computed again in the backward pass of the analysed time, as activation checkpointing does"
_UNSEEN = "without Python frames only the older kind of activation checkpointing is seen (use_reentrant=True)"


def recompute_table(rank: Rank, by: str) -> Table:
    """What the GPU computes again, because activation checkpointing did not keep it.

    `by` is "op", "category" or "module".
    """
    source = choose_source("recompute", rank, "lines")
    inner = source.rank
    trace = inner.trace
    if "kernels" not in inner.available_data:
        return source.empty(by, explain_missing("kernels", inner.available_data))
    if not source.has_need:
        source = replace(source, notes=(source.notes[0], _UNSEEN))
    items = np.flatnonzero(match_recomputed(trace, *launch_instants(trace)) & inner.in_window)
    if not len(items):
        return source.empty(by, _NOTHING, *source.notes[1:])
    names, code = _key_of(inner, items, by)
    groups = Groups.of_gpu(trace, items, code)
    work = work_of_groups(inner, groups)
    kernels = source.column("kernel", groups.dominant(trace.strings, trace.gpu.name[items]))
    whole_ns = round(int(groups.time_ns.sum()) / max(inner.window_ns, 1) * source.step_ns)
    share = f"{format_time(whole_ns)} of a step ({whole_ns / max(source.step_ns, 1):.1%}) are computed again"
    columns = (source.count(groups.counts), kernels, *work.columns)
    names = [names[each] for each in groups.of_first(code)]
    return source.build_groups(by, by, names, groups, *columns, notes=(share, *work.notes))


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
