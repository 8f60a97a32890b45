"""The memory of a device over time, by what it is for; the categories add up to what is allocated at each point."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfdoctor.charts.extremes import extremes
from perfdoctor.memory.categories import CATEGORIES
from perfdoctor.memory.device_memory import DeviceMemory, bytes_of_categories
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import ClaimKey, MemoryTimeline, claim_key
from perfdoctor.report.finding import Finding
from perfdoctor.report.memory_summary import is_worth_showing
from perfdoctor.trace.arrays import NONE, Int64Array

_MAX_DEVICES = 4
_MAX_POINTS = 2_000
# What stays is below what comes and goes.
_FROM_BELOW = np.array(
    [
        *map(CATEGORIES.index, ("before_recording", "parameters", "optimizer_state", "gradients", "collectives")),
        *map(CATEGORIES.index, ("inputs", "unknown", "activations", "temporaries")),
    ]
)


def memory_timelines_of(
    rank: Rank, findings: Iterable[Finding] = (), max_points: int = _MAX_POINTS
) -> tuple[MemoryTimeline, ...]:
    """The memory of the devices with the highest peaks, of a GPU program its GPUs; empty where no peak is known.

    Beyond `max_points` events of a device the lowest and the highest instant of each of as many parts as fit are kept,
    and of all the peak, the first event and the last.
    """
    shown = [
        (number, memory)
        for number, (memory, summary) in enumerate(zip(rank.memory, rank.memory_summary, strict=True))
        if memory.peak is not None and is_worth_showing(summary)
    ]
    shown = [(number, memory) for number, memory in shown if not memory.is_cpu] or shown
    keys = [(each.memory_edit.device, claim_key(each)) for each in findings if each.memory_edit is not None]
    return tuple(
        _timeline(rank, number, memory, frozenset(key for device, key in keys if device == number), max_points)
        for number, memory in shown[:_MAX_DEVICES]
    )


def _timeline(
    rank: Rank, number: int, memory: DeviceMemory, findings: frozenset[ClaimKey], max_points: int
) -> MemoryTimeline:
    peak, rows, table = memory.peak, memory.allocations.rows, memory.trace.memory
    assert peak is not None
    time_ns = table.time_ns[rows] - table.time_ns[rows[0]]
    has_times = bool((table.time_ns[rows] != NONE).all() and (np.diff(time_ns) >= 0).all() and time_ns[-1] > 0)
    shown = choose_events(
        table.allocated_bytes[rows], time_ns if has_times else np.arange(len(rows)), peak.place, max_points
    )
    of_category = bytes_of_categories(memory, shown)
    occurring = _FROM_BELOW[of_category[_FROM_BELOW].any(axis=1)]
    return MemoryTimeline(
        summary=rank.memory_summary[number],
        categories=tuple(CATEGORIES[each] for each in occurring.tolist()),
        bytes=of_category[occurring],
        event=shown,
        time_ns=time_ns[shown] if has_times else None,
        reserved_bytes=None if peak.reserved_bytes is None else table.reserved_bytes[rows[shown]],
        peak=int(np.searchsorted(shown, peak.place)),
        findings=findings,
    )


def choose_events(allocated: Int64Array, at: Int64Array, peak: int, max_points: int) -> Int64Array:
    """The events that are drawn, in their order, of all by what is allocated after each and where it is on the axis.

    Of more than `max_points`, which is 5 at least, those with most and with least in each part of the axis, the first,
    the last and the peak.
    """
    if len(allocated) <= max_points:
        return np.arange(len(allocated))
    ends = (0, peak, len(allocated) - 1)
    parts = (max_points - len(ends)) // 2
    part = (at - at[0]) / max(int(at[-1] - at[0]), 1) * parts
    return np.union1d(extremes(allocated, np.minimum(part.astype(np.int64), parts - 1)), ends)
