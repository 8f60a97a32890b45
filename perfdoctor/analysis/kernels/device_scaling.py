"""What the time of GPU items and steps scales with on another device, and how many times as long each item takes there.

The work of the GPU scales with Tensor Cores, CUDA cores or the memory's bandwidth, by what binds each kernel; copies
and collectives with a link; short kernels, and those that leave most multiprocessors empty, with nothing. All other
time is the CPU's, or nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.analysis.kernels.tensor_core_verdicts import NO, YES, TensorCoreVerdicts
from perfdoctor.analysis.launching_ops import match_op_names
from perfdoctor.gpu import Device, classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.efficiencies import Cell, Efficiency
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH, COMPUTE
from perfdoctor.gpu.roofline.scale_kernels import (
    ScalingKernels,
    compare_with_like,
    gains_matrix_units,
    scale_durations_to,
)
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, Trace

SCALES_WITH = ("tensor_cores", "cuda_cores", "bandwidth", "link", "cpu", "nothing")
"""What time can scale with; AMD's matrix cores and vector units count as the first two."""
TENSOR_CORES, CUDA_CORES, MEMORY, LINK, CPU, NOTHING = range(len(SCALES_WITH))
LINK_ROUTES = ("pinned", "pageable", "between_devices")
"""What a transfer goes over: PCIe from pinned or pageable memory of the host, or the link between devices."""
PINNED, PAGEABLE, BETWEEN_DEVICES = range(len(LINK_ROUTES))

_OF_DETAILS = {
    "bandwidth": MEMORY,
    "communication": LINK,
    "latency": NOTHING,
    "idle_dataloader": CPU,
    "idle_sync": CPU,
    "idle_launch": CPU,
    "idle_allocator": CPU,
    "idle_communication": LINK,
    "idle_unexplained": NOTHING,
}
_FAMILIES = (*sorted(MATRIX_CATEGORIES), "memory")
# Convolutions in NCHW lay their data out anew for Tensor Cores, not for CUDA cores: in four recordings that took 0.4 to
# 1.1 of the convolutions' own time, in channels_last nothing.
_LAYOUT_COPIES = (1.0, 1.5, 2.1)
_READ_AND_WRITTEN = 2  # times that a copy within a device moves its bytes


def scaling_of_items(
    classes: KernelClasses, costs: KernelCosts, verdicts: TensorCoreVerdicts, roof_classes: Int8Array
) -> Int8Array:
    """For each GPU item what its time scales with, an index into SCALES_WITH.

    Kernels of unknown unit count as Tensor Cores, but for those in float32.
    """
    trace = classes.trace
    single = np.array([operand in ("", "fp32") for operand in verdicts.operands])[verdicts.operand[costs.kind]]
    is_matrix = (verdicts.tensor_core == YES) | ((verdicts.tensor_core != NO) & ~single)
    result = np.full(len(trace.gpu), NOTHING, np.int8)
    result[roof_classes == COMPUTE] = np.where(is_matrix, TENSOR_CORES, CUDA_CORES)[roof_classes == COMPUTE]
    result[roof_classes == BANDWIDTH] = MEMORY
    result[classes.match_rows(lambda k: k.category == "communication")] = LINK
    within = copy_kinds_of(trace).matches(vocabulary.DTOD)
    result[trace.gpu.kind != KERNEL] = MEMORY  # sets
    result[(trace.gpu.kind == MEMCPY) & ~within] = LINK
    return result


def split_by_scaling(classes: KernelClasses, scaling: Int8Array, parts: Mapping[str, Intervals]) -> Mapping[str, int]:
    """The window by what its time scales with, in ns by name of SCALES_WITH; adds up to the window.

    Args:
        classes: The classes of the kernels.
        scaling: What each GPU item scales with (`scaling_of_items`).
        parts: The parts of the account, a partition of the window.
    """
    gpu = classes.trace.gpu
    result = dict.fromkeys(SCALES_WITH, 0)
    for name, part in parts.items():
        if name in _OF_DETAILS:
            result[SCALES_WITH[_OF_DETAILS[name]]] += iv.total(part)
            continue
        # Of kernels side by side the first kind has the time; of copies the rest is of the link.
        first, rest = (TENSOR_CORES, CUDA_CORES) if name == "compute" else (MEMORY, LINK)
        rows = np.flatnonzero((scaling == first) & ((gpu.kind == KERNEL) == (name == "compute")))
        of_first = iv.total(iv.intersect(part, iv.union(gpu.start_ns[rows], gpu.end_ns[rows])))
        result[SCALES_WITH[first]] += of_first
        result[SCALES_WITH[rest]] += iv.total(part) - of_first
    return result


def device_ratios_of(
    classes: KernelClasses,
    costs: KernelCosts,
    verdicts: TensorCoreVerdicts,
    roofs: Int8Array,
    scaling: Int8Array,
    here: Device,
    there: Device,
    table: Mapping[Cell, Efficiency] | None = None,
) -> FloatArray:
    """How many times as long each GPU item takes on another device, (n, 3): at best, as expected, at worst.

    1 where a rate is unknown. What scales with nothing is expected to stay, and may follow its roof. Collectives and
    copies of pageable memory wait for others as well: they take between as long as now and what the link allows.

    Args:
        classes: The classes of the kernels.
        costs: Their FLOPs and bytes.
        verdicts: Whether they use Tensor Cores.
        roofs: Their roofs, COMPUTE or BANDWIDTH (`RoofShares.roof`).
        scaling: What each item scales with (`scaling_of_items`).
        here: The device of the trace.
        there: The other device.
        table: What comparable kernels attain; None for what ships with the package.
    """
    result, loses = np.ones((len(classes.trace.gpu), 3)), False
    for rows, kernels in group_kernels(classes, costs, verdicts, roofs, scaling):
        result[rows] = scale_group(there, here, kernels, scaling[rows] == NOTHING, table)
        loses |= kernels.family == "convolution" and gains_matrix_units(there, here, kernels) < 0
    if loses:
        result[_match_layout_copies(classes), :2] = 0
    of_link = scaling == LINK
    result[of_link] = link_ratios(here, there)[link_routes(classes.trace)[of_link]]
    return result


def scale_group(
    there: Device,
    here: Device,
    kernels: ScalingKernels,
    stays: BoolArray,
    table: Mapping[Cell, Efficiency] | None = None,
) -> FloatArray:
    """As `device_ratios_of`, for kernels of one family, type and unit; `stays` are those that scale with nothing."""
    result = scale_durations_to(there, here, kernels, table)
    if kernels.family == "convolution" and gains_matrix_units(there, here, kernels) > 0:
        result *= _LAYOUT_COPIES
    result = np.where(np.isnan(result), 1.0, result)
    result[stays, 0], result[stays, 2] = np.fmin(result[stays, 0], 1), np.fmax(result[stays, 2], 1)
    result[stays, 1] = 1
    return result


def usual_ratios_of(
    classes: KernelClasses,
    costs: KernelCosts,
    verdicts: TensorCoreVerdicts,
    roofs: Int8Array,
    scaling: Int8Array,
    here: Device,
    table: Mapping[Cell, Efficiency] | None = None,
) -> FloatArray:
    """How many times as long comparable kernels usually take on the same device, (n, 3): at best, the median, at worst.

    1 where no roof binds the item, or where its work is unknown. The arguments are those of `device_ratios_of`.
    """
    result = np.ones((len(classes.trace.gpu), 3))
    for rows, kernels in group_kernels(classes, costs, verdicts, roofs, scaling):
        ratios = compare_with_like(here, kernels, table)
        bound = (scaling[rows] != NOTHING) & ~np.isnan(ratios[:, 1])
        result[rows[bound]] = ratios[bound]
    return result


def group_kernels(
    classes: KernelClasses, costs: KernelCosts, verdicts: TensorCoreVerdicts, roofs: Int8Array, scaling: Int8Array
) -> Iterator[tuple[Int64Array, ScalingKernels]]:
    """The kernels of each family, type and unit, with their rows; copies within a device are of the family memory."""
    gpu = classes.trace.gpu
    within = (gpu.kind != KERNEL) & (scaling == MEMORY)
    passes = np.where(gpu.kind == MEMCPY, _READ_AND_WRITTEN, 1)
    moved = np.where(within, np.where(gpu.bytes >= 0, gpu.bytes * passes, np.nan), costs.bytes)
    group = np.stack(
        (_families(classes, costs), verdicts.operand[costs.kind], verdicts.tensor_core == YES), axis=1
    ).astype(np.int64)
    of_group = np.where(scaling != LINK, np.unique(group, axis=0, return_inverse=True)[1].ravel(), NONE)
    for number in np.unique(of_group[of_group >= 0]).tolist():
        rows = np.flatnonzero(of_group == number)
        family, operand, on_matrix = group[rows[0]].tolist()
        dur_ns = gpu.dur_ns[rows].astype(np.float64)
        yield (
            rows,
            ScalingKernels(
                _FAMILIES[family],
                verdicts.operands[operand],
                bool(on_matrix),
                dur_ns,
                costs.flops[rows],
                moved[rows],
                roofs[rows],
            ),
        )


def _families(classes: KernelClasses, costs: KernelCosts) -> Int64Array:
    """For each GPU item an index into _FAMILIES: that of its op where it does the op's maths, else that of its name."""
    of_names = np.full(len(classes.trace.strings), len(_FAMILIES) - 1, np.int64)
    for name, kernel in classes.by_name.items():
        if kernel.category in MATRIX_CATEGORIES and kernel.tensor_core != "na":
            of_names[name] = _FAMILIES.index(kernel.category)
    result: Int64Array = of_names[classes.trace.gpu.name]
    result[(result == _FAMILIES.index("gemm")) & _match_convolutions(classes)] = _FAMILIES.index("convolution")
    for number, family in enumerate(_FAMILIES):
        result[costs.match_rows(family)] = number
    return result


def _match_convolutions(classes: KernelClasses) -> BoolArray:
    """For each GPU item whether the op of a convolution launched it."""
    trace = classes.trace
    convolves = match_op_names(trace, lambda name: classify_op(name) == "convolution")[trace.ops.name]
    result: BoolArray = np.append(convolves, False)[trace.gpu.op]
    return result


def _match_layout_copies(classes: KernelClasses) -> BoolArray:
    """For each GPU item whether it lays out the data of a convolution anew."""
    return _match_convolutions(classes) & classes.match_rows(lambda kernel: kernel.category == "copy")


def link_routes(trace: Trace) -> Int8Array:
    """For each GPU item what it goes over if it scales with a link, an index into LINK_ROUTES."""
    copies = copy_kinds_of(trace)
    pinned = copies.host_memory == vocabulary.PINNED
    return np.where(copies.with_host, np.where(pinned, PINNED, PAGEABLE), BETWEEN_DEVICES).astype(np.int8)


def link_ratios(here: Device, there: Device) -> FloatArray:
    """How many times as long a transfer takes on another device by its route, (3, 3): at best, as expected, at worst.

    1 where a rate is unknown. Pageable memory is copied by the CPU first, and is expected to take as long as now.
    """
    by_pcie = _ratio(here.pcie_bytes_per_s, there.pcie_bytes_per_s)
    by_link = _ratio(here.link_bytes_per_s or here.pcie_bytes_per_s, there.link_bytes_per_s or there.pcie_bytes_per_s)
    return np.array(
        [
            (min(ratio, 1.0), expected, max(ratio, 1.0))
            for ratio, expected in ((by_pcie, by_pcie), (by_pcie, 1.0), (by_link, by_link))
        ]
    )


def _ratio(here: float | None, there: float | None) -> float:
    return here / there if here and there else 1.0
