"""The table of ops: the time on the GPU of what they launch; without a GPU their own time on the CPU."""

from __future__ import annotations

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import (
    NamedGroups,
    category_by_name,
    category_of_items,
    group_items,
    needed_for,
    number_texts,
)
from perfdoctor.tables.kernels import work_of_groups
from perfdoctor.tables.ops_on_cpu import own_time_table
from perfdoctor.tables.shared_columns import Groups, Source, choose_source
from perfdoctor.trace.arrays import Int64Array


def ops_table(rank: Rank, by: str) -> Table:
    """The ops: on a GPU by the time of the kernels and copies that they launch, which start in the window.

    What no op launched has its own name. On the CPU it is the own time of ops with the DataLoader, the optimizer and
    Python beside them, so that the rows add up to the step. `by` is "name", "shape" (of their inputs), "category",
    "module" or "line".
    """
    source = choose_source("ops", rank, needed_for(by))
    if not source.has_need and by != "shape":
        return source.empty(by, *source.notes)
    if rank.device_kind == "gpu":
        return _gpu_table(source, by)
    if rank.device_kind == "cpu" and len(source.rank.trace.ops):
        return own_time_table(source, by)
    missing = "gpu_items" if rank.device_kind == "gpu_not_recorded" else "cpu"
    return source.empty(by, explain_missing(missing, rank.available_data))


def _gpu_table(source: Source, by: str) -> Table:
    rank = source.rank
    items = np.flatnonzero(rank.in_window)
    groups, names, keys = (
        _by_category_of_op(rank, items) if by == "category" else group_items(rank, items, by, of_what="ops")
    )
    work = work_of_groups(rank, groups)
    calls = groups.count_distinct(rank.gpu_labels.call[items])
    columns = (source.count(calls), *keys, *_describe(source, groups, by), *work.columns)
    title = by if by not in ("name", "shape") else "op"
    launches = source.column("launches", groups.counts)
    return source.build(by, title, names, groups.time_ns, calls, *columns, last=(launches,), notes=work.notes)


def _describe(source: Source, groups: Groups, by: str) -> list[Column]:
    """What the ops of a row are, by most of their time."""
    columns, rank = [], source.rank
    label, kernel = rank.gpu_labels.label[groups.items], rank.trace.gpu.name[groups.items]
    if by != "category":
        names, code = _categories(rank)
        columns.append(source.column("category", groups.dominant(names, code[label])))
    if by not in ("name", "shape"):
        columns.append(source.column("op", groups.dominant(rank.gpu_labels.names, label)))
        columns.append(source.column("ops", groups.count_distinct(label)))
    columns.append(source.column("kernel", groups.dominant(rank.trace.strings, kernel)))
    return [*columns, source.column("kernels", groups.count_distinct(kernel))]


def _by_category_of_op(rank: Rank, items: Int64Array) -> NamedGroups:
    names, of_label = _categories(rank)
    code = of_label[rank.gpu_labels.label[items]]
    return NamedGroups.by_code(Groups.of_gpu(rank.trace, items, code), names, code)


def _categories(rank: Rank) -> tuple[list[str], Int64Array]:
    """Names of categories, and for each of `Rank.gpu_labels.names` the number of its own.

    It is that of the op by its name; where this says nothing that of the kernels which take most of its time.
    """
    labels, items = rank.gpu_labels, np.arange(len(rank.trace.gpu))
    names, code = category_of_items(rank, items)
    groups = Groups.of_gpu(rank.trace, items, labels.label)
    by_kernels = [names[each] for each in groups.dominant_code(code).tolist()]
    category_of = dict(zip(groups.of_first(labels.label), by_kernels, strict=True))
    return number_texts(
        [category_by_name(name) or category_of.get(number, "other") for number, name in enumerate(labels.names)]
    )
