"""The table of Triton kernels: the ops that each came from, as far as the trace says."""

from __future__ import annotations

import numpy as np

from perfdoctor.gpu.fused_ops import fused_ops, is_triton_kernel, kind_of_triton_kernel
from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import inputs_of_items, number_texts, shape_columns
from perfdoctor.tables.kernels import work_of_groups
from perfdoctor.tables.shared_columns import (
    Groups,
    choose_source,
    count_column,
    empty_table,
    number_column,
    step_columns,
    text_column,
    window_columns,
)
from perfdoctor.trace.arrays import NONE
from perfdoctor.trace.tables.model import KERNEL

_NO_KERNEL = "no kernel of the analysed time was compiled by Triton"


def triton_table(rank: Rank, by: str) -> Table:
    """The kernels that TorchInductor generated, and others of Triton that are known by their names.

    `by` is "name", or "kind": pointwise, reduction, template, ...
    """
    source = choose_source(rank)
    trace, gpu = rank.trace, rank.trace.gpu
    codes = [code for code in trace.name_ids(gpu) if is_triton_kernel(trace.strings[code])]
    kinds, kind_of_code = number_texts([kind_of_triton_kernel(trace.strings[code]) for code in codes])
    kind_of_name = np.full(len(trace.strings), NONE, np.int64)
    kind_of_name[codes] = kind_of_code
    items = np.flatnonzero((kind_of_name[gpu.name] >= 0) & (gpu.kind == KERNEL) & rank.in_window)
    if not len(items):
        kernels = "kernels" in rank.available_data
        note = _NO_KERNEL if kernels else explain_missing("kernels", rank.available_data)
        return empty_table("triton", by, rank, note)
    name = gpu.name[items]
    groups = Groups.of_gpu(trace, items, kind_of_name[name] if by == "kind" else name)
    strings = [trace.strings[each] for each in groups.of_first(name)]
    kind = [kinds[each] for each in groups.of_first(kind_of_name[name])]
    time_ns, work = groups.time_ns, work_of_groups(rank, groups)
    columns = [
        text_column("name", "kind" if by == "kind" else "kernel", kind if by == "kind" else strings),
        *step_columns(source, time_ns),
        count_column(source, groups.counts),
    ]
    if by == "name":
        ops = (trace.strings[code] for code in trace.name_ids(trace.ops))
        known = frozenset(op.removeprefix("aten::") for op in ops if op.startswith("aten::") and "_" in op)
        fused = [fused_ops(text, known) for text in strings]
        dims, types = inputs_of_items(rank, items)
        columns += [
            text_column("fused", "fused ops", [", ".join(each) for each in fused], "The ops that its name tells of."),
            text_column("kind", "kind", kind, "What kind of kernel inductor made of them."),
            number_column(
                "fused_count", "ops", "count", np.array([len(each) for each in fused], np.int64), "How many these are.",
                known=np.array([bool(each) for each in fused], bool), is_main=False,
            ),
            text_column("op", "called in", _ops_around(rank, groups), "The op around its launch.", is_main=False),
            *shape_columns(trace, groups.dominant_code(dims).tolist(), groups.dominant_code(types).tolist()),
        ]  # fmt: skip
    else:
        count = groups.count_distinct(name)
        columns.append(number_column("kernels", "kernels", "count", count, "How many different kernels these are."))
    columns += [*work.columns, *window_columns(time_ns, groups.counts, groups.max_ns)]
    notes = (*source.notes, *work.notes)
    return Table("triton", by, tuple(columns), rank=rank.rank, notes=notes).sort("step_ns")


def _ops_around(rank: Rank, groups: Groups) -> list[str | None]:
    """The op that launches most of each group: of newer versions the kernel itself, then the one around it."""
    trace = rank.trace
    op = trace.gpu.op[groups.items]
    parent = np.append(trace.ops.parent, NONE)[op]
    is_itself = np.append(trace.ops.name, NONE)[op] == trace.gpu.name[groups.items]
    around = np.append(trace.ops.name, NONE)[np.where(is_itself, parent, op)]
    return [trace.text(each) for each in groups.dominant_code(around).tolist()]
