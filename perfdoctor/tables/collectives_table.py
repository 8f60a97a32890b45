"""The table of collectives: what moves between ranks, how fast, and what of it nothing hides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoctor.analysis.communication.bus_bandwidth import algorithm_bytes, bus_bytes
from perfdoctor.analysis.communication.collective_metadata import CollectiveMetadata, collective_metadata
from perfdoctor.analysis.communication.collectives import CollectiveEvents, CollectiveTable, collective_events
from perfdoctor.analysis.communication.match_collectives import match_collectives
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column, Table
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.tables.shared_columns import (
    Source,
    choose_source,
    count_column,
    empty_table,
    number_column,
    step_columns,
    text_column,
    window_columns,
)
from perfdoctor.tables.work_in_window import sum_by, time_column
from perfdoctor.trace.arrays import NONE, FloatArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS
from perfdoctor.units import format_bytes

NO_GROUP = "group not recorded"
_NONE_RAN = "no collective ran in the analysed time"
_PER_S = 1e9
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
    keys = [events.kind.astype(np.int64)]
    keys += [metadata.label.astype(np.int64)] if by in ("group", "size") else []
    size = np.unique(metadata.bytes, return_inverse=True)[1]
    keys += [size.reshape(-1), metadata.dtype.astype(np.int64)] if by == "size" else []
    largest = 1 + max(int(key.max()) for key in keys)
    row, first = distinct_rows([key[inside] for key in keys], largest)
    first = inside[first]
    texts = _texts(metadata, events, inside, row, first)
    names = _names(by, events, metadata, first)
    dur_ns = (events.end_ns - events.start_ns)[inside]
    count, time_ns = len(first), sum_by(row, dur_ns, len(first))
    counts = np.bincount(row, minlength=count).astype(np.int64)
    longest = np.zeros(count, np.int64)
    np.maximum.at(longest, row, dur_ns)
    columns = (
        text_column("name", by, names),
        *step_columns(source, time_ns),
        _exposed_column(source, events, inside, row, count),
        *_waiting_columns(source, peers, events, metadata, inside, row, count),
        count_column(source, counts),
        *_rate_columns(events, metadata, inside, row, count),
        *texts,
        *window_columns(time_ns, counts, longest),
    )
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


def _texts(
    metadata: CollectiveMetadata, events: CollectiveEvents, inside: Int64Array, row: Int64Array, first: Int64Array
) -> tuple[Column, ...]:
    """What the collectives of a row are, where all are of one."""

    def only(values: Int64Array) -> Int64Array:
        same = np.bincount(row, values[inside] != values[first][row], len(first)) == 0
        return np.where(same, values[first], NONE)

    def texts(codes: Int64Array, strings: Sequence[str]) -> list[str | None]:
        return [strings[each] if each >= 0 else None for each in codes.tolist()]

    ranks, size = only(metadata.group_size.astype(np.int64)), only(metadata.bytes)
    return (
        text_column("kind", "kind", texts(only(events.kind.astype(np.int64)), COLLECTIVE_KINDS), is_main=False),
        text_column(
            "group", "group", texts(only(metadata.label.astype(np.int64)), metadata.strings),
            "The purpose of the process group, else its name; empty where there are several, as all that follow.",
        ),
        number_column("ranks", "ranks", "count", ranks, "Ranks of the group.", known=ranks >= 0),
        number_column("message_bytes", "size", "bytes", size, "What one rank puts in.", known=size >= 0),
        text_column("dtype", "dtype", texts(only(metadata.dtype.astype(np.int64)), metadata.strings), "Element type."),
    )  # fmt: skip


def _exposed_column(
    source: Source, events: CollectiveEvents, inside: Int64Array, row: Int64Array, count: int
) -> Column:
    alone = source.rank.exposed_parts["communication"]
    exposed = []
    for each in range(count):
        rows = inside[row == each]
        exposed.append(iv.total(iv.intersect(iv.union(events.start_ns[rows], events.end_ns[rows]), alone)))
    return time_column(
        source, "exposed_ns", "exposed", np.array(exposed, np.int64), "Time a step in which nothing computes beside."
    )


def _rate_columns(
    events: CollectiveEvents, metadata: CollectiveMetadata, inside: Int64Array, row: Int64Array, count: int
) -> tuple[Column, ...]:
    """Bandwidths by the definitions of nccl-tests; the time in which a rank waits for the last one is in them."""
    kind, size, ranks = events.kind[inside], metadata.bytes[inside], metadata.group_size[inside]
    dur_ns = (events.end_ns - events.start_ns)[inside]
    known = size >= 0
    put_in = np.bincount(row, np.where(known, size, 0), count)
    return (
        number_column(
            "bus_bytes_per_s", "bus", "bytes_per_s", _rate(bus_bytes(kind, size, ranks), dur_ns, row, count),
            "What crosses the busiest link over time, as nccl-tests counts it: it compares with the link's rate.",
        ),
        number_column(
            "bytes", "bytes", "bytes", put_in, "What this rank puts in, in the analysed time, as far as known.",
            is_main=False,
            known=np.bincount(row, known, count) > 0,
        ),
        number_column(
            "algorithm_bytes_per_s", "algorithm", "bytes_per_s",
            _rate(algorithm_bytes(kind, size, ranks), dur_ns, row, count),
            "Size over time, as nccl-tests counts it, waiting for the last rank included.",
        ),
    )  # fmt: skip


def _rate(amounts: FloatArray, dur_ns: Int64Array, row: Int64Array, count: int) -> FloatArray:
    """For each row an amount per second of those collectives whose amount is known; NaN where none is."""
    known = ~np.isnan(amounts) & (dur_ns > 0)
    time_ns = np.bincount(row, np.where(known, dur_ns, 0), count)
    total = np.bincount(row, np.where(known, amounts, 0), count)
    return np.where(time_ns > 0, total / np.maximum(time_ns, 1) * _PER_S, np.nan)


def _waiting_columns(
    source: Source,
    peers: Sequence[CollectiveTable],
    events: CollectiveEvents,
    metadata: CollectiveMetadata,
    inside: Int64Array,
    row: Int64Array,
    count: int,
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
    known = waited_ns[inside] >= 0
    crossing = bus_bytes(events.kind[inside], metadata.bytes[inside], metadata.group_size[inside])
    transfer = _rate(np.where(known, crossing, np.nan), (dur_ns - waited_ns)[inside], row, count)
    return (
        time_column(
            source, "waiting_ns", "waiting", sum_by(row, np.where(known, waited_ns[inside], 0), count),
            "Time a step in which this rank waits for others to arrive.", known=np.bincount(row, known, count) > 0,
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
