"""The memory of each device over time as counters in bytes: what is allocated, what it is for, and what is reserved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from perfdoctor.charts.memory_timeline import choose_events
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.memory.categories import CATEGORIES
from perfdoctor.memory.device_memory import DeviceMemory, bytes_of_categories
from perfdoctor.rank import Rank
from perfdoctor.report.memory_summary import is_worth_showing
from perfdoctor.trace.arrays import Int64Array

_UNIT = "bytes"


@frozen_dataclass(eq=False)
class MemoryCounter:
    """A counter of one or more series, which viewers stack: from each time on it has the values that stand there."""

    name: str
    time_ns: Int64Array
    series: Mapping[str, Int64Array]


def memory_counters(rank: Rank, max_points: int) -> Iterator[MemoryCounter]:
    """The memory of each device whose peak a report tells, of about `max_points` points; times are those of its file.

    What the evidence window of a capture recorded is in another file, and not here.
    """
    if rank.memory_source is rank:
        for memory, summary in zip(rank.memory, rank.memory_summary, strict=True):
            if memory.peak is not None and is_worth_showing(summary):
                yield from _counters_of(memory, memory.peak.place, max_points)


def _counters_of(memory: DeviceMemory, peak: int, max_points: int) -> Iterator[MemoryCounter]:
    table, device = memory.trace.memory, "CPU" if memory.is_cpu else f"GPU {memory.device}"
    rows = memory.allocations.rows
    shown = choose_events(table.allocated_bytes[rows], np.arange(len(rows)), peak, max_points)
    rows = rows[shown]
    time_ns, reserved = table.time_ns[rows], table.reserved_bytes[rows]
    yield MemoryCounter(f"{device} memory, allocated", time_ns, {_UNIT: table.allocated_bytes[rows]})
    if (reserved > 0).any():  # there is no such allocator on the CPU
        yield MemoryCounter(f"{device} memory, reserved", time_ns, {_UNIT: reserved})
    by_category = zip(CATEGORIES, bytes_of_categories(memory, shown), strict=True)
    parts = {name: values for name, values in by_category if values.any()}
    yield MemoryCounter(f"{device} memory by category", time_ns, parts)
