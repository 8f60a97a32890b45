"""The table of collectives: what moves between ranks, how fast, and what of it nothing hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoctor.analysis.communication.bus_bandwidth import algorithm_bytes, bus_bytes
from perfdoctor.analysis.communication.collective_metadata import CollectiveMetadata, collective_metadata
from perfdoctor.analysis.communication.collectives import CollectiveEvents, CollectiveTable, collective_events
from perfdoctor.analysis.communication.match_collectives import match_collectives
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.rules.requirements import explain_missing
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
from perfdoctor.tables.work_in_window import exposed_column, time_column
from perfdoctor.trace.arrays import NONE, FloatArray, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS
from perfdoctor.units import format_bytes

NO_GROUP = "group not recorded"
_NONE_RAN = "no collective ran in the analysed time"
# Sizes below are given to the byte.
_IN_BYTES = 10_000


def collectives_table(rank: Rank, by: str, peers: Sequence[CollectiveTable] = ()) -> Table:
    """The collectives that start in the window, sends and receives among them.

    `by` is "kind", "group" for the kinds of each process group, or "size" for each size and element type of these.
    Where the collectives of all ranks (`peers`, its own among them) are known, the table says how long this rank waited
    for others, and how fast the transfers were without that.
    """
    source = choose_source(rank)
    events = collective_events(rank.kernel_classes, on_gpu=rank.device_kind == "gpu")
    metadata = collective_metadata(rank.trace, events.comms)
    inside = np.flatnonzero(iv.contains(rank.window, events.start_ns))
    if not len(inside):
        missing = rank.device_kind == "gpu_not_recorded"
        note = explain_missing("gpu_items", rank.available_data) if missing else _NONE_RAN
        return empty_table("collectives", by, rank, note)
    keys: list[IntArray] = [events.kind]
    keys += [metadata.label] if by in ("group", "size") else []
    size = np.unique(metadata.bytes, return_inverse=True)[1]
    keys += [size.reshape(-1), metadata.dtype] if by == "size" else []
    groups = Groups.by(inside, (events.end_ns - events.start_ns)[inside], *(key[inside] for key in keys))
    columns = (
        text_column("name", by, _names(by, events, metadata, inside[groups.first])),
        *step_columns(source, groups.time_ns),
        exposed_column(
            source, groups, events.start_ns, events.end_ns, "communication",
            "Time a step in which nothing computes beside.",
        ),
        *_waiting_columns(source, peers, events, metadata, groups),
        count_column(source, groups.counts),
        *_rate_columns(events, metadata, groups),
        *_texts(metadata, events, groups),
        *window_columns(groups.time_ns, groups.counts, groups.max_ns),
    )  # fmt: skip
    unsized = (metadata.bytes[inside] < 0).all()
    notes = (*source.notes, *([explain_missing("sizes", rank.available_data)] if unsized else []))
    return Table("collectives", by, columns, rank=rank.rank, notes=notes).sort("step_ns")


def _names(by: str, events: CollectiveEvents, metadata: CollectiveMetadata, first: Int64Array) -> list[str]:
    names = [COLLECTIVE_KINDS[each] for each in events.kind[first].tolist()]
    if by == "group":
        groups = [metadata.strings[each] if each >= 0 else NO_GROUP for each in metadata.label[first].tolist()]
        return [f"{group}, {name}" for group, name in zip(groups, names, strict=True)]
    if by == "size":
        return [f"{name}, {_size(each)}" for name, each in zip(names, metadata.bytes[first].tolist(), strict=True)]
    return names


def _size(size_bytes: int) -> str:
    if size_bytes < 0:
        return "size not recorded"
    return f"{size_bytes} bytes" if size_bytes < _IN_BYTES else format_bytes(size_bytes)


def _texts(metadata: CollectiveMetadata, events: CollectiveEvents, groups: Groups) -> tuple[Column, ...]:
    """What the collectives of a row are, where all are of one."""

    def only(values: IntArray) -> Int64Array:
        own = values[groups.items].astype(np.int64)
        first = own[groups.first]
        return np.where(groups.sum(own != first[groups.group]) == 0, first, NONE)

    def texts(codes: Int64Array, strings: Sequence[str]) -> list[str | None]:
        return [strings[each] if each >= 0 else None for each in codes.tolist()]

    ranks, size = only(metadata.group_size), only(metadata.bytes)
    return (
        text_column("kind", "kind", texts(only(events.kind), COLLECTIVE_KINDS), is_main=False),
        text_column(
            "group", "group", texts(only(metadata.label), metadata.strings),
            "The purpose of the process group, else its name; empty where there are several, as all that follow.",
        ),
        number_column("ranks", "ranks", "count", ranks, "Ranks of the group.", known=ranks >= 0),
        number_column("message_bytes", "size", "bytes", size, "What one rank puts in.", known=size >= 0),
        text_column("dtype", "dtype", texts(only(metadata.dtype), metadata.strings), "Element type."),
    )  # fmt: skip


def _rate_columns(events: CollectiveEvents, metadata: CollectiveMetadata, groups: Groups) -> tuple[Column, ...]:
    """Bandwidths by the definitions of nccl-tests; the time in which a rank waits for the last one is in them."""
    items = groups.items
    kind, size, ranks = events.kind[items], metadata.bytes[items], metadata.group_size[items]
    put_in = groups.total(np.where(size >= 0, size, np.nan))
    return (
        number_column(
            "bus_bytes_per_s", "bus", "bytes_per_s", _rate(groups, bus_bytes(kind, size, ranks)),
            "What crosses the busiest link over time, as nccl-tests counts it: it compares with the link's rate.",
        ),
        number_column(
            "bytes", "bytes", "bytes", put_in, "What this rank puts in, in the analysed time, as far as known.",
            is_main=False,
        ),
        number_column(
            "algorithm_bytes_per_s", "algorithm", "bytes_per_s",
            _rate(groups, algorithm_bytes(kind, size, ranks)),
            "Size over time, as nccl-tests counts it, waiting for the last rank included.",
        ),
    )  # fmt: skip


def _rate(groups: Groups, amounts: FloatArray) -> FloatArray:
    """For each row an amount per second of those collectives that take time; NaN where none is known."""
    return groups.rate(np.where(groups.dur_ns > 0, amounts, np.nan))


def _waiting_columns(
    source: Source,
    peers: Sequence[CollectiveTable],
    events: CollectiveEvents,
    metadata: CollectiveMetadata,
    groups: Groups,
) -> tuple[Column, ...]:
    """How long this rank waited for the last one to arrive, and the bus bandwidth of the transfer after that."""
    matched = match_collectives(peers) if len(peers) > 1 else None
    mine = None if matched is None else _place_of(source.rank, matched.tables)
    if matched is None or mine is None:
        return ()
    # The table of the rank holds the last of the events.
    dur_ns = events.end_ns - events.start_ns
    waited_ns = np.full(len(events), NONE, np.int64)
    collective = matched.collective_of_row[mine]
    place = len(events) - len(collective) + np.flatnonzero(collective >= 0)
    arrival_ns = matched.clocks[mine].to_own(matched.last_arrival_ns[collective[collective >= 0]])
    waited_ns[place] = np.clip(arrival_ns - events.start_ns[place], 0, dur_ns[place])
    waited_ns, items = waited_ns[groups.items], groups.items
    known = waited_ns >= 0
    crossing = bus_bytes(events.kind[items], metadata.bytes[items], metadata.group_size[items])
    transfer = _rate(replace(groups, dur_ns=groups.dur_ns - waited_ns), np.where(known, crossing, np.nan))
    return (
        time_column(
            source, "waiting_ns", "waiting", groups.sum(np.where(known, waited_ns, 0)),
            "Time a step in which this rank waits for others to arrive.", known=groups.sum(known) > 0,
        ),
        number_column(
            "transfer_bytes_per_s", "transfer", "bytes_per_s", transfer,
            "Bus bandwidth from the arrival of the last rank on.",
        ),
    )  # fmt: skip


def _place_of(rank: Rank, tables: Sequence[CollectiveTable]) -> int | None:
    """Which of the tables is that of the rank: the same object, else by its number, where the trace names it."""
    for place, table in enumerate(tables):
        if table is rank.collectives:
            return place
    numbers = [table.rank for table in tables]
    return numbers.index(rank.rank) if rank.rank is not None and numbers.count(rank.rank) == 1 else None
