"""What bounds each kernel of a rank, and how near the step comes to the device's peaks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from perfdoctor.analysis.kernels.kernel_costs import Work, names_where
from perfdoctor.analysis.kernels.tensor_core_verdicts import MATRIX_CATEGORIES, NA, NO, VERDICTS, YES, Verdicts
from perfdoctor.gpu import Device, KernelClass
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
from perfdoctor.trace.arrays import FloatArray, Int8Array

if TYPE_CHECKING:
    from perfdoctor.rank import Rank


COVERAGE = 0.9
"""A rate for the whole step is given only if the work of so much of the kernel time concerned is known."""

_SM = re.compile(r"sm(\d{2,3})\Z")
_HOPPER = (9, 0)
_TRIPLE = 3.0  # float32 attention as three TF32 products


def bounds_of(run: Rank, work: Work, verdicts: Verdicts) -> KernelBounds:
    """What bounds each GPU item; copies, sets and communication have no bound."""
    trace, device, items = run.trace, run.device, work.items
    gpu = trace.gpu
    attainable, peak = _rates(run, work, verdicts)
    bandwidth = (device.attainable_bandwidth_bytes_per_s if device else None) or np.nan
    peak_bandwidth = (device.memory_bandwidth_bytes_per_s if device else None) or np.nan
    kernel = names_where(run, lambda k: k.category != "communication")
    helper = kernel & names_where(run, lambda k: k.tensor_core == "na")
    shortest_kernel_ns, latency_bound_ns = estimate_latency_limits(gpu.dur_ns[helper[gpu.name]])
    times = RooflineTimes(
        compute_ns=items.flops / attainable * 1e9,
        memory_ns=items.bytes / bandwidth * 1e9,
        peak_ns=np.fmax(items.flops / peak, items.bytes / peak_bandwidth) * 1e9,
        compute_by_category=names_where(run, _computes)[items.name],
        reason=_reasons(run, work),
        excluded=~kernel[items.name],
    )
    launches = KernelLaunches(
        dur_ns=gpu.dur_ns,
        kind=work.item,
        cost_fraction=work.share,
        blocks=gpu.blocks,
        sm_count=run.raw_trace.device.sm_count or (device.sm_count if device else None),
        latency_bound_ns=latency_bound_ns,
        shortest_kernel_ns=shortest_kernel_ns,
    )
    return find_kernel_bounds(times, launches)


def _computes(kernel: KernelClass) -> bool:
    return kernel.category in MATRIX_CATEGORIES and kernel.tensor_core != "na" and not kernel.gemv_like


def _rates(run: Rank, work: Work, verdicts: Verdicts) -> tuple[FloatArray, FloatArray]:
    """FLOP/s attainable, and at the peak, on the unit that each item uses; NaN where unknown."""
    device, operands, items = run.device, verdicts.operands, work.items
    tables = np.full((2, len(VERDICTS), len(operands)), np.nan)  # attainable and peak, by verdict and operand
    if device is not None:
        for i, operand in enumerate(operands):
            tables[:, YES, i], tables[:, NO, i] = _unit_rates(device, operand)
    verdict = np.full(len(items), NA, np.int8)
    verdict[work.item] = verdicts.tensor_core  # one item, one verdict, but for launches that contradict their name
    triple = np.ones(len(run.trace.strings))
    triple[names_where(run, lambda k: k.instruction == "3xTF32")] = _TRIPLE
    rates = tables[:, verdict, verdicts.operand] / triple[items.name]
    # What only moves data does a few operations an element: maths is never its limit.
    rates[:, work.kinds("memory")] = np.inf
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


def _reasons(run: Rank, work: Work) -> Int8Array:
    """What a kernel's name or shapes tell about why it might be slow."""
    capability = run.device.compute_capability if run.device else run.raw_trace.device.capability
    hopper = capability is not None and capability >= _HOPPER and run.raw_trace.vendor != "amd"
    table = np.full(len(run.trace.strings), NO_REASON, np.int8)
    for code, kernel in run.kernel_classes.items():
        if kernel.slow_path:
            table[code] = ALIGNMENT
        elif hopper and kernel.tensor_core == "yes":
            arch = _SM.match(kernel.arch or "")
            if arch is not None and int(arch[1]) < 10 * _HOPPER[0]:
                table[code] = OLD_ARCHITECTURE
    reason = table[work.items.name]
    # Where no tag tells (AMD, nvjet), the dimensions that lie contiguous in memory do.
    untagged = names_where(run, lambda k: k.alignment is None and k.tensor_core == "yes")[work.items.name]
    odd = np.array([*(_misaligned(c.n, c.k, c.dtype) for c in work.costs), False], bool)[work.items.cost]
    reason[odd & untagged] = ALIGNMENT
    return reason


def _misaligned(n: int | None, k: int | None, dtype: str) -> bool:
    elements = elements_per_access(dtype)
    return n is not None and k is not None and elements is not None and (n % elements != 0 or k % elements != 0)


def model_flops_utilization(run: Rank) -> float | None:
    """FLOPs of products, convolutions and attention in the window, over what the units they ran on could do in it.

    Recomputed work counts too (some call this HFU). Each launch is compared with the peak of its own unit and operand
    type, so that a step in several types gets one number.

    Returns:
        A share from 0 to 1; None if FLOPs or peaks of a tenth or more of that kernel time are unknown.
    """
    _, peak = _rates(run, run.work, run.verdicts)
    at_peak_ns = run.work.items.flops / peak * 1e9
    work, dur_ns = run.work, run.trace.gpu.dur_ns
    matrix = names_where(run, lambda k: k.category in MATRIX_CATEGORIES and k.tensor_core != "na")
    rows = np.flatnonzero(matrix[run.trace.gpu.name] & run.in_window)
    counted = np.where(work.kinds(*MATRIX_CATEGORIES), at_peak_ns, np.nan)[work.item[rows]] * work.share[rows]
    known = ~np.isnan(counted) & ~run.verdicts.impossible[rows]
    whole = int(dur_ns[rows].sum())
    if not whole or not run.window_ns or dur_ns[rows[known]].sum() < COVERAGE * whole:
        return None
    return float(counted[known].sum() / run.window_ns)


def achieved_bytes_per_s(run: Rank) -> float | None:
    """Compulsory bytes over time of the kernels in the window that memory bounds: how fast they move their data.

    None if the bytes of a tenth of their time or more are unknown, or there are none.
    """
    gpu, work, bounds = run.trace.gpu, run.work, run.bounds
    moving = (bounds.nearest_roof == BANDWIDTH) & ~bounds.is_("latency") & run.in_window
    known = moving & ~np.isnan(work.bytes)
    time_ns = int(gpu.dur_ns[known].sum())
    if not time_ns or time_ns < COVERAGE * int(gpu.dur_ns[moving].sum()):
        return None
    return float(work.bytes[known].sum() / time_ns * 1e9)
