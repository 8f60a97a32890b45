"""The table of kernels: time, work and what bounds it, by name, shape, category, op, module or line."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.tensor_core_verdicts import VERDICTS
from perfdoctor.gpu.roofline.kernel_bounds import BOUNDS, PEAK_TOLERANCE
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.group_items import category_of_items, group_items, needed_for
from perfdoctor.tables.shared_columns import Groups, choose_source, make_column
from perfdoctor.tables.work_in_window import costs_of_kernels
from perfdoctor.trace.arrays import FloatArray
from perfdoctor.trace.tables.model import KERNEL

_CACHED = (
    "rates of memory beyond its peak: the data came from the cache of the GPU, so that no share of the peak is given"
)


def kernels_table(rank: Rank, by: str) -> Table:
    """The kernels that start in the window; copies and sets are not among them.

    `by` is "name", "shape" (of the inputs of the op that launched them), "category", "op", "module" or "line".
    """
    source = choose_source("kernels", rank, needed_for(by))
    inner = source.rank
    items = np.flatnonzero((inner.trace.gpu.kind == KERNEL) & inner.in_window)
    if not len(items):
        return source.empty(by, explain_missing("kernels", rank.available_data))
    if not source.has_need and by != "shape":
        return source.empty(by, *source.notes)
    groups, names, keys = group_items(inner, items, by)
    work = work_of_groups(inner, groups)
    columns = (
        source.count(groups.counts),
        *keys,
        *([source.column("flops_share", _flops_shares(inner, groups))] if by == "category" else ()),
        *work.columns,
        *_describe(inner, groups, by),
    )
    title = by if by not in ("name", "shape") else "kernel"
    return source.build_groups(by, title, names, groups, *columns, notes=work.notes)


def _flops_shares(rank: Rank, groups: Groups) -> FloatArray:
    """The share of all known FLOPs, beside the share of time: products do nearly all, and take part of the time.

    Kernels that multiply no matrices count as well, with a few FLOPs an element: too rough for a rate, and enough here.
    """
    usable = np.where(rank.verdicts.impossible[groups.items], np.nan, 1.0)
    flops = groups.total(rank.kernel_costs.flops[groups.items] * usable)
    whole = np.nansum(flops)
    shares: FloatArray = flops / whole if whole else np.full(len(flops), np.nan)
    return shares


def _describe(rank: Rank, groups: Groups, by: str) -> list[Column]:
    """What the kernels of a row are, by most of their time."""
    columns = []
    if by != "category":
        columns.append(make_column("category", groups.dominant(*category_of_items(rank, groups.items))))
    if by != "op":
        labels = rank.gpu_labels
        op = np.where(labels.known[groups.items], labels.label[groups.items], -1)
        columns += [make_column("op", groups.dominant(labels.names, op)), make_column("ops", groups.count_distinct(op))]
    if by not in ("name", "shape"):
        kernel = rank.trace.gpu.name[groups.items]
        columns.append(make_column("kernel", groups.dominant(rank.trace.strings, kernel)))
        columns.append(make_column("kernels", groups.count_distinct(kernel)))
    return columns


class GroupWork(NamedTuple):
    """The work of groups of kernels.

    Attributes:
        columns: FLOPs, bytes, their rates, the share of the peak, the bound, and the use of Tensor Cores.
        notes: What a reader must know of them.
    """

    columns: tuple[Column, ...]
    notes: tuple[str, ...]


def work_of_groups(rank: Rank, groups: Groups) -> GroupWork:
    """What kernels compute and move, how fast, and what bounds them.

    FLOPs are those of matrix products, convolutions and attention by the shapes of their ops: what other kernels
    compute is known too roughly. The share of the peak is the time at the theoretical peak of the unit that is used, or
    of the memory if that takes longer, over the time of those kernels for which it is known.
    """
    items, (flops, moved) = groups.items, costs_of_kernels(rank, groups.items)
    peak_share = share_of_peak(rank, groups)
    cached = peak_share > PEAK_TOLERANCE
    columns = (
        make_column("peak_share", peak_share, known=~cached),
        bound_column(rank, groups),
        make_column("tensor_core", groups.dominant(VERDICTS, rank.verdicts.tensor_core[items].astype(np.int64))),
        make_column("flops_per_s", groups.rate(flops)),
        make_column("bytes_per_s", groups.rate(moved)),
        make_column("flops", groups.total(flops)),
        make_column("bytes", groups.total(moved)),
    )
    return GroupWork(columns, (_CACHED,) if cached.any() else ())


def bound_column(rank: Rank, groups: Groups) -> Column:
    """`bound`, what sets the pace of most of the time of each group."""
    return make_column("bound", groups.dominant(BOUNDS, rank.roof_classes[groups.items].astype(np.int64)))


def share_of_peak(rank: Rank, groups: Groups) -> FloatArray:
    """For each group the time at the theoretical peaks over the time of those kernels for which it is known."""
    at_peak = np.where(rank.verdicts.impossible[groups.items], np.nan, rank.bounds.time_at_peak[groups.items])
    share: FloatArray = groups.rate(at_peak) / 1e9
    return share
