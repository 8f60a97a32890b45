"""Kernels by name and shape on the roofline of their device: FLOPs over bytes, and FLOP/s."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.kernels.flops_utilization import peak_of
from perfdoctor.analysis.kernels.tensor_core_verdicts import VERDICTS, YES
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.op_cost import OpCost
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import Roof, Roofline
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables.model import KERNEL

_MAX_POINTS = 2_000


def roofline_of(rank: Rank) -> Roofline | None:
    """The roofline of a rank's window; None where no kernel has a known amount of work, which takes input shapes.

    A capture records shapes in its evidence window only: then the kernels are those of that window.
    """
    has_shapes = bool((rank.trace.ops.dims >= 0).any())
    source = rank if has_shapes or rank.evidence is None else rank.evidence
    trace, costs, verdicts = source.trace, source.kernel_costs, source.verdicts
    work = costs.flops + costs.bytes
    rows = np.flatnonzero(
        (trace.gpu.kind == KERNEL) & source.in_window & (work > 0) & (costs.flops > 0) & ~verdicts.impossible
    )
    if not len(rows):
        return None
    kind, count = costs.kind[rows], len(costs.kinds)
    time_ns = np.bincount(kind, trace.gpu.dur_ns[rows], count)
    flops, moved = (np.bincount(kind, amount[rows], count) for amount in (costs.flops, costs.bytes))
    verdict = np.zeros(count, np.int8)
    verdict[kind] = verdicts.tensor_core[rows]
    shown = np.lexsort((np.arange(count), -time_ns))[:_MAX_POINTS]
    shown = shown[(time_ns[shown] > 0) & (moved[shown] > 0)]
    of_op = [costs.op_costs[index] for index in costs.kinds.op_cost[shown].tolist()]
    names = costs.kinds.name[shown].tolist()
    by_name = source.kernel_classes.by_name
    return Roofline(
        names=tuple(f"{trace.strings[name]} {_shape_of(cost)}" for name, cost in zip(names, of_op, strict=True)),
        category=tuple(by_name[name].category for name in names),
        flops=flops[shown].astype(np.float64),
        bytes=moved[shown].astype(np.float64),
        time_ns=time_ns[shown].astype(np.int64),
        tensor_core=tuple(VERDICTS[code] for code in verdict[shown].tolist()),
        roofs=_roofs(source, shown, verdict[shown] == YES),
    )


def _shape_of(cost: OpCost) -> str:
    """What tells the costs of one kernel's launches apart: "(4096 x 4096 x 1024, bf16)" of a product (M, N, K)."""
    batch = cost.batch if cost.batch != 1 else None
    sizes = " x ".join(str(size) for size in (batch, cost.m, cost.n, cost.k) if size is not None)
    if not sizes and cost.channels_in is not None:
        sizes = f"{cost.channels_in} to {cost.channels_out} channels"
    return f"({sizes or f'{cost.bytes:,} bytes'}, {cost.dtype})"


def _roofs(rank: Rank, kinds: Int64Array, on_matrix_units: BoolArray) -> tuple[Roof, ...]:
    """The peaks for the types that products, convolutions and attention use, and that of the memory."""
    device = rank.device
    if device is None:
        return ()
    matrix = rank.kernel_costs.match_kinds(*MATRIX_CATEGORIES)[kinds]
    operands = rank.verdicts.operand[kinds[matrix]].tolist()
    units = set(zip(operands, on_matrix_units[matrix].tolist(), strict=True))
    peaks = {peak_of(rank.verdicts.operands[operand], not on_matrix, device) for operand, on_matrix in units}
    roofs = [Roof(peak.name, "flops", peak.flops_per_s) for peak in peaks if peak is not None]
    if device.memory_bandwidth_bytes_per_s:
        roofs.append(Roof("memory", "bytes", device.memory_bandwidth_bytes_per_s))
    return tuple(sorted(roofs, key=lambda roof: (roof.kind, -roof.per_s)))
