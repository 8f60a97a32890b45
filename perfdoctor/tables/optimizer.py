"""The table of the update of parameters: optimizers' steps, zeroing, unscaling and clipping of gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.traffic_kinds import ZEROING
from perfdoctor.analysis.launching_ops import launch_instants, launching_ranges, match_launching_ops
from perfdoctor.analysis.optimizer_steps import optimizer_steps_of
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column
from perfdoctor.report.table import Table as BaseTable
from perfdoctor.tables.kernels import work_of_groups
from perfdoctor.tables.shared_columns import Groups, Source, choose_source
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Table

ZERO_GRAD, UNSCALING, CLIPPING = "zero_grad", "unscaling of gradients", "clipping of gradients"
_NO_UPDATE = "no optimizer's step is marked in the analysed time, as those of torch.optim are"


class _Part(NamedTuple):
    """A part of the update: when the CPU is in it, when its runs begin, and the GPU items that it launches."""

    name: str
    time: Intervals
    start_ns: Int64Array
    items: BoolArray


def optimizer_table(rank: Rank, by: str) -> BaseTable:
    """The update of the parameters: on a GPU by the time of what it launches, on the CPU by the time that it takes.

    `by` is "part": the steps of each class of optimizer, zero_grad, unscaling, clipping where stacks were recorded; or
    "kernel" for the kernels of all parts.
    """
    source = choose_source("optimizer", rank)
    parts = [part for part in _find_parts(rank) if len(part.start_ns)]
    if rank.device_kind == "cpu":
        return _table_on_cpu(source, by, parts) if parts else source.empty(by, _NO_UPDATE)
    trace = rank.trace
    part = np.full(len(trace.gpu), NONE, np.int64)
    for number, each in reversed(list(enumerate(parts))):
        part[each.items] = number
    items = np.flatnonzero(rank.in_window & (part >= 0))
    if not len(items):
        return source.empty(by, _NO_UPDATE)
    name = trace.gpu.name[items]
    groups = Groups.of_gpu(trace, items, part[items], *((name,) if by == "kernel" else ()))
    of_group = [parts[each] for each in groups.of_first(part[items])]
    kernels = [trace.strings[each] for each in groups.dominant_code(name).tolist()]
    work = work_of_groups(rank, groups)
    names = kernels if by == "kernel" else [each.name for each in of_group]
    columns = (*_identity_columns(source, groups, of_group, kernels, by), *work.columns)
    return source.build_groups(by, by, names, groups, *columns, notes=work.notes)


def _identity_columns(
    source: Source, groups: Groups, parts: list[_Part], kernels: list[str], by: str
) -> tuple[Column, ...]:
    if by == "kernel":
        return source.count(groups.counts), source.column("part", [part.name for part in parts])
    per_step = np.round(groups.counts / source.steps, 2)
    # The CPU may be ahead by more than a step: a run belongs to the window in which its kernels run.
    at_ns = launch_instants(source.rank.trace)[0][groups.items]
    run = np.zeros(len(at_ns), np.int64)
    for number, part in enumerate(parts):
        mine = groups.group == number
        run[mine] = np.searchsorted(np.sort(part.start_ns), at_ns[mine], side="right")
    return (
        source.count(groups.count_distinct(run)),
        source.column("launches", per_step),
        source.time("cpu_ns", _times_on_cpu(source, parts)),
        source.column("kernel", kernels),
    )


def _times_on_cpu(source: Source, parts: list[_Part]) -> Int64Array:
    """When the CPU is in each part, in the window."""
    return np.array([iv.total(iv.intersect(part.time, source.rank.window)) for part in parts], np.int64)


def _table_on_cpu(source: Source, by: str, parts: list[_Part]) -> BaseTable:
    runs = np.array([iv.contains(source.rank.window, part.start_ns).sum() for part in parts], np.int64)
    names = [part.name for part in parts]
    return source.build(by, by, names, _times_on_cpu(source, parts), runs, source.count(runs))


def _find_parts(rank: Rank) -> list[_Part]:
    """The parts of the update; what belongs to two belongs to the first."""
    trace, traffic = rank.trace, rank.traffic
    ranges, steps = trace.ranges, optimizer_steps_of(trace)
    parts = []
    for code in distinct(ranges.name[steps.rows]).tolist():
        rows = steps.rows[ranges.name[steps.rows] == code]
        name = f"{vocabulary.optimizer_class(trace.strings[code])}.step"
        of_step = np.isin(traffic.optimizer_step, rows)
        parts.append(_Part(name, steps.own_time(rows), ranges.start_ns[rows], of_step))
    zeroing = traffic.match_rows(ZEROING) | (launching_ranges(trace, vocabulary.ZERO_GRAD) >= 0)
    unscaling = match_launching_ops(trace, vocabulary.GRAD_SCALER_OP)
    return [
        *parts,
        _part_of(trace.ranges, trace.match_rows(ranges, vocabulary.ZERO_GRAD), ZERO_GRAD, zeroing),
        _part_of(trace.ops, trace.match_rows(trace.ops, vocabulary.GRAD_SCALER_OP), UNSCALING, unscaling),
        _part_of(
            trace.frames, trace.match_rows(trace.frames, vocabulary.CLIP_FRAME), CLIPPING, _launched_in_clipping(rank)
        ),
    ]


def _part_of(table: Table, rows: BoolArray, name: str, items: BoolArray) -> _Part:
    start_ns, end_ns = table.start_ns[rows], table.end_ns[rows]
    return _Part(name, iv.union(start_ns, end_ns), start_ns, items)


def _launched_in_clipping(rank: Rank) -> BoolArray:
    """For each GPU item whether Python launched it in `torch.nn.utils.clip_grad_norm_` or the like."""
    trace = rank.trace
    frames = trace.frames
    rows = np.flatnonzero(trace.match_rows(frames, vocabulary.CLIP_FRAME))
    if not len(rows):
        return np.zeros(len(trace.gpu), bool)
    at_ns, thread = launch_instants(trace)
    inside = nesting.innermost(frames.start_ns[rows], frames.end_ns[rows], frames.thread[rows], at_ns, thread)
    result: BoolArray = (inside >= 0) & (at_ns != NONE)
    return result
