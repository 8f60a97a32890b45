"""What the GPU had to do and what it achieved, over time: queues, bandwidth and FLOP/s, as counters.

A counter of a Chrome trace has a value until the next: it cannot say "not known". So only what is known is counted, its
label says of which share of the kernels' time that is, and a counter of which next to nothing is known is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import FloatArray, Int64Array
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import KERNEL

_POINT_SHARE = 0.02
_MIN_POINTS, _MAX_POINTS = 100, 4000
# A rate of fewer kernels says nothing of the GPU; above the other nothing worth a word is missing.
_MIN_KNOWN_SHARE, _ALL = 0.05, 0.995
_MAX_STREAMS = 16  # the busiest; a program with more has dozens of short-lived ones


@frozen_dataclass(eq=False)
class Counter:
    """A counter of one series: from each time on it has the value that stands there."""

    name: str
    series: str
    time_ns: Int64Array
    value: FloatArray


def points_for(slices: int) -> int:
    """The maximum number of points of a counter in a trace with that number of slices.

    A fiftieth of the slices, between 100 and 4000: a point takes a third of the text of a slice, so ten counters take
    less than a tenth of a trace of more than 5000 slices, and a viewer has a point for each pixel.
    """
    return min(max(round(_POINT_SHARE * slices), _MIN_POINTS), _MAX_POINTS)


def gpu_counters(rank: Rank, max_points: int) -> Iterator[Counter]:
    """The counters of a rank, as far as they are known, of `max_points` at most; times are those of its file."""
    gpu = rank.raw_trace.gpu
    if not len(gpu):
        return
    yield from _queue_depths(rank, max_points)
    kernels = gpu.kind == KERNEL
    edges = np.linspace(gpu.start_ns.min(), gpu.end_ns.max(), max_points).astype(np.int64)
    edges = edges[np.concatenate(([True], np.diff(edges) > 0))]
    copies = copy_kinds_of(rank.raw_trace).with_host
    amounts = (
        ("kernel bandwidth", "GB/s", kernels, rank.kernel_costs.bytes, 1.0),
        ("kernel FLOP/s", "TFLOP/s", kernels, rank.kernel_costs.flops, 1e-3),
        ("host copies", "GB/s", copies, np.where(gpu.bytes < 0, np.nan, gpu.bytes), 1.0),
    )
    for name, unit, rows, amount, scale in amounts:
        known = rows & (amount > 0)
        share = int(gpu.dur_ns[known].sum()) / max(int(gpu.dur_ns[rows].sum()), 1)
        if share >= _MIN_KNOWN_SHARE and len(edges) > 1:
            value = scale * _rates(gpu.start_ns[known], gpu.end_ns[known], amount[known], edges)
            series = unit if share > _ALL else f"{unit}, known for {100 * share:.0f}% of their time"
            yield Counter(name, series, edges, np.append(value, 0.0))


def _rates(start: Int64Array, end: Int64Array, amount: FloatArray, edges: Int64Array) -> FloatArray:
    """The amount per ns between each two edges, where each item spreads its amount evenly over its time."""
    base = int(edges[0])  # float64 keeps the nanoseconds of times from here on, not of those since the epoch
    begin, until = start - base, np.maximum(end, start + 1) - base
    rate = amount / (until - begin)
    times, change = np.concatenate((begin, until)), np.concatenate((rate, -rate))
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(change[order])
    done = np.concatenate(([0.0], np.cumsum(running[:-1] * np.diff(times))))
    result: FloatArray = np.diff(np.interp(edges - base, times, done)) / np.diff(edges)
    return np.where(result > 1e-9 * result.max(), result, 0.0)  # what rounding leaves of zero


def _queue_depths(rank: Rank, max_points: int) -> Iterator[Counter]:
    """For each stream how many of its items are launched and not finished: 0 means that the GPU waits for the CPU."""
    trace = rank.raw_trace
    rows = np.flatnonzero(trace.gpu.call >= 0)
    if not len(rows):
        return
    streams = np.stack((trace.gpu.device[rows], trace.gpu.stream[rows]))
    keys, of_row, counts = np.unique(streams, axis=1, return_inverse=True, return_counts=True)
    several = len(distinct(keys[0])) > 1
    busiest = np.sort(np.argsort(-counts, kind="stable")[:_MAX_STREAMS])
    for key in busiest.tolist():
        device, stream = keys[:, key].tolist()
        items = rows[of_row.ravel() == key]
        launched = trace.calls.start_ns[trace.gpu.call[items]]
        time, depth = _depth(launched, np.maximum(trace.gpu.end_ns[items], launched))
        name = f"queue of stream {stream}" + (f", GPU {device}" if several else "")
        yield Counter(name, "items", *_keep_peaks(time, depth, max_points))


def _depth(begin: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """How many intervals are open, from each instant at which that changes on."""
    times, change = np.concatenate((begin, end)), np.repeat([1, -1], len(begin))
    instants, at = np.unique(times, return_inverse=True)
    return instants, np.cumsum(np.bincount(at.ravel(), change).astype(np.int64))


def _keep_peaks(time: Int64Array, value: Int64Array, max_points: int) -> tuple[Int64Array, FloatArray]:
    """At most `max_points` points: one for each of equal parts of the time, with the largest value in it."""
    if len(time) > max_points:
        edges = np.linspace(time[0], time[-1], max_points).astype(np.int64)[:-1]
        first = np.searchsorted(time, edges, side="left")
        last = np.append(first[1:], len(time) - 1)
        before = value[np.maximum(first - 1, 0)]  # is open yet when the part begins
        # A part without points has the value from before; reduceat gives it that of the next point.
        peak = np.where(last > first, np.maximum(np.maximum.reduceat(value, first), before), before)
        time, value = np.append(edges, time[-1]), np.append(peak, value[-1])
    changes = np.concatenate(([True], np.diff(value) != 0))
    return time[changes], value[changes].astype(np.float64)
