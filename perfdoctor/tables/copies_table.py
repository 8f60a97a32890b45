"""The table of copies: which way they go, from and to which memory, how fast, and what of it the link allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.host_copies import copy_limit_bytes_per_s
from perfdoctor.analysis.launching_ops import launch_instants
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
from perfdoctor.tables.work_in_window import exposed_column
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, Int64Array
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
_WHOLE_NS, _MIN_WHOLE_COUNT = 1000, 5
_SIZE_NAMES = ("under 4 KiB", "4 to 64 KiB", "64 KiB to 1 MiB", "1 to 16 MiB", "16 to 256 MiB", "256 MiB and more")


def copies_table(rank: Rank, by: str) -> Table:
    """The copies and memory sets that start in the window.

    `by` is "kind" for direction and kind of host memory, "size" for classes of size within these, or "line" for these
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
    found = _group_copies(inner, items, by)
    groups = found.groups
    columns = (
        text_column("name", "copies", found.names),
        *step_columns(source, groups.time_ns),
        count_column(source, groups.counts),
        *_rate_columns(source, groups, found.direction),
        exposed_column(source, groups, gpu.start_ns, gpu.end_ns, "memcpy", "Time a step in which only they run."),
        text_column("direction", "direction", _directions(groups, found.direction), is_main=False),
        text_column(
            "memory", "host memory", [_MEMORY.get(each) for each in groups.of_first(found.memory)],
            "Kind of host memory; AMD's profiler says host for both kinds.", is_main=False,
        ),
        *found.columns,
        *window_columns(groups.time_ns, groups.counts, groups.max_ns),
    )  # fmt: skip
    return Table("copies", by, columns, rank=rank.rank, notes=source.notes).sort("step_ns")


class _Copies(NamedTuple):
    """Copies and sets in groups.

    Attributes:
        groups: The groups.
        names: The name of each.
        direction: For each item its direction, `_SET` for a set.
        memory: For each item its kind of host memory, NONE for a set.
        columns: What else says which they are.
    """

    groups: Groups
    names: list[str]
    direction: Int64Array
    memory: Int64Array
    columns: tuple[Column, ...]


def _group_copies(rank: Rank, items: Int64Array, by: str) -> _Copies:
    trace, gpu, kinds = rank.trace, rank.trace.gpu, copy_kinds_of(rank.trace)
    is_set = gpu.kind[items] == MEMSET
    direction = np.where(is_set, _SET, kinds.direction[items]).astype(np.int64)
    memory = np.where(is_set, NONE, kinds.host_memory[items]).astype(np.int64)
    if by == "kind":
        groups = Groups.of_gpu(trace, items, direction, memory)
        return _Copies(groups, _names(groups, direction, memory), direction, memory, ())
    if by == "size":
        size = np.where(gpu.bytes[items] >= 0, np.searchsorted(_SIZES, gpu.bytes[items], side="right"), NONE)
        groups = Groups.of_gpu(trace, items, direction, memory, size)
        sizes = [_SIZE_NAMES[each] if each >= 0 else None for each in groups.of_first(size)]
        columns: tuple[Column, ...] = (text_column("size", "size", sizes, is_main=False),)
        further = [each or "size not recorded" for each in sizes]
    else:
        at_ns, thread = launch_instants(trace)
        lines = lines_of_work(rank, at_ns[items], thread[items], gpu.op[items])
        groups = Groups.of_gpu(trace, items, direction, memory, lines.code)
        of_groups = groups.of_first(lines.code)
        columns, further = line_columns(lines, of_groups), lines.names(of_groups)
    names = [f"{name}, {more}" for name, more in zip(_names(groups, direction, memory), further, strict=True)]
    return _Copies(groups, names, direction, memory, columns)


def _names(groups: Groups, direction: Int64Array, memory: Int64Array) -> list[str]:
    return [_name(*kind) for kind in zip(groups.of_first(direction), groups.of_first(memory), strict=True)]


def _name(direction: int, memory: int) -> str:
    kind = _MEMORY.get(memory)
    return _DIRECTIONS[direction] if kind is None else f"{_DIRECTIONS[direction]}, {kind}"


def _directions(groups: Groups, direction: Int64Array) -> list[str | None]:
    names = (*vocabulary.COPY_DIRECTIONS, None)
    return [names[each] if each != vocabulary.UNKNOWN_DIRECTION else None for each in groups.of_first(direction)]


def _rate_columns(source: Source, groups: Groups, direction: Int64Array) -> tuple[Column, ...]:
    rank, recorded = source.rank, source.rank.trace.gpu.bytes[groups.items]
    amounts = np.where(recorded >= 0, recorded, np.nan)
    rate = groups.rate(amounts)
    # Old profilers write whole microseconds: the rate of what takes a few of them would be off by half and more.
    if not (rank.trace.gpu.dur_ns % _WHOLE_NS).any():
        rate[groups.time_ns < _MIN_WHOLE_COUNT * _WHOLE_NS * groups.counts] = np.nan
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
