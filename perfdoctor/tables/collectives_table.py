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
from perfdoctor.tables.shared_columns import Groups, Source, choose_source
from perfdoctor.tables.work_in_window import exposed_ns
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
    source = choose_source("collectives", rank)
    events = collective_events(rank.kernel_classes, on_gpu=rank.device_kind == "gpu")
    metadata = collective_metadata(rank.trace, events.comms)
    inside = np.flatnonzero(iv.contains(rank.window, events.start_ns))
    if not len(inside):
        missing = rank.device_kind == "gpu_not_recorded"
        return source.empty(by, explain_missing("gpu_items", rank.available_data) if missing else _NONE_RAN)
    keys: list[IntArray] = [events.kind]
    keys += [metadata.label] if by in ("group", "size") else []
    size = np.unique(metadata.bytes, return_inverse=True)[1]
    keys += [size.reshape(-1), metadata.dtype] if by == "size" else []
    groups = Groups.by(inside, (events.end_ns - events.start_ns)[inside], *(key[inside] for key in keys))
    columns = (
        source.time("exposed_ns", exposed_ns(rank, groups, events.start_ns, events.end_ns, "communication")),
        *_waiting_columns(source, peers, events, metadata, groups),
        source.count(groups.counts),
        *_rate_columns(source, events, metadata, groups),
        *_texts(source, metadata, events, groups),
    )
    notes = [explain_missing("sizes", rank.available_data)] if (metadata.bytes[inside] < 0).all() else []
    return source.build_groups(
        by, by, _names(by, events, metadata, inside[groups.first]), groups, *columns, notes=notes
    )


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


def _texts(
    source: Source, metadata: CollectiveMetadata, events: CollectiveEvents, groups: Groups
) -> tuple[Column, ...]:
    """What the collectives of a row are, where all are of one."""

    def only(values: IntArray) -> Int64Array:
        own = values[groups.items].astype(np.int64)
        first = own[groups.first]
        return np.where(groups.sum(own != first[groups.group]) == 0, first, NONE)

    def texts(name: str, values: IntArray, strings: Sequence[str]) -> Column:
        return source.column(name, [strings[each] if each >= 0 else None for each in only(values).tolist()])

    ranks, size = only(metadata.group_size), only(metadata.bytes)
    return (
        texts("kind", events.kind, COLLECTIVE_KINDS),
        texts("group", metadata.label, metadata.strings),
        source.column("ranks", ranks, known=ranks >= 0),
        source.column("message_bytes", size, known=size >= 0),
        texts("dtype", metadata.dtype, metadata.strings),
    )


def _rate_columns(
    source: Source, events: CollectiveEvents, metadata: CollectiveMetadata, groups: Groups
) -> tuple[Column, ...]:
    """Bandwidths by the definitions of nccl-tests; the time in which a rank waits for the last one is in them."""
    items = groups.items
    kind, size, ranks = events.kind[items], metadata.bytes[items], metadata.group_size[items]
    return (
        source.column("bus_bytes_per_s", _rate(groups, bus_bytes(kind, size, ranks))),
        source.column("bytes", groups.total(np.where(size >= 0, size, np.nan))),
        source.column("algorithm_bytes_per_s", _rate(groups, algorithm_bytes(kind, size, ranks))),
    )


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
    waiting = source.time("waiting_ns", groups.sum(np.where(known, waited_ns, 0)), groups.sum(known) > 0)
    return waiting, source.column("transfer_bytes_per_s", transfer)


def _place_of(rank: Rank, tables: Sequence[CollectiveTable]) -> int | None:
    """Which of the tables is that of the rank: the same object, else by its number, where the trace names it."""
    for place, table in enumerate(tables):
        if table is rank.collectives:
            return place
    numbers = [table.rank for table in tables]
    return numbers.index(rank.rank) if rank.rank is not None and numbers.count(rank.rank) == 1 else None
