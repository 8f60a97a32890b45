"""What bounds each kernel of a rank, and how near the step comes to the device's peaks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.diagnosis.verdicts import MATRIX_CATEGORIES, NO, VERDICTS, YES, Verdicts
from perfdoctor.diagnosis.work import Work
from perfdoctor.gpu import Device, KernelClass
from perfdoctor.gpu.bounds import (
    ALIGNMENT,
    BANDWIDTH,
    NO_BOUND,
    NO_REASON,
    OLD_ARCHITECTURE,
    Bounds,
    Launches,
    bound_launches,
    latency_floor_ns,
)
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.model import KERNEL, BoolArray, Int8Array

if TYPE_CHECKING:
    from perfdoctor.diagnosis.run import RankRun

FloatArray: TypeAlias = npt.NDArray[np.float64]

COVERAGE = 0.9
"""A rate for the whole step is given only if the work of so much of the kernel time concerned is known."""

_SM = re.compile(r"sm(\d{2,3})\Z")
_HOPPER = (9, 0)
_FULL_ACCESS_BYTES = 16
_ITEM_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_TRIPLE = 3.0  # float32 attention as three TF32 products


def bounds_of(run: RankRun, work: Work, verdicts: Verdicts) -> Bounds:
    """What bounds each GPU item; copies, sets and communication have no bound."""
    trace, device = run.trace, run.device
    gpu = trace.gpu
    flops = np.where(verdicts.impossible, np.nan, work.flops)
    attainable, peak = _rates(run, work, verdicts)
    bandwidth = device.attainable_bandwidth_bytes_per_s if device else None
    peak_bandwidth = device.memory_bandwidth_bytes_per_s if device else None
    helpers = run.kernels_where(lambda k: k.tensor_core == "na" and k.category != "communication")
    shortest_ns, floor_ns = latency_floor_ns(gpu.dur_ns[helpers])
    maths = run.kernels_where(_mostly_maths)
    found = bound_launches(
        Launches(
            dur_ns=gpu.dur_ns,
            compute_ns=flops / attainable * 1e9,
            memory_ns=work.bytes / (bandwidth or np.nan) * 1e9,
            peak_compute_ns=flops / peak * 1e9,
            peak_memory_ns=work.bytes / (peak_bandwidth or np.nan) * 1e9,
            mostly_maths=maths,
            reason=_reasons(run, work, verdicts),
            blocks=getattr(gpu, "blocks", None),  # recorded grids, where the reader keeps them
            sm_count=run.source.device.sm_count or (device.sm_count if device else None),
            floor_ns=floor_ns,
            shortest_ns=shortest_ns,
        )
    )
    outside = (gpu.kind != KERNEL) | run.kernels_where(lambda k: k.category == "communication")
    for column in (found.kind, found.nearest):
        column[outside] = NO_BOUND
    found.assumed[outside] = False
    return found


def _mostly_maths(kernel: KernelClass) -> bool:
    return kernel.category in MATRIX_CATEGORIES and kernel.tensor_core != "na" and not kernel.gemv_like


def _rates(run: RankRun, work: Work, verdicts: Verdicts) -> tuple[FloatArray, FloatArray]:
    """FLOP/s attainable, and at the peak, on the unit that each launch used; NaN where unknown."""
    device, operands = run.device, verdicts.operands
    memory = work.rows_of("memory")
    tables = np.full((2, len(VERDICTS), len(operands)), np.nan)  # attainable and peak, by verdict and operand
    if device is not None:
        for i, operand in enumerate(operands):
            tables[:, YES, i], tables[:, NO, i] = _unit_rates(device, operand)
    triple = np.ones(len(run.trace.strings))
    triple[[code for code, k in run.kernel_classes.items() if k.instruction == "3xTF32"]] = _TRIPLE
    rates = tables[:, verdicts.tensor_core, verdicts.operand] / triple[run.trace.gpu.name]
    # What only moves data does a few operations an element: maths is never its limit.
    rates[:, memory] = np.inf
    return rates[0], rates[1]


def _unit_rates(device: Device, operand: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """(attainable, peak) of the matrix unit, and of the vector unit, for an operand type."""
    matrix_type = device.matrix_type(operand)
    vector_type = "fp64" if operand == "fp64" else "fp32"
    matrix = device.attainable_flops(matrix_type), device.matrix_peak_flops(operand)
    vector = device.attainable_flops(vector_type), device.vector_peak_flops(operand)
    if not operand:
        matrix = vector = (None, None)
    return (matrix[0] or np.nan, matrix[1] or np.nan), (vector[0] or np.nan, vector[1] or np.nan)


def _reasons(run: RankRun, work: Work, verdicts: Verdicts) -> Int8Array:
    """What a kernel's name or shapes tell about why it might be slow."""
    gpu = run.trace.gpu
    capability = run.device.compute_capability if run.device else run.source.device.capability
    hopper = capability is not None and capability >= _HOPPER and run.source.vendor != "amd"
    table = np.full(len(run.trace.strings), NO_REASON, np.int8)
    tagged = np.zeros(len(run.trace.strings), bool)
    for code, kernel in run.kernel_classes.items():
        tagged[code] = kernel.alignment is not None
        arch = _SM.match(kernel.arch or "")
        if kernel.slow_path:
            table[code] = ALIGNMENT
        elif hopper and kernel.tensor_core == "yes" and arch is not None and int(arch[1]) < 10 * _HOPPER[0]:
            table[code] = OLD_ARCHITECTURE
    reason = table[gpu.name]
    # Where no tag tells (AMD, nvjet), the dimensions that lie contiguous in memory do.
    odd = np.array([*(_misaligned(c.n, c.k, c.dtype) for c in work.costs), False], bool)
    reason[odd[work.cost] & ~tagged[gpu.name] & (verdicts.tensor_core == YES)] = ALIGNMENT
    return reason


def _misaligned(n: int | None, k: int | None, dtype: str) -> bool:
    if n is None or k is None or dtype not in _ITEM_BYTES:
        return False
    elements = _FULL_ACCESS_BYTES // _ITEM_BYTES[dtype]
    return n % elements != 0 or k % elements != 0


def model_flops_utilization(run: RankRun) -> float | None:
    """FLOPs of products, convolutions and attention in the window, over what the units they ran on could do in it.

    Recomputed work counts too (some call this HFU). Each launch is compared with the peak of its own unit and operand
    type, so that a step in several types gets one number.

    Returns:
        A share from 0 to 1; None if FLOPs or peaks of a part of the kernel time that matters are unknown.
    """
    work, verdicts, gpu = run.work, run.verdicts, run.trace.gpu
    matrix = run.kernels_where(lambda k: k.category in MATRIX_CATEGORIES and k.tensor_core != "na")
    rows = matrix & iv.contains(run.window, gpu.start_ns)
    _, peak = _rates(run, work, verdicts)
    ideal_ns = np.where(verdicts.impossible, np.nan, work.flops) / peak * 1e9
    return _covered(ideal_ns, rows & work.rows_of(*MATRIX_CATEGORIES), rows, gpu.dur_ns, run.window_ns)


def _covered(
    amount: FloatArray, counted: BoolArray, concerned: BoolArray, dur_ns: npt.NDArray[np.int64], window_ns: int
) -> float | None:
    known = counted & ~np.isnan(amount)
    whole = int(dur_ns[concerned].sum())
    if not whole or not window_ns or dur_ns[known].sum() < COVERAGE * whole:
        return None
    return float(amount[known].sum() / window_ns)


def achieved_flops_per_s(run: RankRun) -> float | None:
    """FLOPs of products, convolutions and attention in the window over its length; None as for the utilization."""
    gpu, work = run.trace.gpu, run.work
    matrix = run.kernels_where(lambda k: k.category in MATRIX_CATEGORIES and k.tensor_core != "na")
    rows = matrix & iv.contains(run.window, gpu.start_ns)
    flops = np.where(run.verdicts.impossible, np.nan, work.flops)
    rate = _covered(flops, rows & work.rows_of(*MATRIX_CATEGORIES), rows, gpu.dur_ns, run.window_ns)
    return None if rate is None else rate * 1e9


def achieved_bytes_per_s(run: RankRun) -> float | None:
    """Compulsory bytes over time of the kernels in the window that memory bounds: how fast they move their data.

    None if the bytes of a tenth of their time or more are unknown, or there are none.
    """
    gpu, work, bounds = run.trace.gpu, run.work, run.bounds
    moving = (bounds.nearest == BANDWIDTH) & ~bounds.is_("latency") & iv.contains(run.window, gpu.start_ns)
    known = moving & ~np.isnan(work.bytes)
    time_ns = int(gpu.dur_ns[known].sum())
    if not time_ns or time_ns < COVERAGE * int(gpu.dur_ns[moving].sum()):
        return None
    return float(work.bytes[known].sum() / time_ns * 1e9)
