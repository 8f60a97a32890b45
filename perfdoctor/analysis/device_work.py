"""The GPU's work in a step by op, sizes, module and kernel: small, and ready to be scaled to another device later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.host.module_tree import innermost_modules
from perfdoctor.analysis.kernels.device_scaling import (
    LINK,
    NOTHING,
    SCALES_WITH,
    group_kernels,
    link_ratios,
    link_routes,
    scale_group,
)
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import KernelCosts
from perfdoctor.analysis.kernels.tensor_core_verdicts import TensorCoreVerdicts
from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.timeline.own_time import GpuLabels
from perfdoctor.gpu import Device
from perfdoctor.gpu.roofline.scale_kernels import ScalingKernels
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, FloatArray, Int8Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals


class DeviceWork(NamedTuple):
    """The calls of one kernel for one op.

    Attributes:
        op: The op that launched it, "" where not known.
        shape: The op's sizes as recorded, "" where not known.
        module: The innermost module around it, "" where not known.
        kernel: The kernel.
        time_ns: Its time in a step. Kernels that run side by side both count.
        calls: How often a step runs it.
        scales_with: One of SCALES_WITH.
        family, operand, on_matrix_units, flops, bytes, roof: As in `ScalingKernels`, in the mean of its calls; without
            a family for what is no work, such as a copy to the host.
        route: What a copy or a collective goes over, an index into LINK_ROUTES.
    """

    op: str
    shape: str
    module: str
    kernel: str
    time_ns: float
    calls: float
    scales_with: str
    family: str = ""
    operand: str = ""
    on_matrix_units: bool = False
    flops: float = float("nan")
    bytes: float = float("nan")
    roof: int = 0
    route: int = 0


def ratios_on(there: Device, here: Device, works: Sequence[DeviceWork]) -> FloatArray:
    """How many times as long each takes on another device, (n, 3): at best, as expected, at worst; 1 where unknown."""
    result, groups, by_route = np.ones((len(works), 3)), defaultdict(list), link_ratios(here, there)
    for row, work in enumerate(works):
        if work.scales_with == SCALES_WITH[LINK]:
            result[row] = by_route[work.route]
        elif work.family:
            groups[work.family, work.operand, work.on_matrix_units].append(row)
    for (family, operand, on_matrix_units), rows in groups.items():
        some = [works[row] for row in rows]
        kernels = ScalingKernels(
            family,
            operand,
            on_matrix_units,
            np.array([each.time_ns / each.calls for each in some]),
            np.array([each.flops for each in some]),
            np.array([each.bytes for each in some]),
            np.array([each.roof for each in some], np.int8),
        )
        stays = np.array([each.scales_with == SCALES_WITH[NOTHING] for each in some])
        result[rows] = scale_group(there, here, kernels, stays)
    return result


def device_work_of(
    classes: KernelClasses,
    costs: KernelCosts,
    verdicts: TensorCoreVerdicts,
    roofs: Int8Array,
    scaling: Int8Array,
    labels: GpuLabels,
    steps: Intervals,
) -> tuple[DeviceWork, ...]:
    """The work of the items that start in some steps, the longest first; `labels` are of all items.

    The other arguments are those of `device_ratios_of`.
    """
    trace, gpu = classes.trace, classes.trace.gpu
    groups, group = [("", "", False)], np.zeros(len(gpu), np.int64)
    flops, moved = np.full(len(gpu), np.nan), np.full(len(gpu), np.nan)
    for rows, kernels in group_kernels(classes, costs, verdicts, roofs, scaling):
        group[rows], flops[rows], moved[rows] = len(groups), kernels.flops, kernels.bytes
        groups.append((kernels.family, kernels.operand, kernels.on_matrix_units))
    dims = np.where(labels.known, np.append(trace.ops.dims, NONE)[gpu.op], NONE)
    label = np.where(labels.known, labels.label, NONE)
    rows = np.flatnonzero(iv.contains(iv.union_of((steps,)), gpu.start_ns))
    modules = innermost_modules(trace, *launch_instants(trace))
    columns = np.stack((label, dims, modules, gpu.name, scaling, group, link_routes(trace)), axis=1)[rows]
    keys, first, of_item = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    of_item, calls = of_item.ravel(), np.bincount(of_item.ravel(), minlength=len(keys))
    sums = [np.bincount(of_item, column[rows], len(keys)) for column in (gpu.dur_ns, flops, moved)]
    roof, count = roofs[rows[first]], max(len(steps), 1)
    found = []
    for row, (op, size, module, name, scales, number, route) in enumerate(keys.tolist()):
        family, operand, on_matrix_units = groups[number]
        found.append(
            DeviceWork(
                labels.names[op] if op >= 0 else "",
                (trace.text(size) or "").replace(" ", "") if size >= 0 else "",
                trace.strings[module].removeprefix(vocabulary.MODULE_FRAME_PREFIX) if module >= 0 else "",
                trace.strings[name],
                float(sums[0][row]) / count,
                float(calls[row]) / count,
                SCALES_WITH[scales],
                family,
                operand,
                on_matrix_units,
                float(sums[1][row] / calls[row]),
                float(sums[2][row] / calls[row]),
                int(roof[row]),
                route,
            )
        )
    return tuple(sorted(found, key=lambda each: -each.time_ns))
