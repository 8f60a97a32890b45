"""The table of Triton kernels: the ops that each came from, as far as the trace says."""

from __future__ import annotations

import numpy as np

from perfdoctor.gpu.fused_ops import fused_ops, is_triton_kernel, kind_of_triton_kernel
from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import inputs_of_items, number_texts, shape_columns
from perfdoctor.tables.kernels import work_of_groups
from perfdoctor.tables.shared_columns import Groups, choose_source
from perfdoctor.trace.arrays import NONE
from perfdoctor.trace.tables.model import KERNEL

_NO_KERNEL = "no kernel of the analysed time was compiled by Triton"


def triton_table(rank: Rank, by: str) -> Table:
    """The kernels that TorchInductor generated, and others of Triton that are known by their names.

    `by` is "name", or "kind": pointwise, reduction, template, ...
    """
    source = choose_source("triton", rank)
    trace, gpu = rank.trace, rank.trace.gpu
    codes = [code for code in trace.name_ids(gpu) if is_triton_kernel(trace.strings[code])]
    kinds, kind_of_code = number_texts([kind_of_triton_kernel(trace.strings[code]) for code in codes])
    kind_of_name = np.full(len(trace.strings), NONE, np.int64)
    kind_of_name[codes] = kind_of_code
    items = np.flatnonzero((kind_of_name[gpu.name] >= 0) & (gpu.kind == KERNEL) & rank.in_window)
    if not len(items):
        kernels = "kernels" in rank.available_data
        note = _NO_KERNEL if kernels else explain_missing("kernels", rank.available_data)
        return source.empty(by, note)
    name = gpu.name[items]
    groups = Groups.of_gpu(trace, items, kind_of_name[name] if by == "kind" else name)
    strings = [trace.strings[each] for each in groups.of_first(name)]
    kind = [kinds[each] for each in groups.of_first(kind_of_name[name])]
    work = work_of_groups(rank, groups)
    columns = [source.count(groups.counts)]
    if by == "kind":
        columns.append(source.column("kernels", groups.count_distinct(name)))
        return source.build_groups(by, "kind", kind, groups, *columns, *work.columns, notes=work.notes)
    ops = (trace.strings[code] for code in trace.name_ids(trace.ops))
    known = frozenset(op.removeprefix("aten::") for op in ops if op.startswith("aten::") and "_" in op)
    fused = [fused_ops(text, known) for text in strings]
    dims, types = inputs_of_items(rank, items)
    columns += [
        source.column("fused", [", ".join(each) for each in fused]),
        source.column("kind", kind),
        source.column("fused_count", [len(each) or None for each in fused]),
        source.column("op", _ops_around(rank, groups)),
        *shape_columns(trace, groups.dominant_code(dims).tolist(), groups.dominant_code(types).tolist()),
    ]
    return source.build_groups(by, "kernel", strings, groups, *columns, *work.columns, notes=work.notes)


def _ops_around(rank: Rank, groups: Groups) -> list[str | None]:
    """The op that launches most of each group: of newer versions the kernel itself, then the one around it."""
    trace = rank.trace
    op = trace.gpu.op[groups.items]
    parent = np.append(trace.ops.parent, NONE)[op]
    is_itself = np.append(trace.ops.name, NONE)[op] == trace.gpu.name[groups.items]
    around = np.append(trace.ops.name, NONE)[np.where(is_itself, parent, op)]
    return [trace.text(each) for each in groups.dominant_code(around).tolist()]
