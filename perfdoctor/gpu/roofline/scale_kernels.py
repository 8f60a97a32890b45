"""How many times as long a kernel takes on another device, by what comparable kernels attain there.

Comparable kernels attain a share of their roof that grows with its length (`efficiencies`), so that a faster device
gains less on a short kernel than its peaks promise, and nothing on one that takes the time of any launch. Time over
roof is a curve, by family and type: a kernel moves along it, and keeps some of its distance from it. Where its work is
unknown its roof is read from the curve, and which of its roofs binds follows from the FLOPs for each byte of its like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.gpu.devices import Device
from perfdoctor.gpu.roofline.efficiencies import ANY, SIZES, Cell, Efficiency, find_efficiency, name_generation
from perfdoctor.gpu.roofline.kernel_bounds import COMPUTE, SHORTEST_KERNEL_NS
from perfdoctor.trace.arrays import FloatArray

# The middles of the size classes (SIZE_LIMITS_NS), geometric; "tiny" is nearly all at the shortest time of a kernel.
_MIDDLES_NS = (SHORTEST_KERNEL_NS, 5_500.0, 22_000.0, 112_000.0)
_LONGEST_NS = 1e15
# Types that a device has no peak of run at best as these.
_NEXT_TYPE = {"fp4": "fp8", "int8": "fp8", "fp8": "fp16"}

_VECTOR_UNITS = ("fp32", "fp64")
_ELEMENT_BYTES = {"fp64": 8, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
# FLOPs for each element that is read or written, of recorded kernels by their time: quartiles.
_FLOPS_PER_ELEMENT = {
    "gemm": (100.0, 500.0, 1500.0),
    "convolution": (150.0, 600.0, 1000.0),
    "attention": (14.0, 120.0, 280.0),
}
# How much of its distance from its like (of the logarithm) a kernel keeps on another generation of devices: what fits
# 152 kinds of kernels best that were recorded on V100 and A100 (`benchmarks.expect`). On another unit it keeps nothing.
_CARRIED = 0.5
# Half of all kernels lie between the quartiles. Within twice their distance lie the sums of 26 of 34 recordings that
# were left out of the table, of 19 without it.
_USUAL = 2.0


class ScalingKernels(NamedTuple):
    """Some kernels of one family, type and unit; arrays of one length.

    Attributes:
        family: gemm, convolution, attention, or memory for what only moves data.
        operand: The operand type, such as "fp32" or "bf16"; "" where unknown.
        on_matrix_units: Whether they use Tensor Cores (matrix cores).
        dur_ns: Durations.
        flops: NaN where unknown.
        bytes: NaN where unknown.
        roof: COMPUTE or BANDWIDTH, what binds each; decides where FLOPs or bytes are unknown.
    """

    family: str
    operand: str
    on_matrix_units: bool
    dur_ns: FloatArray
    flops: FloatArray
    bytes: FloatArray
    roof: np.ndarray[tuple[int], np.dtype[np.int8]]


class Unit(NamedTuple):
    """The unit of a device on which kernels run: its name as in `Device.peaks_flops`, and its peak in FLOP/s."""

    name: str
    peak_flops: float


def scale_durations_to(
    there: Device, here: Device, kernels: ScalingKernels, table: Mapping[Cell, Efficiency] | None = None
) -> FloatArray:
    """How many times as long kernels take on another device, (n, 3): at best, as expected and at worst.

    NaN where a peak is unknown. Without a table of efficiencies it is the one that ships with the package.

    Args:
        there: The other device.
        here: The device on which they were recorded.
        kernels: The kernels.
        table: What comparable kernels attain.
    """
    now, then = unit_of(here, kernels.operand, kernels.on_matrix_units), unit_on(there, here, kernels)
    curves_here, curves_there = (
        _Curves(kernels.family, unit.name, device, table) for unit, device in ((now, here), (then, there))
    )
    by_work = _roof_ns(here, now, kernels)
    unknown = np.isnan(by_work)
    roof_ns = np.where(unknown, curves_here.find_roofs(kernels.dur_ns), by_work)
    low, middle, high = (
        np.where(kernels.roof == COMPUTE, ratio, _bandwidth(here) / _bandwidth(there))
        for ratio in _assume_roof_ratios(kernels, (here, now), (there, then))
    )
    roof_there_ns = np.where(unknown, roof_ns * middle, _roof_ns(there, then, kernels))
    now_ns = curves_here.times(roof_ns)
    times = np.stack([curves_there.times(roof_there_ns, quartile) for quartile in range(3)], axis=1)
    result: FloatArray = times / now_ns[:, None]
    result[unknown, 0] *= (curves_there.times(roof_ns * low) / curves_there.times(roof_there_ns))[unknown]
    result[unknown, 2] *= (curves_there.times(roof_ns * high) / curves_there.times(roof_there_ns))[unknown]
    keeps_all = unknown | ((roof_ns <= SHORTEST_KERNEL_NS) & (roof_there_ns <= SHORTEST_KERNEL_NS))
    share = np.where(keeps_all, 1.0, _carried_share(here, there) if now.name == then.name else 0.0)
    result *= ((np.maximum(kernels.dur_ns, 1) / now_ns) ** (share - 1))[:, None]
    return result


def compare_with_like(
    here: Device, kernels: ScalingKernels, table: Mapping[Cell, Efficiency] | None = None
) -> FloatArray:
    """How many times as long comparable kernels usually take on the same device, (n, 3): at best, the median, at worst.

    Twice the distance of the quartiles from the median, as the table has them of the device's own generation, else of
    any. NaN where the work is unknown.
    """
    unit = unit_of(here, kernels.operand, kernels.on_matrix_units)
    curves = _Curves(kernels.family, unit.name, here, table, generation_name(here))
    roof_ns = _roof_ns(here, unit, kernels)
    times = np.stack([curves.times(roof_ns, quartile) for quartile in range(3)], axis=1)
    median = times[:, 1:2]
    ratios: FloatArray = median * (times / median) ** _USUAL / np.maximum(kernels.dur_ns, 1)[:, None]
    return ratios


def generation_name(device: Device) -> str:
    """The generation of a device as the table of efficiencies names it."""
    return name_generation(device.compute_capability, device.gfx_arch)


def _carried_share(here: Device, there: Device) -> float:
    """Which share of a kernel's distance from its like it keeps on the other device: of the logarithm."""
    return 1.0 if generation_name(here) == generation_name(there) else _CARRIED


def _assume_roof_ratios(
    kernels: ScalingKernels, here: tuple[Device, Unit], there: tuple[Device, Unit]
) -> tuple[float, ...]:
    """How many times as long kernels of unknown work take at the roofs there, in rising order: by usual intensities."""

    def roof(device: Device, unit: Unit, intensity: float) -> float:
        return max(1 / unit.peak_flops, 1 / (intensity * _bandwidth(device)))

    size = _ELEMENT_BYTES.get(kernels.operand, 4)
    by_element = _FLOPS_PER_ELEMENT.get(kernels.family, (1.0, 1.0, 1.0))
    low, middle, high = (roof(*there, flops / size) / roof(*here, flops / size) for flops in by_element)
    return min(low, middle, high), middle, max(low, middle, high)


def unit_of(device: Device, operand: str, on_matrix_units: bool) -> Unit:
    """The unit that kernels of a type use, or what stands in for it on a device without one."""
    operand = operand or "fp32"
    while on_matrix_units and device.matrix_peak_flops(operand) is None and operand in _NEXT_TYPE:
        operand = _NEXT_TYPE[operand]
    peak = device.matrix_peak_flops(operand) if on_matrix_units else None
    if peak is not None:
        return Unit(device.matrix_peak_type(operand), peak)
    vector = "fp64" if operand == "fp64" else "fp32"
    peak = device.vector_peak_flops(operand) if operand in ("fp16", "fp32", "fp64") else device.peak_flops(vector)
    return Unit(vector, peak or np.nan)


def unit_on(there: Device, here: Device, kernels: ScalingKernels) -> Unit:
    """The unit that the kernels of a program use on another device, by the defaults of PyTorch.

    Products in float32 stay on CUDA cores and convolutions use TF32 where a device has it (`torch.backends`); AMD's
    libraries compute both on matrix cores. A program that was recorded on a device with TF32 has chosen already.
    """
    on_matrix = kernels.on_matrix_units
    if kernels.operand == "fp32" and kernels.family != "memory":
        if there.vendor == "amd":
            on_matrix = True
        elif here.peak_flops("tf32") is None:
            on_matrix = kernels.family == "convolution"
    return unit_of(there, kernels.operand, on_matrix)


def gains_matrix_units(there: Device, here: Device, kernels: ScalingKernels) -> int:
    """1 where kernels move from vector to matrix units on another device, -1 where they move the other way, else 0."""
    now, then = unit_of(here, kernels.operand, kernels.on_matrix_units), unit_on(there, here, kernels)
    return int(now.name in _VECTOR_UNITS) - int(then.name in _VECTOR_UNITS)


def _roof_ns(device: Device, unit: Unit, kernels: ScalingKernels) -> FloatArray:
    """The time of each kernel at the peaks; NaN where its work is unknown. What only moves data needs no FLOPs."""
    memory_ns = kernels.bytes / _bandwidth(device) * 1e9
    if kernels.family == "memory":
        return memory_ns
    result: FloatArray = np.maximum(kernels.flops / unit.peak_flops * 1e9, memory_ns)
    return result


def _bandwidth(device: Device) -> float:
    return device.memory_bandwidth_bytes_per_s or np.nan


class _Curves:
    """The time that comparable kernels take over the time at their roof: the lower quartile, the median, the upper.

    No kernel that is longer at the roof takes less time.
    """

    def __init__(
        self, family: str, unit: str, device: Device, table: Mapping[Cell, Efficiency] | None, generation: str = ANY
    ) -> None:
        dtype = ANY if family == "memory" else unit
        is_memory = family == "memory"
        most = (device.achievable_bandwidth_fraction if is_memory else device.achievable_gemm_fraction) or 1.0
        cells = [find_efficiency(Cell(family, dtype, size, generation), table) for size in SIZES]
        shares = np.array([each or (np.nan,) * 3 for each in cells], np.float64)
        shares = np.minimum(shares[:, ::-1], most)  # the fastest first
        middles = np.array(_MIDDLES_NS)
        times = np.maximum.accumulate(middles[:, None] / shares, axis=0)
        self._roofs = np.log([*middles, _LONGEST_NS])
        self._times = np.log(np.vstack((times, times[-1] * _LONGEST_NS / middles[-1])))

    def times(self, roof_ns: FloatArray, quartile: int = 1) -> FloatArray:
        """The time of kernels by their roofs, in ns; `quartile` 0 is the fastest."""
        result: FloatArray = np.exp(np.interp(np.log(np.maximum(roof_ns, 1)), self._roofs, self._times[:, quartile]))
        return result

    def find_roofs(self, dur_ns: FloatArray) -> FloatArray:
        """The roofs of kernels by their time, in ns, if they are like their like."""
        result: FloatArray = np.exp(np.interp(np.log(np.maximum(dur_ns, 1)), self._times[:, 1], self._roofs))
        return result
