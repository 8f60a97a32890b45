"""What bounds a kernel: maths, memory, or the time that any kernel takes; vectorised over many launches.

With FLOPs and bytes known, the best time is the longest of FLOPs over the attainable rate, bytes over the attainable
bandwidth, and the shortest time of a kernel (roofline model, Williams et al. 2009). A kernel that takes more than twice
that is bound by neither: it is inefficient. One that takes less than the peaks allow had its data cached, or its FLOPs
belong to another kernel: its roofline is invalid. Without shapes a prior by category stands in, marked as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Int8Array: TypeAlias = npt.NDArray[np.int8]
Int64Array: TypeAlias = npt.NDArray[np.int64]

BOUNDS = ("compute", "bandwidth", "latency", "inefficient", "invalid")
COMPUTE, BANDWIDTH, LATENCY, INEFFICIENT, INVALID = range(len(BOUNDS))
NO_BOUND = -1

REASONS = ("", "alignment", "old-architecture", "small-grid", "tail-wave")
NO_REASON, ALIGNMENT, OLD_ARCHITECTURE, SMALL_GRID, TAIL_WAVE = range(len(REASONS))

EFFICIENT_SHARE = 0.5
"""A kernel that takes up to twice the best time is bound by what sets that time."""
PEAK_TOLERANCE = 1.05
"""Clocks run a little above the nominal ones, and timestamps are rounded: so much above a peak is no contradiction."""

SHORTEST_KERNEL_NS = 2_000
_LATENCY_FLOOR_NS = 5_000
_SHORTEST_PERCENTILE = 5.0
_ENOUGH_KERNELS = 20
_SMALL_GRID_NS = 20_000
_BALANCED = (0.7, 1.4)
_MANY_WAVES = 4
_FULL_WAVES_SHARE = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """What is known of each launch; arrays of one length. Times in ns, NaN where not known.

    Attributes:
        dur_ns: Duration.
        compute_ns, memory_ns: Time at the attainable rate of the unit used, and at the attainable bandwidth.
        peak_compute_ns, peak_memory_ns: The same at the peaks.
        mostly_maths: The prior: without FLOPs it is taken to be bound by maths, else by memory.
        reason: Index into REASONS of what its name tells, should it turn out inefficient.
        blocks: Thread blocks of the grid; -1 where not recorded; None if nowhere.
        sm_count: Streaming multiprocessors of the device, None if unknown.
        floor_ns: Kernels up to this long are bound by latency.
        shortest_ns: The shortest time of any kernel.
    """

    dur_ns: Int64Array
    compute_ns: FloatArray
    memory_ns: FloatArray
    peak_compute_ns: FloatArray
    peak_memory_ns: FloatArray
    mostly_maths: BoolArray
    reason: Int8Array
    blocks: Int64Array | None
    sm_count: int | None
    floor_ns: int
    shortest_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """What bounds each launch; arrays of one length.

    Attributes:
        kind: Index into BOUNDS; -1 for what is no kernel, and for communication.
        nearest: COMPUTE or BANDWIDTH, the ceiling that is nearest, for every kind; -1 as above.
        reason: Index into REASONS; only inefficient kernels have one, and not all of them.
        best_ns: The best time on this device with the unit that it used; NaN where FLOPs, bytes or rates are unknown.
        efficiency: `best_ns` over the duration; NaN where unknown.
        balanced: Maths and memory would take about the same time (within 0.7 to 1.4).
        assumed: The kind comes from the category alone: low confidence.
    """

    kind: Int8Array
    nearest: Int8Array
    reason: Int8Array
    best_ns: FloatArray
    efficiency: FloatArray
    balanced: BoolArray
    assumed: BoolArray

    def is_(self, *kinds: str) -> BoolArray:
        """For each launch whether it is of one of these kinds."""
        result: BoolArray = np.isin(self.kind, [BOUNDS.index(kind) for kind in kinds])
        return result


def latency_floor_ns(helper_ns: Int64Array) -> tuple[int, int]:
    """The shortest time of a kernel, and the duration up to which a kernel is bound by latency.

    Args:
        helper_ns: Durations of kernels that are no matrix maths; the 5th percentile of enough of them is the shortest
            time, unless the trace has no short ones at all. About 2 us on A100 and H100.

    Returns:
        Both in ns; the second is twice the first, at least 5 us.
    """
    shortest = SHORTEST_KERNEL_NS
    if len(helper_ns) >= _ENOUGH_KERNELS:
        rank = int(len(helper_ns) * _SHORTEST_PERCENTILE / 100)
        fifth = int(np.partition(helper_ns, rank)[rank])
        shortest = fifth if 0 < fifth <= _LATENCY_FLOOR_NS else shortest
    return shortest, max(_LATENCY_FLOOR_NS, 2 * shortest)


def bound_launches(launches: Launches) -> Bounds:
    """Classify launches: latency, then invalid, then efficient (compute or bandwidth) or inefficient, else a prior."""
    dur = np.maximum(launches.dur_ns, 1).astype(np.float64)
    compute, memory = launches.compute_ns, launches.memory_ns
    known = ~(np.isnan(compute) | np.isnan(memory))
    maths = np.where(known, compute > memory, launches.mostly_maths)
    best = np.where(known, np.maximum(np.fmax(compute, memory), launches.shortest_ns), np.nan)
    efficiency = best / dur
    small, tail = _grids(launches)
    nearest = np.where(maths, COMPUTE, BANDWIDTH).astype(np.int8)
    kind = nearest.copy()
    inefficient = known & (efficiency < EFFICIENT_SHARE)
    kind[inefficient] = INEFFICIENT
    peak = np.fmax(launches.peak_compute_ns, launches.peak_memory_ns)
    kind[known & (peak > PEAK_TOLERANCE * dur)] = INVALID
    kind[(launches.dur_ns <= launches.floor_ns) | (small & (launches.dur_ns < _SMALL_GRID_NS))] = LATENCY
    reason = np.where(small, SMALL_GRID, np.where(tail, TAIL_WAVE, NO_REASON)).astype(np.int8)
    reason = np.where(launches.reason != NO_REASON, launches.reason, reason)
    reason[kind != INEFFICIENT] = NO_REASON
    ratio = np.divide(compute, memory, out=np.zeros(len(dur)), where=known & (memory > 0))
    return Bounds(
        kind=kind,
        nearest=nearest,
        reason=reason,
        best_ns=best,
        efficiency=efficiency,
        balanced=(ratio >= _BALANCED[0]) & (ratio <= _BALANCED[1]),
        assumed=~known & (kind != LATENCY),
    )


def _grids(launches: Launches) -> tuple[BoolArray, BoolArray]:
    """Whether the grid leaves multiprocessors without a block, and whether the last wave of blocks is mostly empty."""
    none = np.zeros(len(launches.dur_ns), bool)
    if launches.blocks is None or not launches.sm_count:
        return none, none
    waves = launches.blocks / launches.sm_count
    known = launches.blocks > 0
    small = known & (waves < 1)
    tail = known & (waves > 1) & (waves < _MANY_WAVES) & (waves / np.ceil(waves) < _FULL_WAVES_SHARE)
    return small, tail
