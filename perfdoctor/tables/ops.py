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
from perfdoctor.tables.shared_columns import (
    Groups,
    Source,
    choose_source,
    count_column,
    empty_table,
    number_column,
    step_columns,
    text_column,
    window_columns,
)
from perfdoctor.trace.arrays import Int64Array


def ops_table(rank: Rank, by: str) -> Table:
    """The ops: on a GPU by the time of the kernels and copies that they launch, which start in the window.

    What no op launched has its own name. On the CPU it is the own time of ops with the DataLoader, the optimizer and
    Python beside them, so that the rows add up to the step. `by` is "name", "shape" (of their inputs), "category",
    "module" or "line".
    """
    source = choose_source(rank, needed_for(by))
    if not source.has_need and by != "shape":
        return empty_table("ops", by, rank, *source.notes)
    if rank.device_kind == "gpu":
        return _gpu_table(source, by)
    if rank.device_kind == "cpu" and len(source.rank.trace.ops):
        return own_time_table(source, by)
    missing = "gpu_items" if rank.device_kind == "gpu_not_recorded" else "cpu"
    return empty_table("ops", by, rank, explain_missing(missing, rank.available_data))


def _gpu_table(source: Source, by: str) -> Table:
    rank = source.rank
    items = np.flatnonzero(rank.in_window)
    groups, names, keys = (
        _by_category_of_op(rank, items) if by == "category" else group_items(rank, items, by, of_what="ops")
    )
    time_ns, work = groups.time_ns, work_of_groups(rank, groups)
    calls = groups.count_distinct(rank.gpu_labels.call[items])
    columns = [
        text_column("name", by if by not in ("name", "shape") else "op", names),
        *step_columns(source, time_ns),
        count_column(source, calls),
        *keys,
        *_describe(rank, groups, by),
        *work.columns,
        *window_columns(time_ns, calls),
        number_column(
            "launches", "launches", "count", groups.counts, "Kernels, copies and sets in the window.", is_main=False
        ),
    ]
    notes = (*source.notes, *work.notes)
    return Table("ops", by, tuple(columns), rank=rank.rank, notes=notes).sort("step_ns")


def _describe(rank: Rank, groups: Groups, by: str) -> list[Column]:
    """What the ops of a row are, by most of their time."""
    columns, labels, strings = [], rank.gpu_labels, rank.trace.strings
    label, kernel = labels.label[groups.items], rank.trace.gpu.name[groups.items]
    if by != "category":
        names, code = _categories(rank)
        texts = [names[each] for each in groups.dominant_code(code[label]).tolist()]
        columns.append(text_column("category", "category", texts))
    if by not in ("name", "shape"):
        texts = [labels.names[each] for each in groups.dominant_code(label).tolist()]
        columns += [
            text_column("op", "op", texts, "The op that takes most of its time."),
            number_column(
                "ops", "ops", "count", groups.count_distinct(label), "How many ops these are.", is_main=False
            ),
        ]
    texts = [strings[each] for each in groups.dominant_code(kernel).tolist()]
    count = groups.count_distinct(kernel)
    return [
        *columns,
        text_column("kernel", "kernel", texts, "The kernel or copy that takes most of its time.", is_main=False),
        number_column("kernels", "kernels", "count", count, "How many different ones it launches.", is_main=False),
    ]


def _by_category_of_op(rank: Rank, items: Int64Array) -> NamedGroups:
    names, of_label = _categories(rank)
    code = of_label[rank.gpu_labels.label[items]]
    groups = Groups.of_gpu(rank.trace, items, code)
    return NamedGroups(groups, [names[each] for each in groups.of_first(code)])


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
