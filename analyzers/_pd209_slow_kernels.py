"""Kernels that take much longer than comparable ones would for the same work, by family.

Launches of one kernel name with the same recorded inputs are one kind: they do the same work, and their median time is
judged, so that single slow launches (the first one, clocks, other streams) do not decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._attention import attention_of_items, find_attentions, find_fused_float32
from perfdoctor.analyzers._missed_tensor_cores import find_missed_kernels
from perfdoctor.analyzers._pointwise_chains import find_chains
from perfdoctor.rules import (
    ANY_KERNEL,
    BANDWIDTH,
    KERNEL,
    BoolArray,
    Device,
    FloatArray,
    Int64Array,
    OpCost,
    Rank,
    RecordedInputs,
    TensorInput,
    UnusableInputsError,
    efficiencies_of,
    find_lowest_device,
    find_reach,
    frozen_dataclass,
    misaligned_dimensions,
    name_generation,
    traffic_kinds,
)

FAMILIES = (
    *("gemm", "convolution", "attention", "norm", "softmax", "elementwise", "reduction", "indexing", "copy", "other"),
)
"""What kernels compute; one finding each."""

# Time of a launch that is no work: until its first block runs, and from its last one's end; in shortest kernels.
_LAUNCH_AND_TAIL = 2.0
# A kind of less time is not judged: so many in a trace would have to be slow before their family is worth a finding.
_MIN_KIND_SHARE = 0.001
# A row of a norm or softmax that a block of 256 threads reads in one go, 16 bytes each, leaves it waiting for the sums.
_SHORT_ROW_BYTES = 4096
# Attention over at most so many queries or keys reads and writes; half a tile of 128 rows is empty at least.
_FEW_POSITIONS = 64
# From so many positions on attention reaches what the table says; under them the lower figure, and less by length:
# FlashAttention-2 over 512 positions has half the rate of that over 4096 (arXiv 2307.08691, figures 4 and 5).
_LONG_SEQUENCE = 1024
_SHORTEST_SEQUENCE_SHARE = 0.25
_MIN_CHAIN_KERNELS = 3
_MIN_CHAIN_SHARE = 0.03
# Traffic that a rule of its own judges: PD303, PD304, PD302, PD305, PD306.
_JUDGED_TRAFFIC = (
    traffic_kinds.OPTIMIZER,
    traffic_kinds.ZEROING,
    traffic_kinds.LAYOUT,
    traffic_kinds.WEIGHT_CAST,
    traffic_kinds.COPY,
)
_LARGE_ENOUGH_FOR_MEMORY = 5e7  # bytes: what exceeds the L2 of any device in the table but the newest
_MIN_REFERENCE_NS = 50_000


class SlowKind(NamedTuple):
    """Launches of one kernel on the same inputs.

    Attributes:
        kind: Row of `KernelCosts.kinds`.
        row: One of the launches, a row of `Trace.gpu`.
        launches: Launches in the window.
        median_ns: Their median time.
        family: One of FAMILIES.
        roof_share: The share of their roof that they reach.
        reach: The share that comparable kernels reach.
        memory_binds: Whether memory rather than maths is that roof.
        expected_ns: What comparable kernels would take for the same work, of one launch.
    """

    kind: int
    row: int
    launches: int
    median_ns: float
    family: str
    roof_share: float
    reach: float
    memory_binds: bool
    expected_ns: float

    @property
    def time_ns(self) -> float:
        """The time of the launches, as if each took the median."""
        return self.launches * self.median_ns

    @property
    def excess_ns(self) -> float:
        """The time above what comparable kernels would take."""
        return max(self.time_ns - self.launches * self.expected_ns, 0.0)


@frozen_dataclass(eq=False)
class SlowFamily:
    """The slow kernels of one family.

    Attributes:
        family: One of FAMILIES.
        kinds: The slow kinds, the most excess first.
        mask: For each GPU item whether it is one of their launches.
        after_ns: How long each of these takes at what comparable kernels reach.
        family_time_ns: The time of all kernels of the family in the window.
    """

    family: str
    kinds: tuple[SlowKind, ...]
    mask: BoolArray
    after_ns: FloatArray
    family_time_ns: float

    @property
    def excess_ns(self) -> float:
        """The time above what comparable kernels would take, in the window."""
        return sum(kind.excess_ns for kind in self.kinds)

    @property
    def roof_share(self) -> float:
        """The share of the roof that the slow kernels reach on the whole."""
        time_ns = sum(kind.time_ns for kind in self.kinds)
        return sum(kind.roof_share * kind.time_ns for kind in self.kinds) / max(time_ns, 1.0)

    @property
    def reach(self) -> float:
        """The share that comparable kernels reach, weighted by time."""
        time_ns = sum(kind.time_ns for kind in self.kinds)
        return sum(kind.reach * kind.time_ns for kind in self.kinds) / max(time_ns, 1.0)


def find_slow_families(
    rank: Rank, max_of_reach: float, min_kernel_ns: float, min_excess_ns: float
) -> Iterator[SlowFamily]:
    """The families with slow kernels that no other rule judges, in the order of FAMILIES.

    Args:
        rank: The rank.
        max_of_reach: From this share (0 to 1) on of what comparable kernels reach a kernel is not slow.
        min_kernel_ns: Shorter kernels are left to the rules about latency.
        min_excess_ns: The least time in the window above what comparable kernels take, of a family.
    """
    kinds = _keep_large(_judge_kinds(rank, max_of_reach, min_kernel_ns), min_excess_ns)
    if not kinds:  # most traces: what other rules judge need not be found
        return
    judged = _match_judged_elsewhere(rank)
    kinds = _keep_large([kind for kind in kinds if not judged[kind.row]], min_excess_ns)
    gpu, kind_of_row = rank.trace.gpu, rank.kernel_costs.kind
    families = _families_of_kinds(rank)
    time_ns = np.bincount(kind_of_row[rank.in_window], weights=gpu.dur_ns[rank.in_window], minlength=len(families))
    for family in FAMILIES:
        slow = sorted((kind for kind in kinds if kind.family == family), key=lambda k: (-k.excess_ns, k.kind))
        if not slow:
            continue
        expected_ns = np.full(len(families), np.nan)
        expected_ns[[kind.kind for kind in slow]] = [kind.expected_ns for kind in slow]
        rows = ~np.isnan(expected_ns[kind_of_row]) & rank.in_window & (gpu.kind == KERNEL)
        of_family = float(time_ns[[name == family for name in families]].sum())
        yield SlowFamily(family, tuple(slow), rows, expected_ns[kind_of_row[rows]], of_family)


def _keep_large(kinds: Iterable[SlowKind], min_excess_ns: float) -> list[SlowKind]:
    """The kinds of those families whose excess is large enough."""
    kinds = list(kinds)
    excess_ns = {family: sum(kind.excess_ns for kind in kinds if kind.family == family) for family in FAMILIES}
    return [kind for kind in kinds if excess_ns[kind.family] >= min_excess_ns]


def _judge_kinds(rank: Rank, max_of_reach: float, min_kernel_ns: float) -> Iterator[SlowKind]:
    """The kinds of launches that are slow; one that other rules judge may be among them."""
    gpu, costs = rank.trace.gpu, rank.kernel_costs
    device = device_of(rank)
    roof_ns, memory_binds = _roofs(rank, device)
    rows = np.flatnonzero(rank.in_window & (gpu.kind == KERNEL) & (roof_ns > 0))
    # By kind, and within it by duration: the median is in the middle.
    rows = rows[np.lexsort((gpu.dur_ns[rows], costs.kind[rows]))]
    kind, size = costs.kind[rows], len(costs.kinds)
    count, time_ns = np.bincount(kind, minlength=size), np.bincount(kind, weights=gpu.dur_ns[rows], minlength=size)
    middle = np.cumsum(count) - count + np.maximum(count - 1, 0) // 2
    families = _families_of_kinds(rank)
    floor_ns = _LAUNCH_AND_TAIL * rank.bounds.shortest_kernel_ns
    for index in np.flatnonzero((count > 0) & (time_ns >= _MIN_KIND_SHARE * rank.window_ns)).tolist():
        row = int(rows[middle[index]])
        median_ns, each_ns, is_memory = float(gpu.dur_ns[row]), float(roof_ns[row]), bool(memory_binds[row])
        if median_ns < min_kernel_ns:
            continue
        family = families[index]
        reach = _reach_of(rank, device, row, family, is_memory, each_ns)
        if reach is None or not reach > 0:
            continue
        expected_ns = each_ns / reach + floor_ns
        if expected_ns < max_of_reach * median_ns:
            share = each_ns / median_ns
            yield SlowKind(index, row, int(count[index]), median_ns, family, share, reach, is_memory, expected_ns)


def device_of(rank: Rank) -> Device | None:
    """The device, or one with the lowest figures of all that it can be by its kernels; None where nothing tells."""
    return rank.device or find_lowest_device(rank.kernel_classes)


def _roofs(rank: Rank, device: Device | None) -> tuple[FloatArray, BoolArray]:
    """For each GPU item its time at the peaks (NaN where unknown), and whether memory is its roof.

    On a device without peaks the fastest kernel that only moves data, by its recorded inputs, stands for the bandwidth.
    """
    costs, verdicts = rank.kernel_costs, rank.verdicts
    if rank.device is not None:
        return rank.bounds.time_at_peak, rank.bounds.nearest_roof == BANDWIDTH
    moving = costs.match_rows("memory")
    if device is not None and device.memory_bandwidth_bytes_per_s:
        rates = np.array([(device.matrix_peak_flops(name) if name else None) or np.nan for name in verdicts.operands])
        rate = np.where(verdicts.match_rows("yes"), rates[verdicts.operand[costs.kind]], np.nan)
        maths_ns = np.where(moving, 0.0, costs.flops / rate * 1e9)
        memory_ns = costs.bytes / device.memory_bandwidth_bytes_per_s * 1e9
        return np.maximum(maths_ns, memory_ns), memory_ns > maths_ns
    dur_ns = rank.trace.gpu.dur_ns
    with np.errstate(invalid="ignore"):
        certain = moving & (costs.bytes >= _LARGE_ENOUGH_FOR_MEMORY) & (dur_ns >= _MIN_REFERENCE_NS) & rank.in_window
    if not certain.any():
        return np.full(len(dur_ns), np.nan), moving
    bytes_per_ns = float(np.max(costs.bytes[certain] / dur_ns[certain]))
    return np.where(certain, costs.bytes, np.nan) / bytes_per_ns, moving


def _families_of_kinds(rank: Rank) -> list[str]:
    """The family of each row of `KernelCosts.kinds`: by the op that was computed, else by the kernel's name."""
    costs = rank.kernel_costs
    op_kinds = [*(cost.kind for cost in costs.op_costs), ""]
    by_name = {code: kernel.category for code, kernel in rank.kernel_classes.by_name.items()}
    families = []
    for name, op_cost in zip(costs.kinds.name.tolist(), costs.kinds.op_cost.tolist(), strict=True):
        category, op_kind = str(by_name.get(name, "other")), op_kinds[op_cost]
        family = op_kind if op_kind in ("gemm", "convolution", "attention") else category
        families.append(family if family in FAMILIES else "other")
    return families


def _reach_of(
    rank: Rank, device: Device | None, row: int, family: str, memory_binds: bool, roof_ns: float
) -> float | None:
    """What comparable kernels reach of their roof; None where nothing comparable is known."""
    if device is None:
        return 1.0  # the roof is a kernel of this trace
    generation = name_generation(device.compute_capability, device.gfx_arch)
    cost = rank.kernel_costs.op_costs[int(rank.kernel_costs.op_cost[row])]
    if family == "attention":
        return _reach_of_attention(rank, device, row, cost, roof_ns, generation)
    if family == "convolution" or (family == "gemm" and not memory_binds):
        return _reach_of_products(rank, device, row, family, roof_ns, generation)
    found = find_reach(family, _variant_of(rank, row, family), generation)
    return None if found is None else found.expected


def _reach_of_attention(
    rank: Rank, device: Device, row: int, cost: OpCost, roof_ns: float, generation: str
) -> float | None:
    """What comparable attention reaches: by its products, or by its traffic where few queries or keys leave no maths.

    Both need their time, and the longer one decides. Short sequences fill tiles and multiprocessors less.
    """
    operand = rank.verdicts.operands[int(rank.verdicts.operand[rank.kernel_costs.kind[row]])]
    rate = device.matrix_peak_flops(operand) if operand else None
    moving = find_reach("attention", "bandwidth", generation)
    direction = "backward" if "backward" in name_of_op(rank, row) else "causal" if cost.causal else "forward"
    multiplying = find_reach("attention", direction, generation)
    shorter = min(cost.queries or 0, cost.keys or 0)
    if rate is None or moving is None or multiplying is None or not shorter:
        return None
    if shorter <= _FEW_POSITIONS:
        return moving.expected
    of_maths = multiplying.expected
    if shorter < _LONG_SEQUENCE:
        of_maths = multiplying.low * max(shorter / _LONG_SEQUENCE, _SHORTEST_SEQUENCE_SHARE)
    maths_ns = float(rank.kernel_costs.flops[row]) / rate * 1e9
    return roof_ns / max(maths_ns / of_maths, roof_ns / moving.high)


def _reach_of_products(
    rank: Rank, device: Device, row: int, family: str, roof_ns: float, generation: str
) -> float | None:
    """What recorded products of the same unit and size reach, at most what the device's large products do."""
    verdicts = rank.verdicts
    operand = verdicts.operands[int(verdicts.operand[rank.kernel_costs.kind[row]])]
    if not operand:
        return None
    on_matrix_unit = bool(verdicts.match_rows("yes")[row])
    unit = device.matrix_peak_type(operand) if on_matrix_unit else "fp64" if operand == "fp64" else "fp32"
    usual = float(efficiencies_of("gemm", unit, np.array([roof_ns]), generation)[0, 1])
    if family == "convolution":
        usual = min(usual, float(efficiencies_of("convolution", unit, np.array([roof_ns]), generation)[0, 1]))
    return float(np.fmin(usual, device.achievable_gemm_fraction or 1.0))


def _variant_of(rank: Rank, row: int, family: str) -> str:
    """What tells a kernel apart from others of its family in the table of comparable ones."""
    op = name_of_op(rank, row)
    if family == "gemm":
        return "bandwidth"
    if family != "norm":
        return ANY_KERNEL
    if "batch_norm" in op:
        return "batch"
    if "backward" in op:
        return "backward"
    return "short rows" if (row_bytes(rank, row) or 0) < _SHORT_ROW_BYTES else "long rows"


def name_of_op(rank: Rank, row: int) -> str:
    """The op that launched a GPU item; "" where none is known."""
    op = int(rank.trace.gpu.op[row])
    return rank.trace.strings[int(rank.trace.ops.name[op])] if op >= 0 else ""


def tensors_of(rank: Rank, row: int) -> tuple[TensorInput, ...]:
    """The recorded inputs of the op that launched a GPU item, those with elements; empty where not recorded."""
    ops, op = rank.trace.ops, int(rank.trace.gpu.op[row])
    texts = [rank.trace.text(int(column[op])) for column in (ops.dims, ops.types, ops.strides)] if op >= 0 else []
    if not texts or texts[0] is None or texts[1] is None:
        return ()
    try:
        recorded = RecordedInputs.parse(texts[0], texts[1], texts[2], None)
        return tuple(recorded.tensor(i) for i in range(len(recorded.sizes)) if recorded.has_elements(i))
    except UnusableInputsError:
        return ()


def row_bytes(rank: Rank, row: int) -> int | None:
    """Bytes of the last dimension of an op's largest input: what a norm or softmax reduces; None where unknown."""
    tensors = tensors_of(rank, row)
    if not tensors:
        return None
    largest = max(tensors, key=lambda tensor: tensor.bytes)
    return largest.sizes[-1] * largest.item_bytes if largest.sizes else None


def _match_judged_elsewhere(rank: Rank) -> BoolArray:
    """For each GPU item whether another rule judges it: the same time is not claimed twice."""
    classes = rank.kernel_classes
    judged: BoolArray = np.isin(rank.traffic.kind, _JUDGED_TRAFFIC)
    judged |= classes.match_rows(lambda k: k.depthwise) | rank.verdicts.slow_path
    judged |= _match_misaligned(rank)
    for category in ("gemm", "convolution"):
        for missed in find_missed_kernels(rank, "gemm" if category == "gemm" else "convolution"):
            judged |= missed.kernels.mask | missed.helpers.mask
    judged |= find_fused_float32(rank).mask
    attentions = find_attentions(rank)
    if len(attentions):
        judged |= attention_of_items(rank, attentions) >= 0
    judged[_rows_of_chains(rank)] = True
    return judged


def _match_misaligned(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a product of AMD's with a misaligned dimension, as PD202 finds them by shapes."""
    costs, strings = rank.kernel_costs, rank.trace.strings
    if rank.hardware.vendor != "amd":
        return np.zeros(len(rank.trace.gpu), bool)
    pairs = zip(costs.kinds.op_cost.tolist(), costs.kinds.name.tolist(), strict=True)
    found = [op >= 0 and bool(misaligned_dimensions(costs.op_costs[op], strings[name])) for op, name in pairs]
    result: BoolArray = np.array(found, bool)[costs.kind] & costs.is_main_kernel
    return result


def _rows_of_chains(rank: Rank) -> Int64Array:
    """The kernels of chains that PD301 would fuse; none where the chains are not worth its finding."""
    chains = find_chains(rank, _MIN_CHAIN_KERNELS)
    saved_ns = rank.per_step(round(float(chains.max_saving_ns.sum())))
    worth = chains.count > 0 and (rank.share(saved_ns) or 0) >= _MIN_CHAIN_SHARE
    return chains.rows if worth else np.empty(0, np.int64)
