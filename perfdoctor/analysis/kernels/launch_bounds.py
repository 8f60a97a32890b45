"""What bounds each kernel of a trace, and how fast those move their data that memory bounds."""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.analysis.kernels.hardware import Hardware
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.analysis.kernels.tensor_core_verdicts import NA, NO, VERDICTS, YES, TensorCoreVerdicts
from perfdoctor.gpu import Device, KernelClass
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.operand_types import elements_per_access
from perfdoctor.gpu.roofline.kernel_bounds import (
    ALIGNMENT,
    BANDWIDTH,
    NO_REASON,
    OLD_ARCHITECTURE,
    KernelBounds,
    KernelLaunches,
    RooflineTimes,
    estimate_latency_limits,
    find_kernel_bounds,
)
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int64Array

COVERAGE = 0.9
"""The bandwidth of the whole step is given only if bytes are known for this share of the kernel time concerned."""

_SM = re.compile(r"sm(\d{2,3})\Z")
_HOPPER = (9, 0)
_PRODUCTS_OF_3XTF32 = 3.0  # float32 attention as three TF32 products


def launch_bounds_of(
    classes: KernelClasses, costs: KernelCosts, verdicts: TensorCoreVerdicts, hardware: Hardware
) -> KernelBounds:
    """What bounds each GPU item of a trace; copies, sets and communication have no bound."""
    gpu, device, kinds = classes.trace.gpu, hardware.device, costs.kinds
    attainable, peak = _rates(classes, costs, verdicts, device)
    bandwidth = (device.attainable_bandwidth_bytes_per_s if device else None) or np.nan
    peak_bandwidth = (device.memory_bandwidth_bytes_per_s if device else None) or np.nan
    kernel = classes.match_names(lambda k: k.category != "communication")
    helper = kernel & classes.match_names(lambda k: k.tensor_core == "na")
    shortest_ns, latency_bound_ns = estimate_latency_limits(gpu.dur_ns[helper[gpu.name]])
    ceilings = RooflineTimes(
        compute_ns=kinds.flops / attainable * 1e9,
        memory_ns=kinds.bytes / bandwidth * 1e9,
        peak_ns=np.fmax(kinds.flops / peak, kinds.bytes / peak_bandwidth) * 1e9,
        compute_by_category=classes.match_names(_is_dominated_by_maths)[kinds.name],
        reason=_slow_reasons(classes, costs, hardware),
        excluded=~kernel[kinds.name],
    )
    launches = KernelLaunches(
        dur_ns=gpu.dur_ns,
        kind=costs.kind,
        cost_fraction=costs.cost_fraction,
        blocks=gpu.blocks,
        sm_count=hardware.sm_count,
        latency_bound_ns=latency_bound_ns,
        shortest_kernel_ns=shortest_ns,
    )
    return find_kernel_bounds(ceilings, launches)


def _is_dominated_by_maths(kernel: KernelClass) -> bool:
    """Whether compute is taken to bound a kernel whose FLOPs are unknown."""
    return kernel.category in MATRIX_CATEGORIES and kernel.tensor_core != "na" and not kernel.streams_weights


def _rates(
    classes: KernelClasses, costs: KernelCosts, verdicts: TensorCoreVerdicts, device: Device | None
) -> tuple[FloatArray, FloatArray]:
    """For each kind of item the FLOP/s attainable, and at the peak, of the unit that it uses; NaN where unknown."""
    operands, kinds = verdicts.operands, costs.kinds
    tables = np.full((2, len(VERDICTS), len(operands)), np.nan)  # attainable and peak, by verdict and operand
    if device is not None:
        for i, operand in enumerate(operands):
            tables[:, YES, i], tables[:, NO, i] = _unit_rates(device, operand)
    verdict = np.full(len(kinds), NA, np.int8)
    verdict[costs.kind] = verdicts.tensor_core  # one kind, one verdict, but for launches that contradict their name
    products = np.ones(len(classes.trace.strings))
    products[classes.match_names(lambda k: k.instruction == "3xTF32")] = _PRODUCTS_OF_3XTF32
    rates = tables[:, verdict, verdicts.operand] / products[kinds.name]
    # Ops that only move data do a few operations an element: compute never bounds them.
    rates[:, costs.match_kinds("memory")] = np.inf
    return rates[0], rates[1]


def _unit_rates(device: Device, operand: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """(attainable, peak) of the matrix unit, and of the vector unit, for an operand type."""
    matrix_type = device.matrix_peak_type(operand)
    vector_type = "fp64" if operand == "fp64" else "fp32"
    matrix = device.attainable_flops(matrix_type), device.matrix_peak_flops(operand)
    vector = device.attainable_flops(vector_type), device.vector_peak_flops(operand)
    if not operand:
        matrix = vector = (None, None)
    return (matrix[0] or np.nan, matrix[1] or np.nan), (vector[0] or np.nan, vector[1] or np.nan)


def _slow_reasons(classes: KernelClasses, costs: KernelCosts, hardware: Hardware) -> Int8Array:
    """For each kind of item why it might be slow, by its name or shapes: an index into REASONS."""
    capability = hardware.device.compute_capability if hardware.device else hardware.capability
    hopper = capability is not None and capability >= _HOPPER and hardware.vendor != "amd"
    table = np.full(len(classes.trace.strings), NO_REASON, np.int8)
    for name, kernel in classes.by_name.items():
        if kernel.slow_path:
            table[name] = ALIGNMENT
        elif hopper and kernel.tensor_core == "yes":
            arch = _SM.match(kernel.arch or "")
            if arch is not None and int(arch[1]) < 10 * _HOPPER[0]:
                table[name] = OLD_ARCHITECTURE
    reason = table[costs.kinds.name]
    # Where the name has no alignment tag (AMD, nvjet), the dimensions that are contiguous in memory decide.
    untagged = classes.match_names(lambda k: k.alignment is None and k.tensor_core == "yes")[costs.kinds.name]
    misaligned = costs.match_op_costs(lambda c: _is_misaligned(c.n, c.k, c.dtype))[costs.kinds.op_cost]
    reason[misaligned & untagged] = ALIGNMENT
    return reason


def _is_misaligned(n: int | None, k: int | None, dtype: str) -> bool:
    """Whether a contiguous dimension of a product is no multiple of the elements that a Tensor Core kernel loads."""
    elements = elements_per_access(dtype)
    return n is not None and k is not None and elements is not None and (n % elements != 0 or k % elements != 0)


def achieved_bytes_per_s(
    dur_ns: Int64Array, costs: KernelCosts, roof_classes: Int8Array, in_window: BoolArray
) -> float | None:
    """Compulsory bytes over time of the kernels in the window that memory bounds: how fast they move their data.

    None if the bytes of a tenth of their time or more are unknown, or there are none.
    """
    moving = (roof_classes == BANDWIDTH) & in_window
    known = moving & ~np.isnan(costs.bytes)
    time_ns = int(dur_ns[known].sum())
    if not time_ns or time_ns < COVERAGE * int(dur_ns[moving].sum()):
        return None
    return float(costs.bytes[known].sum() / time_ns * 1e9)
