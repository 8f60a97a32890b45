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
from perfdoctor.trace.arrays import FloatArray
from perfdoctor.trace.tables.model import KERNEL

_CACHED = (
    "rates of memory beyond its peak: the data came from the cache of the GPU, so that no share of the peak is given"
)


def kernels_table(rank: Rank, by: str) -> Table:
    """The kernels that start in the window; copies and sets are not among them.

    `by` is "name", "shape" (of the inputs of the op that launched them), "category", "op", "module" or "line".
    """
    source = choose_source(rank, needed_for(by))
    inner = source.rank
    items = np.flatnonzero((inner.trace.gpu.kind == KERNEL) & inner.in_window)
    if not len(items):
        return empty_table("kernels", by, rank, explain_missing("kernels", rank.available_data))
    if not source.has_need and by != "shape":
        return empty_table("kernels", by, rank, *source.notes)
    groups, names, keys = group_items(inner, items, by)
    time_ns = groups.time_ns
    work = work_of_groups(inner, groups)
    columns = (
        text_column("name", by if by not in ("name", "shape") else "kernel", names),
        *step_columns(source, time_ns),
        count_column(source, groups.counts),
        *keys,
        *(_flops_shares(inner, groups) if by == "category" else ()),
        *work.columns,
        *_describe(inner, groups, by),
        *window_columns(time_ns, groups.counts, groups.max_ns),
    )
    return Table("kernels", by, columns, rank=rank.rank, notes=(*source.notes, *work.notes)).sort("step_ns")


def _flops_shares(rank: Rank, groups: Groups) -> tuple[Column, ...]:
    """The share of all known FLOPs, beside the share of time: products do nearly all, and take part of the time.

    Kernels that multiply no matrices count as well, with a few FLOPs an element: too rough for a rate, and enough here.
    """
    usable = np.where(rank.verdicts.impossible[groups.items], np.nan, 1.0)
    flops = groups.total(rank.kernel_costs.flops[groups.items] * usable)
    whole = np.nansum(flops)
    shares = flops / whole if whole else np.full(len(flops), np.nan)
    text = "Share of the FLOPs of all kernels whose work is known; 1 to 12 an element where no matrices are multiplied."
    return (number_column("flops_share", "of FLOPs", "share", shares, text),)


def _describe(rank: Rank, groups: Groups, by: str) -> list[Column]:
    """What the kernels of a row are, by most of their time."""
    columns = []
    if by != "category":
        names, code = category_of_items(rank, groups.items)
        texts = [names[each] for each in groups.dominant_code(code).tolist()]
        columns.append(text_column("category", "category", texts))
    if by != "op":
        labels = rank.gpu_labels
        op = np.where(labels.known[groups.items], labels.label[groups.items], -1)
        texts = [labels.names[each] if each >= 0 else None for each in groups.dominant_code(op).tolist()]
        count = groups.count_distinct(op)
        columns += [
            text_column("op", "op", texts, "The op that launched most of it."),
            number_column("ops", "ops", "count", count, "How many different ops launched it.", is_main=False),
        ]
    if by not in ("name", "shape"):
        kernel = rank.trace.gpu.name[groups.items]
        texts = [rank.trace.strings[each] for each in groups.dominant_code(kernel).tolist()]
        count = groups.count_distinct(kernel)
        columns += [
            text_column("kernel", "kernel", texts, "The kernel that takes most of its time.", is_main=False),
            number_column("kernels", "kernels", "count", count, "How many different kernels these are.", is_main=False),
        ]
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
    items, costs = groups.items, rank.kernel_costs
    usable = np.where(rank.verdicts.impossible[items], np.nan, 1.0)
    of_maths = np.where(costs.match_kinds("gemm", "convolution", "attention")[costs.kind[items]], 1.0, np.nan)
    flops = costs.flops[items] * usable * of_maths
    moved = costs.bytes[items] * usable
    peak_share = share_of_peak(rank, groups)
    cached = peak_share > PEAK_TOLERANCE
    verdict = groups.dominant_code(rank.verdicts.tensor_core[items].astype(np.int64))
    columns = (
        number_column("peak_share", "of peak", "share", peak_share, _PEAK_SHARE, known=~cached),
        bound_column(rank, groups),
        text_column("tensor_core", "Tensor Cores", [VERDICTS[each] for each in verdict.tolist()], _TENSOR_CORE),
        number_column("flops_per_s", "FLOP/s", "flops_per_s", groups.rate(flops), "FLOPs over the time they took."),
        number_column("bytes_per_s", "B/s", "bytes_per_s", groups.rate(moved), "Bytes over the time they took."),
        number_column("flops", "FLOPs", "flops", groups.total(flops), "In the analysed time.", is_main=False),
        number_column(
            "bytes", "bytes", "bytes", groups.total(moved), "Least traffic in the analysed time.", is_main=False
        ),
    )
    return GroupWork(columns, (_CACHED,) if cached.any() else ())


_PEAK_SHARE = "Share of the peak of the unit that is used, or of the memory: whichever bounds it."
_BOUND = (
    "What sets the pace of most of its time: compute, bandwidth, or latency where it is short or leaves most "
    "multiprocessors empty. How near that it runs is the share of the peak."
)
_TENSOR_CORE = "Whether it used Tensor Cores: yes, no, unknown, or na for what multiplies no matrices."


def bound_column(rank: Rank, groups: Groups) -> Column:
    """`bound`, what sets the pace of most of the time of each group."""
    roof = rank.roof_classes[groups.items].astype(np.int64)
    texts = [BOUNDS[each] if each >= 0 else None for each in groups.dominant_code(roof).tolist()]
    return text_column("bound", "bound by", texts, _BOUND)


def share_of_peak(rank: Rank, groups: Groups) -> FloatArray:
    """For each group the time at the theoretical peaks over the time of those kernels for which it is known."""
    at_peak = np.where(rank.verdicts.impossible[groups.items], np.nan, rank.bounds.time_at_peak[groups.items])
    share: FloatArray = groups.rate(at_peak) / 1e9
    return share
