"""What bounds a kernel: compute, bandwidth, or the time that any kernel takes; vectorised over many launches.

With FLOPs and bytes known, the best time is the longest of three (roofline model, Williams et al. 2009): FLOPs over the
attainable rate, bytes over the attainable bandwidth, and the shortest time of any kernel. A kernel that takes more than
twice the best time is bound by neither roof: it is inefficient. A kernel that takes less than the peaks allow had its
data cached, or its FLOPs belong to another kernel: its roofline is invalid. Where FLOPs or bytes are unknown, the
category of the kernel decides, and the result says so.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int64Array

BOUNDS = ("compute", "bandwidth", "latency", "inefficient", "invalid")
COMPUTE, BANDWIDTH, LATENCY, INEFFICIENT, INVALID = range(len(BOUNDS))
NO_BOUND = -1

REASONS = ("", "alignment", "old-architecture", "small-grid", "tail-wave")
"""Why a kernel is inefficient; "" where nothing is known."""
NO_REASON, ALIGNMENT, OLD_ARCHITECTURE, SMALL_GRID, TAIL_WAVE = range(len(REASONS))

EFFICIENT_FRACTION = 0.5
"""A kernel that takes up to twice the best time is bound by the roof that sets the best time."""
PEAK_TOLERANCE = 1.05
"""Clocks run a little above the nominal ones, and timestamps are rounded: up to this much above a peak is plausible."""

SHORTEST_KERNEL_NS = 2_000
_LATENCY_BOUND_NS = 5_000
_SHORTEST_PERCENTILE = 5.0
_ENOUGH_KERNELS = 20
_SMALL_GRID_NS = 20_000
_MANY_WAVES = 4
_FULL_WAVE_FRACTION = 0.75


@frozen_dataclass(eq=False)
class RooflineTimes:
    """Times by the roofline of each distinct kind of launch; arrays of one length. In ns, NaN where unknown.

    Attributes:
        compute_ns: FLOPs over the attainable rate of the unit that is used.
        memory_ns: Bytes over the attainable bandwidth.
        peak_ns: The longer of both times at the peaks.
        compute_by_category: Where a time is unknown: whether compute is taken for the bound rather than bandwidth.
        reason: Index into REASONS of what the name or the shapes say, should the kind turn out inefficient.
        excluded: Communication, copies and sets: they have no bound.
    """

    compute_ns: FloatArray
    memory_ns: FloatArray
    peak_ns: FloatArray
    compute_by_category: BoolArray
    reason: Int8Array
    excluded: BoolArray

    def __len__(self) -> int:
        return len(self.compute_ns)

    @property
    def known(self) -> BoolArray:
        """For each kind whether both times are known."""
        result: BoolArray = ~(np.isnan(self.compute_ns) | np.isnan(self.memory_ns))
        return result


@frozen_dataclass(eq=False)
class KernelLaunches:
    """Launches of kernels; arrays of one length.

    Attributes:
        dur_ns: Duration.
        kind: Row of the launch's kind in RooflineTimes.
        cost_fraction: Which part of the kind's cost the launch has; NaN where unknown.
        blocks: Thread blocks of the grid; -1 where not recorded; None if nowhere.
        sm_count: Streaming multiprocessors of the device; None if unknown.
        latency_bound_ns: Kernels up to this long are bound by latency.
        shortest_kernel_ns: The shortest time of any kernel.
    """

    dur_ns: Int64Array
    kind: npt.NDArray[np.signedinteger[Any]]
    cost_fraction: FloatArray
    blocks: Int64Array | None = None
    sm_count: int | None = None
    latency_bound_ns: int = _LATENCY_BOUND_NS
    shortest_kernel_ns: int = SHORTEST_KERNEL_NS

    def __len__(self) -> int:
        return len(self.dur_ns)


@frozen_dataclass(eq=False)
class KernelBounds:
    """What bounds each launch; arrays of one length.

    Attributes:
        kind: Index into BOUNDS; -1 for what is not a kernel, and for communication.
        nearest_roof: COMPUTE or BANDWIDTH, whichever needs more time, whatever the kind; -1 as above.
        reason: Index into REASONS; only inefficient kernels have one, and not all of them.
        assumed: Whether the kind follows from the category alone, because FLOPs, bytes or rates are unknown.
    """

    kind: Int8Array
    nearest_roof: Int8Array
    reason: Int8Array
    assumed: BoolArray
    _times: RooflineTimes
    _launches: KernelLaunches

    def __len__(self) -> int:
        return len(self.kind)

    def match_rows(self, *kinds: str) -> BoolArray:
        """For each launch whether its kind is one of these."""
        result = np.zeros(len(self.kind), bool)
        for kind in kinds:
            result |= self.kind == BOUNDS.index(kind)
        return result

    @cached_property
    def roofline_ns(self) -> FloatArray:
        """The best time on this device with the unit that was used; NaN where FLOPs, bytes or rates are unknown."""
        return _roofline_ns(self._times, self._launches)

    @property
    def times_at_roofs(self) -> tuple[FloatArray, FloatArray]:
        """The times at the roof of compute, and at that of memory; NaN where FLOPs, bytes or rates are unknown."""
        kind, fraction = self._launches.kind, self._launches.cost_fraction
        known = np.where(self._times.known, 1.0, np.nan)
        return (self._times.compute_ns * known)[kind] * fraction, (self._times.memory_ns * known)[kind] * fraction

    @property
    def time_at_peak(self) -> FloatArray:
        """The longer of the times at the theoretical peaks of compute and of memory; NaN where neither is known."""
        result: FloatArray = self._times.peak_ns[self._launches.kind] * self._launches.cost_fraction
        return result

    @property
    def shortest_kernel_ns(self) -> int:
        """The shortest time of any kernel of the trace."""
        return self._launches.shortest_kernel_ns

    @property
    def short(self) -> BoolArray:
        """For each launch whether it is too short to be bound by a roof, unless its work says otherwise."""
        result: BoolArray = self._launches.dur_ns <= self._launches.latency_bound_ns
        return result

    @cached_property
    def leaves_gpu_empty(self) -> BoolArray:
        """For each launch whether its grid leaves most multiprocessors without a block; False where unknown."""
        blocks, sm_count = self._launches.blocks, self._launches.sm_count
        if blocks is None or not sm_count:
            return np.zeros(len(self), bool)
        result: BoolArray = (blocks > 0) & (2 * blocks < sm_count)
        return result

    @property
    def roof_share(self) -> FloatArray:
        """The share of the nearest roof that each launch reaches (1 at the roof); NaN where it is unknown.

        Other than `efficiency` it does not know that every kernel takes some time: a kernel of 3 us that moves nothing
        reaches 0.
        """
        share: FloatArray = np.fmax(*self.times_at_roofs) / np.maximum(self._launches.dur_ns, 1)
        return share

    @cached_property
    def efficiency(self) -> FloatArray:
        """`roofline_ns` over the duration; NaN where unknown."""
        result: FloatArray = self.roofline_ns / np.maximum(self._launches.dur_ns, 1)
        return result


def estimate_latency_limits(helper_dur_ns: Int64Array) -> tuple[int, int]:
    """Return the shortest time of a kernel, and the duration up to which a kernel is bound by latency.

    Both in ns: the first is the 5th percentile of enough kernels that multiply no matrices, unless the trace has no
    short ones at all (about 2 us on A100 and H100); the second is twice the first, and at least 5 us.
    """
    shortest = SHORTEST_KERNEL_NS
    if len(helper_dur_ns) >= _ENOUGH_KERNELS:
        position = int(len(helper_dur_ns) * _SHORTEST_PERCENTILE / 100)
        percentile = int(np.partition(helper_dur_ns, position)[position])
        shortest = percentile if 0 < percentile <= _LATENCY_BOUND_NS else shortest
    return shortest, max(_LATENCY_BOUND_NS, 2 * shortest)


def find_kernel_bounds(times: RooflineTimes, launches: KernelLaunches) -> KernelBounds:
    """Return what bounds each launch.

    Latency wins over invalid, invalid over inefficient; what is none of these is bound by its nearest roof. Comparisons
    with NaN are false: a launch of unknown cost is bound by the roof of its category.
    """
    known = times.known
    compute = np.where(known, times.compute_ns > times.memory_ns, times.compute_by_category)
    roof = np.where(times.excluded, NO_BOUND, np.where(compute, COMPUTE, BANDWIDTH)).astype(np.int8)[launches.kind]
    excluded = times.excluded[launches.kind]
    fraction, dur = launches.cost_fraction, launches.dur_ns
    with np.errstate(invalid="ignore"):
        inefficient = _roofline_ns(times, launches) < EFFICIENT_FRACTION * dur
        invalid = np.where(known, times.peak_ns, np.nan)[launches.kind] * fraction > PEAK_TOLERANCE * dur
    small_grid, tail_wave = _find_poor_grids(launches)
    latency = (dur <= launches.latency_bound_ns) | (small_grid & (dur < _SMALL_GRID_NS))
    kind = roof.copy()
    for rows, value in ((inefficient, INEFFICIENT), (invalid, INVALID), (latency, LATENCY), (excluded, NO_BOUND)):
        kind[rows] = value
    return KernelBounds(
        kind=kind,
        nearest_roof=roof,
        reason=_find_reasons(times, launches, kind, small_grid, tail_wave),
        assumed=~(known[launches.kind] & ~np.isnan(fraction)) & ~latency & ~excluded,
        _times=times,
        _launches=launches,
    )


def _roofline_ns(times: RooflineTimes, launches: KernelLaunches) -> FloatArray:
    """Return the best time of each launch; NaN where unknown."""
    longer = np.where(times.known, np.fmax(times.compute_ns, times.memory_ns), np.nan)
    best: FloatArray = longer[launches.kind]
    best *= launches.cost_fraction
    np.maximum(best, launches.shortest_kernel_ns, out=best)
    return best


def _find_reasons(
    times: RooflineTimes, launches: KernelLaunches, kind: Int8Array, small_grid: BoolArray, tail_wave: BoolArray
) -> Int8Array:
    """Return why inefficient launches might be so: what their name or shapes say wins over the grid."""
    reason = np.zeros(len(kind), np.int8)
    rows = np.flatnonzero(kind == INEFFICIENT)
    by_grid = np.where(small_grid[rows], SMALL_GRID, np.where(tail_wave[rows], TAIL_WAVE, NO_REASON))
    by_kind = times.reason[launches.kind[rows]]
    reason[rows] = np.where(by_kind != NO_REASON, by_kind, by_grid)
    return reason


def _find_poor_grids(launches: KernelLaunches) -> tuple[BoolArray, BoolArray]:
    """For each launch whether the grid leaves many multiprocessors without a block, and whether its last wave does.

    A grid that is a little smaller than the device counts as full: persistent kernels are launched so (140 blocks on
    the 148 multiprocessors of a B200, 128 on the 132 of an H100).
    """
    if launches.blocks is None or not launches.sm_count:
        none = np.zeros(len(launches), bool)
        return none, none
    waves = launches.blocks / launches.sm_count
    known = launches.blocks > 0
    small_grid = known & (waves < _FULL_WAVE_FRACTION)
    last_wave_is_poor = waves / np.maximum(np.ceil(waves), 1) < _FULL_WAVE_FRACTION
    return small_grid, known & (waves > 1) & (waves < _MANY_WAVES) & last_wave_is_poor
