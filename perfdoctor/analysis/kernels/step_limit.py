"""The limit of a step: how long it would take if every kernel ran at its roof and nothing waited.

Below it no tuning of this program on this device leads: only less work does, such as fused kernels, smaller types or
another algorithm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.hardware import Hardware
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.analysis.kernels.tensor_core_verdicts import TensorCoreVerdicts
from perfdoctor.gpu.devices import advise_precision
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.kernel_bounds import KernelBounds
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, MEMCPY
from perfdoctor.trace.tables.steps import Steps

_ADVISED_TYPES = {"tf32": "tf32", "bf16 autocast": "bf16", "fp16 autocast": "fp16"}
_READ_AND_WRITTEN = 2  # times that a copy within a device moves its bytes
_MIN_KNOWN_SHARE = 0.01  # of the kernels' time: with less the limit is what the kernels take today


class StepLimit(NamedTuple):
    """How short a step can get.

    Attributes:
        step_ns: The limit, at most the median step; of the window where there are no steps. None without GPU items.
        known_share: The share (0 to 1) of the kernels' time whose roof is known; None without kernels.
        basis: What is assumed, in words.
    """

    step_ns: int | None
    known_share: float | None
    basis: str


NO_LIMIT = StepLimit(None, None, "")


def step_limit_of(
    classes: KernelClasses,
    costs: KernelCosts,
    verdicts: TensorCoreVerdicts,
    bounds: KernelBounds,
    hardware: Hardware,
    steps: Steps,
    window: Intervals,
    exposed_communication: Intervals,
    host_bytes_per_s: float | None = None,
) -> StepLimit:
    """The limit of a step.

    It is the time in which at least one kernel runs when each takes the time of its roof, plus communication as far as
    it is exposed today; and no less than the copies from the host, or those to it, take. Kernels of unknown work keep
    their time. Of several steps it is the median. `host_bytes_per_s` is the rate of copies from or to pinned memory;
    None if unknown.
    """
    gpu = classes.trace.gpu
    spans = steps.intervals if steps.count else window
    if not len(gpu) or not len(spans):
        return NO_LIMIT
    computes = classes.match_rows(lambda k: k.category != "communication")
    best_ns, known = _best_times(classes, costs, verdicts, bounds, hardware, computes)
    copying = _match_device_copies(classes)
    rows = np.flatnonzero(computes | copying)
    busy = iv.union(gpu.start_ns[rows], gpu.start_ns[rows] + best_ns[rows])
    working_ns = iv.overlap(spans[:, 0], spans[:, 1], busy)
    working_ns = working_ns + iv.overlap(spans[:, 0], spans[:, 1], exposed_communication)
    by_span = np.maximum(working_ns, _host_copies_ns(classes, spans, host_bytes_per_s))
    now_ns = steps.median_ns if steps.count else iv.total(window)
    limit_ns = round(float(np.median(by_span))) if steps.count else int(by_span.sum())
    in_window = computes & iv.contains(window, gpu.start_ns)
    spent_ns = int(gpu.dur_ns[in_window].sum())
    known_share = float(gpu.dur_ns[in_window & known].sum() / spent_ns) if spent_ns else None
    step_ns = min(limit_ns, now_ns if now_ns is not None else limit_ns)
    return StepLimit(step_ns, known_share, _describe_basis(verdicts, hardware, known_share, len(exposed_communication)))


def _best_times(
    classes: KernelClasses,
    costs: KernelCosts,
    verdicts: TensorCoreVerdicts,
    bounds: KernelBounds,
    hardware: Hardware,
    computes: BoolArray,
) -> tuple[Int64Array, BoolArray]:
    """The time of each GPU item at its roof, never above its duration, and whether the roof is known.

    A product, a convolution or an attention takes the time of its work once, in its main kernel: helpers such as layout
    copies and split-K tails take none.
    """
    gpu, kinds, device = classes.trace.gpu, costs.kinds, hardware.device
    best = bounds.roofline_ns
    rate = _fastest_rates(verdicts, hardware)[verdicts.operand]
    is_matrix = costs.match_kinds(*MATRIX_CATEGORIES)
    compute_ns = np.where(is_matrix, kinds.flops / rate * 1e9, np.nan)[costs.kind] * costs.cost_fraction
    _, memory_ns = bounds.times_at_roofs
    faster = np.maximum(np.fmax(compute_ns, memory_ns), bounds.shortest_kernel_ns)
    best = np.where(np.isnan(compute_ns), best, np.fmin(best, faster))
    op = np.where(computes & is_matrix[costs.kind], gpu.op, -1)
    solved = np.zeros(len(classes.trace.ops) + 1, bool)  # the last one for items without an op
    solved[op[~np.isnan(best)]] = True
    solved[-1] = False
    is_helper = solved[op] & np.isnan(costs.cost_fraction)
    best[is_helper] = 0.0
    if device is not None and device.attainable_bandwidth_bytes_per_s:
        copies = np.flatnonzero(_match_device_copies(classes) & (gpu.bytes >= 0))
        passes = np.where(gpu.kind[copies] == MEMCPY, _READ_AND_WRITTEN, 1)
        best[copies] = gpu.bytes[copies] * passes / device.attainable_bandwidth_bytes_per_s * 1e9
    known = ~np.isnan(best)
    best_ns = np.where(known, np.minimum(np.nan_to_num(best), gpu.dur_ns), gpu.dur_ns).astype(np.int64)
    return best_ns, known


def _fastest_rates(verdicts: TensorCoreVerdicts, hardware: Hardware) -> FloatArray:
    """The most FLOP/s that the device attains for each operand type, with the precision that is advised for float32."""
    device = hardware.device
    rates = np.full(len(verdicts.operands), np.nan)
    for i, operand in enumerate(verdicts.operands if device is not None else ()):
        if device is None or not operand:
            continue
        types = [device.matrix_peak_type(operand), "fp64" if operand == "fp64" else "fp32"]
        advised = _advised_type(hardware) if operand == "fp32" else None
        attained = [device.attainable_flops(each) for each in (*types, advised) if each]
        rates[i] = max((rate for rate in attained if rate), default=np.nan)
    return rates


def _advised_type(hardware: Hardware) -> str | None:
    """The type in which float32 products would run if the advice on precision were followed; None without advice."""
    if hardware.tensor_cores is False:
        return None
    advice = advise_precision(hardware.device, hardware.capability, hardware.vendor)
    return None if advice is None else _ADVISED_TYPES[advice.precision]


def _match_device_copies(classes: KernelClasses) -> BoolArray:
    """For each GPU item whether it copies within the device, or sets memory."""
    gpu = classes.trace.gpu
    directions = copy_kinds_of(classes.trace)
    is_set = (gpu.kind != KERNEL) & (gpu.kind != MEMCPY)
    result: BoolArray = is_set | directions.matches(vocabulary.DTOD)
    return result


def _host_copies_ns(classes: KernelClasses, spans: Intervals, bytes_per_s: float | None) -> Int64Array:
    """For each span of time what its copies from the host, or those to it, take at least: the longer of both."""
    gpu, directions = classes.trace.gpu, copy_kinds_of(classes.trace)
    longest = np.zeros(len(spans), np.int64)
    for direction in (vocabulary.HTOD, vocabulary.DTOH):
        rows = np.flatnonzero(directions.matches(direction))
        took_ns = gpu.dur_ns[rows]
        if bytes_per_s:
            at_rate_ns = np.where(gpu.bytes[rows] >= 0, gpu.bytes[rows] / bytes_per_s * 1e9, took_ns)
            took_ns = np.minimum(took_ns, at_rate_ns.astype(np.int64))
        copying = iv.union(gpu.start_ns[rows], gpu.start_ns[rows] + took_ns)
        longest = np.maximum(longest, iv.overlap(spans[:, 0], spans[:, 1], copying))
    return longest


def _describe_basis(
    verdicts: TensorCoreVerdicts, hardware: Hardware, known_share: float | None, exposed_count: int
) -> str:
    advised = _advised_type(hardware) if "fp32" in verdicts.operands and hardware.device is not None else None
    parts = []
    some_known = known_share is not None and known_share >= _MIN_KNOWN_SHARE
    if some_known:
        precise = f" (float32 products in {advised})" if advised else ""
        parts.append(f"kernels at the rates that the device attains{precise}")
    if known_share is not None and known_share < 1:
        parts.append("kernels of unknown work as recorded" if some_known else "kernels as recorded, their work unknown")
    if exposed_count:
        parts.append("communication as exposed now")
    return ", ".join((*parts, "nothing waits"))
