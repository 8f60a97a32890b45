"""How long kernels take after a fix: at worst, as expected and at best, by what comparable kernels reach.

A roofline says what no kernel can beat. What kernels do reach is in a table (`gpu.roofline.efficiencies`): the lower
quartile, the median and the upper quartile of recorded kernels of the same family, type, size and generation. A kernel
that reaches less than its like today (a small grid, a GPU whose clocks are throttled) is expected to do so after the
fix, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.tensor_core_verdicts import NO, VERDICTS, YES
from perfdoctor.analysis.queries import GpuQuery
from perfdoctor.gpu import Device
from perfdoctor.gpu.roofline.efficiencies import ANY, KernelFamily, efficiencies_of, name_generation
from perfdoctor.gpu.roofline.kernel_bounds import SHORTEST_KERNEL_NS
from perfdoctor.rank import Rank
from perfdoctor.rules.matrix_kernels import Remedy
from perfdoctor.savings.edits import Edit, scale_durations, set_duration_range
from perfdoctor.savings.saving import Saving
from perfdoctor.trace.arrays import FloatArray, Int64Array
from perfdoctor.trace.tables.rows import GpuRows

# Where less of the kernels' time is known, the rest may decide: a bound is given then, without a middle.
_MIN_KNOWN_SHARE = 0.5

TRIPLE_TF32 = "3xtf32"
"""The unit of fused attention in float32: three products in TF32 for each."""


class KernelRoofs(NamedTuple):
    """The times of kernels at the peaks of the device; arrays of one length.

    Attributes:
        roof_ns: The longest of FLOPs over the peak of the unit, bytes over the peak bandwidth, and the shortest time of
            any kernel; NaN where unknown.
        unit: Index into `units`.
        units: Types as in `Device.peaks_flops`; "" for none known.
    """

    roof_ns: FloatArray
    unit: Int64Array
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DurationRange:
    """How long each of some kernels takes now and after a fix, in ns; arrays of one length.

    Attributes:
        now_ns: The recorded durations.
        slowest_ns: At worst: the lower quartile of comparable kernels; as now where the work is unknown.
        expected_ns: The median of comparable kernels; where the work is unknown, the share of the others.
        fastest_ns: At best: the upper quartile; what the fix allows at most where the work is unknown.
        known_share: The share of the time of kernels whose work is known.
    """

    now_ns: FloatArray
    slowest_ns: FloatArray
    expected_ns: FloatArray
    fastest_ns: FloatArray
    known_share: float

    def at_best(self, other: DurationRange) -> DurationRange:
        """The same range down to what another fix reaches at best."""
        return replace(self, fastest_ns=np.minimum(self.fastest_ns, other.fastest_ns))

    @property
    def has_middle(self) -> bool:
        """Whether enough is known to say what is expected."""
        return self.known_share >= _MIN_KNOWN_SHARE

    @property
    def saved_shares(self) -> tuple[float, float, float]:
        """The shares (0 to 1) of the kernels' time that the fix saves at least, as expected and at most."""
        now_ns = max(float(self.now_ns.sum()), 1.0)
        after = (self.slowest_ns, self.expected_ns, self.fastest_ns)
        least, expected, most = (float(np.maximum(self.now_ns - ns, 0).sum()) / now_ns for ns in after)
        return least, expected, most

    def saving(self, cost_ns: int) -> Saving:
        """What the fix saves of `cost_ns`, which is the time of the kernels of a step."""
        least, expected, most = (round(cost_ns * share) for share in self.saved_shares)
        return Saving(least, expected, most, "bounded") if self.has_middle else Saving(0, None, most, "bounded")

    def edit(self, rows: GpuRows) -> Edit:
        """The fix as an edit of these rows; an upper bound where too little is known of them."""
        if self.has_middle:
            return set_duration_range(rows, self.slowest_ns, self.expected_ns, self.fastest_ns)
        return scale_durations(rows, self.saved_shares[2])


def find_roofs(rank: Rank, kernels: GpuQuery) -> KernelRoofs:
    """The times of some kernels at the peaks of the units that they use now."""
    device, costs, verdicts, rows = rank.device, rank.kernel_costs, rank.verdicts, kernels.mask
    operand, verdict = verdicts.operand[costs.kind[rows]], verdicts.tensor_core[rows]
    if device is None:
        return KernelRoofs(np.full(len(operand), np.nan), np.zeros(len(operand), np.int64), ("",))
    units = ["", "fp32", "fp64", TRIPLE_TF32, *(device.matrix_peak_type(name) for name in verdicts.operands)]
    unit = np.zeros((len(VERDICTS), len(verdicts.operands)), np.int64)
    rates = np.full(unit.shape, np.nan)
    for i, name in enumerate(verdicts.operands):
        if name:
            unit[YES, i], unit[NO, i] = 4 + i, 2 if name == "fp64" else 1
            rates[YES, i], rates[NO, i] = peak_rate(device, units[4 + i]), device.vector_peak_flops(name) or np.nan
    triple = rank.kernel_classes.match_rows(lambda k: k.instruction == "3xTF32")[rows]
    rate = np.where(triple, peak_rate(device, TRIPLE_TF32), rates[verdict, operand])
    roof_ns = roof_times_ns(rank, kernels, rate, bytes_ratio=1.0)
    return KernelRoofs(roof_ns, np.where(triple, 3, unit[verdict, operand]), tuple(units))


def apply_remedy(rank: Rank, kernels: GpuQuery, family: KernelFamily, remedy: Remedy) -> DurationRange:
    """How long kernels take by a remedy: on Tensor Cores, in their own type or in another."""
    device, dtype = rank.device, remedy.peak_type
    rate = peak_rate(device, dtype) if device and dtype else np.nan
    roof_ns = roof_times_ns(rank, kernels, np.full(len(kernels), rate), remedy.bytes_ratio)
    return _durations(rank, kernels, (family, dtype or ANY), roof_ns, find_roofs(rank, kernels), remedy.best_share)


def reach_quartiles(
    rank: Rank, kernels: GpuQuery, family: KernelFamily, dtype: str, roof_ns: FloatArray, best_ns: FloatArray
) -> DurationRange:
    """How long kernels take once they reach what comparable kernels reach.

    Args:
        rank: The rank.
        kernels: The kernels.
        family: What they compute.
        dtype: The type that they are to use, a key of `Device.peaks_flops`.
        roof_ns: Their times at the peaks; NaN where the work is unknown.
        best_ns: The least that they take where the work is unknown.
    """
    now_ns = np.maximum(rank.trace.gpu.dur_ns[kernels.mask], 1)
    return _durations(rank, kernels, (family, dtype), roof_ns, None, best_ns / now_ns)


def _durations(
    rank: Rank,
    kernels: GpuQuery,
    cell: tuple[KernelFamily, str],
    roof_ns: FloatArray,
    present: KernelRoofs | None,
    best_share: float | FloatArray,
) -> DurationRange:
    """Durations by the roofs and the table; with the roofs at `present` the kernels' own efficiency carries over."""
    family, dtype = cell
    now_ns = rank.trace.gpu.dur_ns[kernels.mask].astype(np.float64)
    generation = generation_of(rank)
    low, expected, high = efficiencies_of(family, dtype, roof_ns, generation).T
    own = np.ones(len(now_ns)) if present is None else _own_fraction(now_ns, family, present, generation)
    known = ~np.isnan(roof_ns / expected)
    known_share = float(now_ns[known].sum() / max(now_ns.sum(), 1))
    slowest_ns, expected_ns, fastest_ns = (
        np.clip(roof_ns / efficiency, SHORTEST_KERNEL_NS, np.maximum(now_ns, SHORTEST_KERNEL_NS))
        for efficiency in (low * own, expected * own, high)
    )
    share = float(expected_ns[known].sum() / max(now_ns[known].sum(), 1))
    return DurationRange(
        now_ns,
        np.where(known, np.minimum(slowest_ns, now_ns), now_ns),
        np.where(known, np.minimum(expected_ns, now_ns), np.maximum(share, best_share) * now_ns),
        np.where(known, np.minimum(fastest_ns, now_ns), best_share * now_ns),
        known_share,
    )


def _own_fraction(now_ns: FloatArray, family: KernelFamily, present: KernelRoofs, generation: str) -> FloatArray:
    """What each kernel reaches now over what comparable kernels reach, at most 1; 1 where that is unknown."""
    fraction = np.ones(len(now_ns))
    for code in np.flatnonzero(np.bincount(present.unit)).tolist():
        at = present.unit == code
        usual = efficiencies_of(family, present.units[code], present.roof_ns[at], generation)[:, 1]
        fraction[at] = present.roof_ns[at] / now_ns[at] / usual
    result: FloatArray = np.where(np.isnan(fraction), 1.0, np.minimum(fraction, 1.0))
    return result


def efficiencies_on(rank: Rank, family: KernelFamily, dtype: str, roof_ns: FloatArray) -> FloatArray:
    """What comparable kernels reach on the rank's device, (n, 3): low, expected and high; NaN where unknown."""
    return efficiencies_of(family, dtype, roof_ns, generation_of(rank))


def generation_of(rank: Rank) -> str:
    """The generation of the rank's device, as the table of efficiencies names it."""
    device = rank.device
    capability = device.compute_capability if device else rank.hardware.capability
    return name_generation(capability, device.gfx_arch if device else None)


def peak_rate(device: Device, dtype: str) -> float:
    """The peak of a unit in FLOP/s, or what was measured where the table has none; NaN where neither is known."""
    if dtype == TRIPLE_TF32:
        return peak_rate(device, "tf32") / 3
    return device.peak_flops(dtype) or device.measured_flops.get(dtype) or float("nan")


def roof_times_ns(rank: Rank, kernels: GpuQuery, rates: FloatArray, bytes_ratio: float) -> FloatArray:
    """The longest of FLOPs over these rates, bytes over the peak bandwidth, and the shortest time of any kernel.

    NaN where unknown.
    """
    device, costs, rows = rank.device, rank.kernel_costs, kernels.mask
    bandwidth = (device.memory_bandwidth_bytes_per_s if device else None) or np.nan
    maths_s, memory_s = costs.flops[rows] / rates, costs.bytes[rows] * bytes_ratio / bandwidth
    return at_least_shortest(np.maximum(maths_s, memory_s) * 1e9)


def at_least_shortest(roof_ns: FloatArray) -> FloatArray:
    """These times, but none under the shortest time of any kernel; NaN stays."""
    result: FloatArray = np.maximum(roof_ns, SHORTEST_KERNEL_NS)
    return result
