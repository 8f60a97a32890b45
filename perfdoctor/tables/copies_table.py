"""The table of copies: which way they go, from and to which memory, how fast, and what of it the link allows."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.timeline.copy_groups import copy_limit_bytes_per_s
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.line_columns import line_columns, lines_of_work
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
from perfdoctor.tables.work_in_window import time_column
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.model import MEMCPY, MEMSET

_NOTHING = "nothing is copied in the analysed time"
_SET = len(vocabulary.COPY_DIRECTIONS)
"""The direction of what sets memory, behind those of copies."""
_DIRECTIONS = {
    vocabulary.HTOD: "host to device",
    vocabulary.DTOH: "device to host",
    vocabulary.DTOD: "within the device",
    vocabulary.PTOP: "to another device",
    vocabulary.HTOH: "host to host",
    vocabulary.UNKNOWN_DIRECTION: "direction not recorded",
    _SET: "set memory",
}
_MEMORY = {vocabulary.PAGEABLE: "pageable", vocabulary.PINNED: "pinned", vocabulary.HOST: "host"}
# Below 64 KB the start of a copy (some 10 us) takes longer than its bytes over PCIe; from 16 MB on it hardly counts.
_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
_WHOLE_NS, _LEAST_WHOLE = 1000, 5
_SIZE_NAMES = ("under 4 KiB", "4 to 64 KiB", "64 KiB to 1 MiB", "1 to 16 MiB", "16 to 256 MiB", "256 MiB and more")


def copies_table(rank: Rank, by: str) -> Table:
    """The copies and memory sets that start in the window.

    Args:
        rank: The rank.
        by: "kind" for direction and kind of host memory, "size" for classes of size within these, or "line" for these
            at each line of the user's code.
    """
    source = choose_source(rank, "lines" if by == "line" else None)
    inner = source.rank
    gpu = inner.trace.gpu
    items = np.flatnonzero(np.isin(gpu.kind, (MEMCPY, MEMSET)) & inner.in_window)
    if not len(items):
        has_gpu = "gpu_items" in rank.available_data
        return empty_table(
            "copies", by, rank, _NOTHING if has_gpu else explain_missing("gpu_items", rank.available_data)
        )
    if by == "line" and not source.has_need:
        return empty_table("copies", by, rank, *source.notes)
    kinds = copy_kinds_of(inner.trace)
    is_set = gpu.kind[items] == MEMSET
    direction = np.where(is_set, _SET, kinds.direction[items]).astype(np.int64)
    memory = np.where(is_set, NONE, kinds.host_memory[items]).astype(np.int64)
    size = np.where(gpu.bytes[items] >= 0, np.searchsorted(_SIZES, gpu.bytes[items], side="right"), NONE)
    keys = [direction, memory]
    if by == "size":
        keys.append(size)
    lines = None
    if by == "line":
        at_ns, thread = launch_instants(inner.trace)
        lines = lines_of_work(inner, at_ns[items], thread[items], gpu.op[items])
        keys.append(lines.code.astype(np.int64))
    groups = Groups.of_gpu(inner.trace, items, *keys)
    names, size_of = [_name(*key) for key in zip(groups.of_first(direction), groups.of_first(memory), strict=True)], []
    if by == "size":
        size_of = [_SIZE_NAMES[each] if each >= 0 else None for each in groups.of_first(size)]
        names = [f"{name}, {each or 'size not recorded'}" for name, each in zip(names, size_of, strict=True)]
    of_line: tuple[Column, ...] = ()
    if lines is not None:
        of_line = line_columns(lines, groups.of_first(lines.code))
        names = [f"{name}, {at}" for name, at in zip(names, lines.names(groups.of_first(lines.code)), strict=True)]
    columns = (
        text_column("name", "copies", names),
        *step_columns(source, groups.time_ns),
        count_column(source, groups.counts),
        *_rate_columns(source, groups, direction),
        _exposed_column(source, groups),
        text_column("direction", "direction", _directions(groups, direction), is_main=False),
        text_column(
            "memory", "host memory", [_MEMORY.get(each) for each in groups.of_first(memory)],
            "Kind of host memory; AMD's profiler says host for both kinds.", is_main=False,
        ),
        *([text_column("size", "size", size_of, is_main=False)] if by == "size" else []),
        *of_line,
        *window_columns(groups.time_ns, groups.counts, groups.max_ns),
    )  # fmt: skip
    return Table("copies", by, columns, rank=rank.rank, notes=source.notes).sort("step_ns")


def _name(direction: int, memory: int) -> str:
    kind = _MEMORY.get(memory)
    return _DIRECTIONS[direction] if kind is None else f"{_DIRECTIONS[direction]}, {kind}"


def _directions(groups: Groups, direction: Int64Array) -> list[str | None]:
    names = (*vocabulary.COPY_DIRECTIONS, None)
    return [names[each] if each != vocabulary.UNKNOWN_DIRECTION else None for each in groups.of_first(direction)]


def _exposed_column(source: Source, groups: Groups) -> Column:
    """The time in which nothing computes or communicates beside the copies of a row."""
    gpu, alone = source.rank.trace.gpu, source.rank.exposed_parts["memcpy"]
    rows = (groups.items[groups.group == group] for group in range(len(groups)))
    exposed = [iv.total(iv.intersect(iv.union(gpu.start_ns[each], gpu.end_ns[each]), alone)) for each in rows]
    return time_column(
        source, "exposed_ns", "exposed", np.array(exposed, np.int64), "Time a step in which only they run."
    )


def _rate_columns(source: Source, groups: Groups, direction: Int64Array) -> tuple[Column, ...]:
    rank, recorded = source.rank, source.rank.trace.gpu.bytes[groups.items]
    amounts = np.where(recorded >= 0, recorded, np.nan)
    rate = groups.rate(amounts)
    # Old profilers write whole microseconds: the rate of what takes a few of them would be off by half and more.
    if not (rank.trace.gpu.dur_ns % _WHOLE_NS).any():
        rate[groups.time_ns < _LEAST_WHOLE * _WHOLE_NS * groups.counts] = np.nan
    limits = [copy_limit_bytes_per_s(each, rank.facts, rank.device) for each in groups.of_first(direction)]
    limit = np.array([np.nan if each is None else each for each in limits])
    return (
        number_column("bytes_per_s", "rate", "bytes_per_s", rate, "Bytes over the time of those whose size is known."),
        number_column(
            "link_share", "of link", "share", rate / limit,
            "The rate over that which large copies reach; empty where it is beyond, as from the cache of the GPU.",
            known=rate <= limit,
        ),
        number_column("bytes", "bytes", "bytes", groups.total(amounts), "Copied or set in the analysed time."),
        number_column(
            "link_bytes_per_s", "link", "bytes_per_s", limit,
            "What large copies reach: pinned ones over PCIe, half of the memory's bandwidth within the device.",
            is_main=False,
        ),
    )  # fmt: skip
