"""How long kernels take after a fix: at worst, as expected and at best, by what comparable kernels reach.

A roofline says what no kernel can beat. What kernels do reach is in a table (`gpu.roofline.efficiencies`): the lower
quartile, the median and the upper quartile of recorded kernels of the same family, type, size and generation. A kernel
that reaches less than its like today (a small grid, a GPU whose clocks are throttled) is expected to do so after the
fix, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._matrix_remedies import Remedy
from perfdoctor.rules import (
    ANY_KERNEL,
    SHORTEST_KERNEL_NS,
    VERDICTS,
    Device,
    Edit,
    FloatArray,
    GpuQuery,
    GpuRows,
    Int64Array,
    KernelFamily,
    Rank,
    Saving,
    efficiencies_of,
    frozen_dataclass,
    name_generation,
    scale_durations,
    set_duration_range,
)

_YES, _NO = VERDICTS.index("yes"), VERDICTS.index("no")
# Where less of the kernels' time is known, the rest may decide: a bound is given then, without a middle.
_MIN_KNOWN_SHARE = 0.5

TRIPLE_TF32 = "3xtf32"
"""The unit of fused attention in float32: three products in TF32 for each."""
_BYTES_RATIO = 0.5


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


@frozen_dataclass(eq=False)
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

    def with_helpers(self, helpers_ns: FloatArray) -> DurationRange:
        """The same range with kernels that help these: as long as now at worst, else as much less as these."""
        _, expected, high = self.saved_shares
        now, slowest, middle, fastest = (
            np.concatenate((own_ns, (1 - share) * helpers_ns))
            for own_ns, share in (
                (self.now_ns, 0.0),
                (self.slowest_ns, 0.0),
                (self.expected_ns, expected),
                (self.fastest_ns, high),
            )
        )
        return DurationRange(now, slowest, middle, fastest, self.known_share)

    @property
    def has_middle(self) -> bool:
        """Whether enough is known to say what is expected."""
        return self.known_share >= _MIN_KNOWN_SHARE

    @property
    def saved_shares(self) -> tuple[float, float, float]:
        """The shares (0 to 1) of the kernels' time that the fix saves at least, as expected and at most."""
        now_ns = max(float(self.now_ns.sum()), 1.0)
        after = (self.slowest_ns, self.expected_ns, self.fastest_ns)
        low, expected, high = (float(np.maximum(self.now_ns - ns, 0).sum()) / now_ns for ns in after)
        return low, expected, high

    def saving(self, cost_ns: int) -> Saving:
        """What the fix saves of `cost_ns`, which is the time of the kernels of a step."""
        low, expected, high = (round(cost_ns * share) for share in self.saved_shares)
        return Saving(low, expected, high, "bounded") if self.has_middle else Saving(0, None, high, "bounded")

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
            unit[_YES, i], unit[_NO, i] = 4 + i, 2 if name == "fp64" else 1
            rates[_YES, i], rates[_NO, i] = peak_rate(device, units[4 + i]), device.vector_peak_flops(name) or np.nan
    triple = rank.kernel_classes.match_rows(lambda k: k.instruction == "3xTF32")[rows]
    rate = np.where(triple, peak_rate(device, TRIPLE_TF32), rates[verdict, operand])
    roof_ns = roof_times_ns(rank, kernels, rate, bytes_ratio=1.0)
    return KernelRoofs(roof_ns, np.where(triple, 3, unit[verdict, operand]), tuple(units))


def apply_remedy(rank: Rank, kernels: GpuQuery, family: KernelFamily, remedy: Remedy) -> DurationRange:
    """How long kernels take by a remedy: on Tensor Cores, in their own type or in another.

    A kernel that reaches less than its like now is expected to do so by the remedy; at best it catches up.
    """
    device, dtype = rank.device, remedy.peak_type
    rate = peak_rate(device, dtype) if device and dtype else np.nan
    roof_ns = roof_times_ns(rank, kernels, np.full(len(kernels), rate), remedy.bytes_ratio)
    now, now_ns = find_roofs(rank, kernels), rank.trace.gpu.dur_ns[kernels.mask]
    usual = _usual_efficiencies(rank, family, now)[:, 1]
    fraction = np.fmin(now.roof_ns / np.maximum(now_ns, 1) / usual, 1.0)  # 1 where it is unknown
    efficiency = efficiencies_on(rank, family, dtype or ANY_KERNEL, roof_ns)
    efficiency[:, :2] *= fraction[:, None]
    return _durations(rank, kernels, roof_ns, efficiency, np.full(len(kernels), remedy.best_share))


def catch_up(rank: Rank, kernels: GpuQuery, family: KernelFamily, best_share: FloatArray) -> DurationRange:
    """How long kernels take once they reach what comparable kernels of their own type reach.

    `best_share` is for each the share of its present time that it takes at best where its work is unknown.
    """
    now = find_roofs(rank, kernels)
    return _durations(rank, kernels, now.roof_ns, _usual_efficiencies(rank, family, now), best_share)


def _durations(
    rank: Rank, kernels: GpuQuery, roof_ns: FloatArray, efficiency: FloatArray, best_share: FloatArray
) -> DurationRange:
    """Durations by roofs and efficiencies (n, 3); where they are unknown at best a share of the present durations."""
    now_ns = rank.trace.gpu.dur_ns[kernels.mask].astype(np.float64)
    slowest_ns, expected_ns, fastest_ns = np.minimum(roof_ns / efficiency.T, now_ns)
    known = ~np.isnan(expected_ns)
    share = float(expected_ns[known].sum() / max(now_ns[known].sum(), 1))
    return DurationRange(
        now_ns,
        np.where(known, slowest_ns, now_ns),
        np.where(known, expected_ns, np.maximum(share, best_share) * now_ns),
        np.where(known, fastest_ns, best_share * now_ns),
        float(now_ns[known].sum() / max(now_ns.sum(), 1)),
    )


def _usual_efficiencies(rank: Rank, family: KernelFamily, roofs: KernelRoofs) -> FloatArray:
    """What comparable kernels of the same units reach, (n, 3); NaN where unknown."""
    result = np.full((len(roofs.roof_ns), 3), np.nan)
    for code in np.flatnonzero(np.bincount(roofs.unit)).tolist():
        at = roofs.unit == code
        result[at] = efficiencies_on(rank, family, roofs.units[code], roofs.roof_ns[at])
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
    return clamp_to_shortest_kernel(np.maximum(maths_s, memory_s) * 1e9)


def clamp_to_shortest_kernel(roof_ns: FloatArray) -> FloatArray:
    """These times, but none under the shortest time of any kernel; NaN stays."""
    result: FloatArray = np.maximum(roof_ns, SHORTEST_KERNEL_NS)
    return result


def find_float32_traffic(rank: Rank) -> GpuQuery:
    """The kernels of the window that only move float32, and are long enough to be bound by that."""
    costs = rank.kernel_costs
    on_float32 = costs.match_op_costs(lambda cost: cost.kind == "memory" and cost.dtype == "fp32")[costs.op_cost]
    is_bound = costs.is_main_kernel & on_float32 & ~rank.bounds.match_rows("latency", "invalid")
    return rank.kernels.where(rank.in_window & is_bound)


def halve_traffic(rank: Rank, kernels: GpuQuery) -> DurationRange:
    """How long such kernels take on half as many bytes: at best half as long.

    Shorter kernels reach less of the bandwidth, and one that reaches less than its like today will then, too.
    """
    no_maths = np.full(len(kernels), np.inf)
    now_ns = np.maximum(rank.trace.gpu.dur_ns[kernels.mask].astype(np.float64), 1)
    roof_ns = roof_times_ns(rank, kernels, no_maths, 1.0)
    half_roof_ns = roof_times_ns(rank, kernels, no_maths, _BYTES_RATIO)
    fraction = np.fmin(roof_ns / now_ns / efficiencies_on(rank, "memory", ANY_KERNEL, roof_ns)[:, 1], 1.0)
    low, expected, _ = efficiencies_on(rank, "memory", ANY_KERNEL, half_roof_ns).T
    best_ns = now_ns * _BYTES_RATIO
    known = ~np.isnan(half_roof_ns / expected)
    slowest_ns, expected_ns = (
        np.where(known, np.clip(half_roof_ns / (share * fraction), best_ns, now_ns), now_ns)
        for share in (low, expected)
    )
    return DurationRange(
        now_ns, slowest_ns, expected_ns, best_ns, known_share=float(now_ns[known].sum() / max(now_ns.sum(), 1))
    )
