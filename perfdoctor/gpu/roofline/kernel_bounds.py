"""What bounds a kernel: maths, memory, or the time that any kernel takes; vectorised over many launches.

With FLOPs and bytes known, the best time is the longest of FLOPs over the attainable rate, bytes over the attainable
bandwidth, and the shortest time of a kernel (roofline model, Williams et al. 2009). A kernel that takes more than twice
that is bound by neither: it is inefficient. One that takes less than the peaks allow had its data cached, or its FLOPs
belong to another kernel: its roofline is invalid. Without shapes a prior by category stands in, marked as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int64Array

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


class Ceilings(NamedTuple):
    """What is known of each distinct kind of launch; arrays of one length. Times in ns, NaN where not known.

    Attributes:
        compute_ns, memory_ns: Time at the attainable rate of the unit used, and at the attainable bandwidth.
        peak_ns: Time at the peaks, the longer of the two.
        mostly_maths: The prior: without FLOPs it is taken to be bound by maths, else by memory.
        reason: Index into REASONS of what its name or shapes tell, should it turn out inefficient.
        excluded: Communication and what is no kernel: it has no bound.
    """

    compute_ns: FloatArray
    memory_ns: FloatArray
    peak_ns: FloatArray
    mostly_maths: BoolArray
    reason: Int8Array
    excluded: BoolArray

    @property
    def known(self) -> BoolArray:
        """Whether both times are known."""
        result: BoolArray = ~(np.isnan(self.compute_ns) | np.isnan(self.memory_ns))
        return result


class Launches(NamedTuple):
    """Launches; arrays of one length.

    Attributes:
        dur_ns: Duration.
        item: Row of its kind in Ceilings.
        share: Which part of the kind's work it does; NaN for none that is known.
        blocks: Thread blocks of the grid; -1 where not recorded; None if nowhere.
        sm_count: Streaming multiprocessors of the device, None if unknown.
        floor_ns: Kernels up to this long are bound by latency.
        shortest_ns: The shortest time of any kernel.
    """

    dur_ns: Int64Array
    item: npt.NDArray[np.signedinteger[Any]]
    share: FloatArray
    blocks: Int64Array | None = None
    sm_count: int | None = None
    floor_ns: int = 5_000
    shortest_ns: int = 2_000


@dataclass(frozen=True, eq=False)
class Bounds:
    """What bounds each launch; arrays of one length.

    Attributes:
        kind: Index into BOUNDS; -1 for what is no kernel, and for communication.
        nearest: COMPUTE or BANDWIDTH, the ceiling that is nearest, for every kind; -1 as above.
        reason: Index into REASONS; only inefficient kernels have one, and not all of them.
        assumed: The kind comes from the category alone: low confidence.
    """

    kind: Int8Array
    nearest: Int8Array
    reason: Int8Array
    assumed: BoolArray
    _ceilings: Ceilings
    _launches: Launches

    def is_(self, *kinds: str) -> BoolArray:
        """For each launch whether it is of one of these kinds."""
        result = np.zeros(len(self.kind), bool)
        for kind in kinds:
            result |= self.kind == BOUNDS.index(kind)
        return result

    @cached_property
    def best_ns(self) -> FloatArray:
        """The best time on this device with the unit that it used; NaN where FLOPs, bytes or rates are unknown."""
        return _best_ns(self._ceilings, self._launches)

    @cached_property
    def efficiency(self) -> FloatArray:
        """`best_ns` over the duration; NaN where unknown."""
        result: FloatArray = self.best_ns / np.maximum(self._launches.dur_ns, 1)
        return result

    @cached_property
    def balanced(self) -> BoolArray:
        """Whether maths and memory would take about the same time (within 0.7 to 1.4)."""
        compute, memory = self._ceilings.compute_ns, self._ceilings.memory_ns
        ratio = np.divide(compute, memory, out=np.zeros(len(compute)), where=self._ceilings.known & (memory > 0))
        result: BoolArray = ((ratio >= _BALANCED[0]) & (ratio <= _BALANCED[1]))[self._launches.item]
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


def bound_launches(ceilings: Ceilings, launches: Launches) -> Bounds:
    """Classify launches: latency, then invalid, then efficient (compute or bandwidth) or inefficient, else a prior.

    Comparisons with NaN are false: what is not known leaves the prior standing.
    """
    known = ceilings.known
    maths = np.where(known, ceilings.compute_ns > ceilings.memory_ns, ceilings.mostly_maths)
    nearest = np.where(ceilings.excluded, NO_BOUND, np.where(maths, COMPUTE, BANDWIDTH)).astype(np.int8)[launches.item]
    excluded = ceilings.excluded[launches.item]
    share, dur = launches.share, launches.dur_ns
    with np.errstate(invalid="ignore"):
        inefficient = _best_ns(ceilings, launches) < EFFICIENT_SHARE * dur
        invalid = np.where(known, ceilings.peak_ns, np.nan)[launches.item] * share > PEAK_TOLERANCE * dur
    small, tail = _grids(launches)
    latency = (dur <= launches.floor_ns) | (small & (dur < _SMALL_GRID_NS))
    kind = nearest.copy()
    for rows, value in ((inefficient, INEFFICIENT), (invalid, INVALID), (latency, LATENCY), (excluded, NO_BOUND)):
        kind[rows] = value
    return Bounds(
        kind=kind,
        nearest=nearest,
        reason=_reasons(ceilings, launches, kind, small, tail),
        assumed=~(known[launches.item] & ~np.isnan(share)) & ~latency & ~excluded,
        _ceilings=ceilings,
        _launches=launches,
    )


def _best_ns(ceilings: Ceilings, launches: Launches) -> FloatArray:
    longer = np.where(ceilings.known, np.fmax(ceilings.compute_ns, ceilings.memory_ns), np.nan)
    best: FloatArray = longer[launches.item]
    best *= launches.share
    np.maximum(best, launches.shortest_ns, out=best)
    return best


def _reasons(ceilings: Ceilings, launches: Launches, kind: Int8Array, small: BoolArray, tail: BoolArray) -> Int8Array:
    """Why inefficient kernels might be: what their name or shapes tell goes before the grid."""
    reason = np.zeros(len(kind), np.int8)
    rows = np.flatnonzero(kind == INEFFICIENT)
    by_grid = np.where(small[rows], SMALL_GRID, np.where(tail[rows], TAIL_WAVE, NO_REASON))
    told = ceilings.reason[launches.item[rows]]
    reason[rows] = np.where(told != NO_REASON, told, by_grid)
    return reason


def _grids(launches: Launches) -> tuple[BoolArray, BoolArray]:
    """Whether the grid leaves many multiprocessors without a block, and whether the last wave of blocks does.

    A grid that is a little smaller than the device fills it: kernels that take their tiles one after the other are
    launched so (140 blocks on the 148 multiprocessors of a B200, 128 on the 132 of an H100).
    """
    if launches.blocks is None or not launches.sm_count:
        none = np.zeros(len(launches.dur_ns), bool)
        return none, none
    waves = launches.blocks / launches.sm_count
    known = launches.blocks > 0
    small = known & (waves < _FULL_WAVES_SHARE)
    tail = known & (waves > 1) & (waves < _MANY_WAVES) & (waves / np.maximum(np.ceil(waves), 1) < _FULL_WAVES_SHARE)
    return small, tail
