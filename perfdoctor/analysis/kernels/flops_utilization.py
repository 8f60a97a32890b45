"""Model FLOPs utilization (MFU): the FLOPs of the matrix work over what one peak of the device allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.analysis.kernels.tensor_core_verdicts import YES, TensorCoreVerdicts
from perfdoctor.analysis.launching_ops import match_op_names
from perfdoctor.gpu import Device
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.cost_of_op import cost_of_op
from perfdoctor.gpu.roofline.matrix_formulas import MATRIX_FORMULAS
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps

# Peaks on vector units, by operand type: float32 without TF32 has a peak of its own, and so has float64.
_VECTOR_TYPES = ("fp32", "fp64")
_HALF_TYPES = ("fp16", "bf16")
_SAME_PEAK = {"int8": "fp8"}  # on every device that has both
_PEAK_NAMES = {"fp32_matrix": "fp32 on matrix cores", "fp64_matrix": "fp64 on Tensor Cores"}


class FlopsUtilization(NamedTuple):
    """How much of the device's arithmetic the window uses.

    Attributes:
        share: FLOPs whose number is known over `peak_flops_per_s` times the window (0 to 1); a lower bound unless all
            are known. None where no FLOPs or no peak are known.
        known_share: The share (0 to 1) of the matrix kernels' time whose FLOPs are known; None without such kernels.
        peak_name: The type of the peak, such as "bf16", "tf32" or "fp32 without Tensor Cores"; None where unknown.
        peak_flops_per_s: The dense peak of that type; None where unknown.
    """

    share: float | None = None
    known_share: float | None = None
    peak_name: str | None = None
    peak_flops_per_s: float | None = None


NO_UTILIZATION = FlopsUtilization()


def flops_utilization(
    classes: KernelClasses,
    costs: KernelCosts,
    verdicts: TensorCoreVerdicts,
    device: Device | None,
    in_window: BoolArray,
    window_ns: int,
) -> FlopsUtilization:
    """The FLOPs of products, convolutions and attention in the window over one dense peak of the device.

    The peak is that of the operand type in which the matrix kernels spend most time. Where they do more than it allows,
    because other kernels use a faster type, it is the highest peak of all types in use. Recomputed work counts too
    (some call this HFU).
    """
    gpu, kinds = classes.trace.gpu, costs.kinds
    is_matrix = classes.match_names(lambda k: k.category in MATRIX_CATEGORIES and k.tensor_core != "na")
    rows = np.flatnonzero(is_matrix[gpu.name] & in_window)
    spent_ns = gpu.dur_ns[rows].astype(np.float64)
    if not spent_ns.sum() or not window_ns:
        return NO_UTILIZATION
    of_matrix_ops = np.where(costs.match_kinds(*MATRIX_CATEGORIES), kinds.flops, np.nan)
    flops = of_matrix_ops[costs.kind[rows]] * costs.cost_fraction[rows]
    known = ~np.isnan(flops) & ~verdicts.impossible[rows]
    known_share = float(spent_ns[known].sum() / spent_ns.sum())
    operand = verdicts.operand[costs.kind[rows]]
    on_vector_units = verdicts.tensor_core[rows] != YES
    time_of_peak = _time_by_peak(verdicts.operands, operand, on_vector_units, spent_ns, device)
    if not known.any() or not time_of_peak:
        return FlopsUtilization(known_share=known_share)
    rate = float(flops[known].sum() / window_ns * 1e9)
    peak = max(time_of_peak, key=lambda peak: (time_of_peak[peak], peak.flops_per_s))
    if rate > peak.flops_per_s:
        peak = max(time_of_peak, key=lambda peak: peak.flops_per_s)
    return FlopsUtilization(rate / peak.flops_per_s, known_share, peak.name, peak.flops_per_s)


class Peak(NamedTuple):
    """A dense peak of a device: the type that it is of, in words, and FLOP/s."""

    name: str
    flops_per_s: float


def _time_by_peak(
    operands: tuple[str, ...],
    operand: Int8Array,
    on_vector_units: BoolArray,
    spent_ns: FloatArray,
    device: Device | None,
) -> dict[Peak, float]:
    """The time of matrix kernels by the dense peak of their type; without that of types whose peak is unknown."""
    times: dict[Peak, float] = {}
    key = operand.astype(np.int64) * 2 + on_vector_units
    for code, ns in enumerate(np.bincount(key, weights=spent_ns).tolist()):
        peak = peak_of(operands[code // 2], bool(code % 2), device) if ns else None
        if peak is not None:
            times[peak] = times.get(peak, 0.0) + ns
    return times


def peak_of(operand: str, on_vector_units: bool, device: Device | None) -> Peak | None:
    """The dense peak of an operand type; None where it is unknown.

    Half precision that ran on CUDA cores is compared with Tensor Cores all the same: they are what the device has for
    that type. Float32 without TF32 and float64 have peaks of their own on CUDA cores.
    """
    if device is None or not operand:
        return None
    name = device.matrix_peak_type(_SAME_PEAK.get(operand, operand))
    flops_per_s = device.peak_flops(name)
    if operand in (_VECTOR_TYPES if on_vector_units else ()) or (flops_per_s is None and operand in _HALF_TYPES):
        name, flops_per_s = f"{operand} without Tensor Cores", device.vector_peak_flops(operand)
    return None if flops_per_s is None else Peak(_PEAK_NAMES.get(name, name), flops_per_s)


def step_flops(trace: Trace, steps: Steps) -> tuple[int, ...]:
    """FLOPs of matrix maths in each step, by the ops' input shapes; empty where shapes or steps are missing.

    An op and the op that it calls both count, so these figures serve to compare ranks and steps, not to compute
    achieved FLOP/s.
    """
    ops = trace.ops
    rows = np.flatnonzero(match_op_names(trace, MATRIX_FORMULAS.__contains__)[ops.name])
    if not len(rows) or not steps.count:
        return ()
    step = steps.at(ops.start_ns[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    if not len(rows):
        return ()
    columns = tuple(column[rows] for column in (ops.name, ops.dims, ops.types, ops.strides, ops.concrete))
    which, first = distinct_rows(columns, len(trace.strings))
    flops = []
    for codes in zip(*(column[first].tolist() for column in columns), strict=True):
        cost = cost_of_op(trace.strings[codes[0]], *(trace.text(code) for code in codes[1:]))
        flops.append(cost.flops if cost is not None else 0)
    total = np.bincount(step, np.array(flops, np.float64)[which], steps.count)
    return tuple(round(value) for value in total.tolist()) if total.any() else ()
