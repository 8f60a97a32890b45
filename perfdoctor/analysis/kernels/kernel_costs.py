"""FLOPs and bytes of each kernel: those of the op that launched it, attributed to the op's main kernel.

Several kernels can share one op. The FLOPs belong to the kernel that did the maths: the longest one with a verdict
about Tensor Cores. Helpers (split-K tails, layout copies) get none. Where the main kernel was launched several times,
as in a loop over images or groups, its launches share the FLOPs by their time. The two gradients of a convolution go
to the kernels that name them. The bytes of an op that only moves data are shared by all its kernels by time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.launching_ops import match_op_names
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.roofline.cost_of_op import cost_of_op, find_formula
from perfdoctor.gpu.roofline.op_cost import BACKWARD_PASSES, OpCost
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables.distinct import distinct_rows, occurring
from perfdoctor.trace.tables.model import KERNEL, Trace

# For a kernel that does not name the gradient that it computes.
_NO_PASS = -1
# How kernels of convolution libraries name the gradients (cuDNN and CUTLASS, MIOpen), in the order of BACKWARD_PASSES.
_PASS_WORDS = (
    ("dgrad", "bwd_data", "bwddata", "igemm_bwd", "bwd_gtc"),
    ("wgrad", "wrw", "bwd_weight", "bwdwrw", "bwd_w"),
)
# Batch norms that read their input once move this share of the traffic that the op's formula counts.
_SINGLE_READ = {"bn_fw": 2 / 3, "bn_bw": 3 / 5}


@frozen_dataclass(eq=False)
class CostKinds:
    """The distinct kinds of GPU item, by kernel name, op cost and pass; arrays of one length.

    Facts that do not depend on the launch are determined once for each kind.

    Attributes:
        name: Code of the kernel's name in `Trace.strings`.
        op_cost: Index into `KernelCosts.op_costs`, -1 where unknown.
        part: 0 for the whole op, 1 + index into BACKWARD_PASSES for one gradient of a convolution.
        flops: Of the whole pass, however many launches share it; NaN where unknown.
        bytes: The same in bytes.
    """

    name: Int32Array
    op_cost: Int32Array
    part: Int64Array
    flops: FloatArray
    bytes: FloatArray

    def __len__(self) -> int:
        return len(self.name)


@frozen_dataclass(eq=False)
class KernelCosts:
    """FLOPs and bytes of each GPU item.

    Attributes:
        op_costs: The distinct costs of the trace's ops.
        op_cost: For each GPU item the index into `op_costs` of its op's cost, -1 where unknown; helpers have it, too.
        kinds: The distinct kinds of GPU item.
        kind: For each GPU item its row in `kinds`.
        cost_fraction: For each GPU item the fraction (0 to 1) of its kind's cost that it pays; NaN for helpers.
    """

    op_costs: tuple[OpCost, ...]
    op_cost: Int32Array
    kinds: CostKinds
    kind: Int64Array
    cost_fraction: FloatArray

    @cached_property
    def is_main_kernel(self) -> BoolArray:
        """For each GPU item whether its op's cost was attributed to it, alone or with other launches."""
        result: BoolArray = ~np.isnan(self.cost_fraction)
        return result

    @cached_property
    def flops(self) -> FloatArray:
        """FLOPs of each GPU item; NaN where unknown, and for helpers."""
        result: FloatArray = self.kinds.flops[self.kind] * self.cost_fraction
        return result

    @cached_property
    def bytes(self) -> FloatArray:
        """Compulsory bytes of each GPU item; NaN where unknown, and for helpers of matrix maths."""
        result: FloatArray = self.kinds.bytes[self.kind] * self.cost_fraction
        return result

    def match_op_costs(self, test: Callable[[OpCost], bool]) -> BoolArray:
        """For each of `op_costs` whether it passes the test; a last False, which index -1 finds."""
        return _match_costs(self.op_costs, test)

    def match_kinds(self, *families: str) -> BoolArray:
        """For each row of `kinds` whether its op belongs to one of these families (`OpCost.kind`)."""
        result: BoolArray = self.match_op_costs(lambda cost: cost.kind in families)[self.kinds.op_cost]
        return result

    def match_rows(self, *families: str) -> BoolArray:
        """For each GPU item whether it is the main kernel of an op of one of these families (`OpCost.kind`)."""
        result: BoolArray = self.is_main_kernel & self.match_kinds(*families)[self.kind]
        return result


def kernel_costs_of(trace: Trace, classes: KernelClasses) -> KernelCosts:
    """The FLOPs and bytes of each GPU item of a trace.

    They are known where the trace has the input shapes of ops.
    """
    gpu = trace.gpu
    op_cost, op_costs = _op_costs(trace)
    kind, first = distinct_rows((gpu.name, op_cost), max(len(trace.strings), len(op_costs)))
    names, costs = gpu.name[first], op_cost[first]
    only_moves = _match_costs(op_costs, lambda cost: cost.kind == "memory")[costs]
    does_maths = classes.match_names(lambda kernel: kernel.tensor_core != "na")[names]
    moves_data = classes.match_names(lambda kernel: kernel.category != "communication")[names]
    pays = (costs >= 0) & np.where(only_moves, moves_data, does_maths)
    has_passes = pays & _match_costs(op_costs, lambda cost: len(cost.backward_passes) > 1)[costs]
    fraction = np.full(len(gpu), np.nan)
    rows = np.flatnonzero((pays & ~has_passes)[kind])
    op = gpu.op[rows]
    alone = np.bincount(op, minlength=1)[op] == 1
    fraction[rows[alone]] = 1.0
    sharing = rows[~alone]
    moving = only_moves[kind[sharing]]
    _split_by_time(trace, sharing[moving], fraction)
    _split_among_main(trace, sharing[~moving], gpu.op[sharing[~moving]], fraction)
    part = np.zeros(len(first), np.int64)
    if has_passes.any():
        rows = np.flatnonzero(has_passes[kind])
        gradient = _gradient_passes(trace, rows)
        rows, gradient = rows[gradient != _NO_PASS], gradient[gradient != _NO_PASS]
        _split_among_main(trace, rows, gpu.op[rows].astype(np.int64) * len(BACKWARD_PASSES) + gradient, fraction)
        # Each gradient becomes a separate kind, after all others.
        number = len(first) + len(BACKWARD_PASSES) * (np.cumsum(has_passes) - 1)
        kind[rows] = number[kind[rows]] + gradient
        twice = np.repeat(np.flatnonzero(has_passes), len(BACKWARD_PASSES))
        names, costs = np.concatenate((names, names[twice])), np.concatenate((costs, costs[twice]))
        part = np.concatenate((part, np.tile(np.arange(len(BACKWARD_PASSES)) + 1, int(has_passes.sum()))))
    return KernelCosts(op_costs, op_cost, _cost_kinds(trace, names, costs, part, op_costs), kind, fraction)


def _match_costs(op_costs: tuple[OpCost, ...], test: Callable[[OpCost], bool]) -> BoolArray:
    """For each cost whether it passes the test; a last False, which index -1 finds."""
    return np.array([*(test(cost) for cost in op_costs), False], bool)


def _op_costs(trace: Trace) -> tuple[Int32Array, tuple[OpCost, ...]]:
    """For each GPU item the index of its op's cost (-1 where the op has none), and the distinct costs."""
    gpu, ops = trace.gpu, trace.ops
    op_cost = np.full(len(gpu), -1, np.int32)
    has_formula = match_op_names(trace, lambda name: find_formula(name) is not None)
    rows = np.flatnonzero((gpu.op >= 0) & (gpu.kind == KERNEL))
    op = gpu.op[rows]
    countable = has_formula[ops.name[op]]
    if not countable.all():
        rows, op = rows[countable], op[countable]
    inputs = tuple(column[op] for column in (ops.name, ops.dims, ops.types, ops.strides, ops.concrete))
    which, first = distinct_rows(inputs, len(trace.strings))
    number: dict[OpCost, int] = {}
    index = np.full(len(first), -1, np.int32)
    for i, codes in enumerate(zip(*(column[first].tolist() for column in inputs), strict=True)):
        cost = cost_of_op(trace.strings[codes[0]], *(trace.text(code) for code in codes[1:]))
        if cost is not None:
            index[i] = number.setdefault(cost, len(number))
    op_cost[rows] = index[which]
    return op_cost, tuple(number)


def _cost_kinds(
    trace: Trace, names: Int32Array, costs: Int32Array, part: Int64Array, op_costs: tuple[OpCost, ...]
) -> CostKinds:
    """Kinds with their FLOPs and bytes; `part` is 0 for the whole op, then 1 and 2 for its BACKWARD_PASSES."""
    flops, moved = _flops_and_bytes(op_costs)
    single_read = np.array([_single_read_share(trace.strings[name]) for name in names.tolist()], np.float64)
    return CostKinds(names, costs, part, flops[costs, part], moved[costs, part] * single_read)


def _split_by_time(trace: Trace, rows: Int64Array, fraction: FloatArray) -> None:
    """Attribute to each of the rows its share of its op's kernel time."""
    op, dur_ns = trace.gpu.op[rows], np.maximum(trace.gpu.end_ns[rows] - trace.gpu.start_ns[rows], 1)
    total_ns = np.bincount(op, weights=dur_ns, minlength=1)
    fraction[rows] = dur_ns / total_ns[op]


def _gradient_passes(trace: Trace, rows: Int64Array) -> Int8Array:
    """Which gradient of a convolution each kernel computes: index into BACKWARD_PASSES, or _NO_PASS if unknown.

    A kernel that does not name its gradient computes the other one if all kernels beside it name the same.
    """
    by_name = np.full(len(trace.strings), _NO_PASS, np.int8)
    for name in occurring(trace.gpu.name[rows]).tolist():
        text = trace.strings[name].lower()
        found = [i for i, words in enumerate(_PASS_WORDS) if any(word in text for word in words)]
        by_name[name] = found[0] if len(found) == 1 else _NO_PASS
    gradient = by_name[trace.gpu.name[rows]]
    op = trace.gpu.op[rows]
    named_in_op = [np.bincount(op[gradient == i], minlength=len(trace.ops)) > 0 for i in range(len(BACKWARD_PASSES))]
    for i in range(len(BACKWARD_PASSES)):
        gradient[(gradient == _NO_PASS) & named_in_op[1 - i][op] & ~named_in_op[i][op]] = i
    return gradient


def _split_among_main(trace: Trace, rows: Int64Array, group: IntArray, fraction: FloatArray) -> None:
    """Attribute the cost of each group of kernels (an op, or a gradient of one) to the launches of its main kernel."""
    if not len(rows):
        return
    gpu = trace.gpu
    dur_ns = np.maximum(gpu.end_ns[rows] - gpu.start_ns[rows], 1)
    order = np.lexsort((dur_ns, group))
    is_longest = np.append(group[order][1:] != group[order][:-1], True)  # of its group
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(is_longest) - is_longest
    main_name = gpu.name[rows[order[is_longest]]]
    is_main = gpu.name[rows] == main_name[number]
    rows, number, time_ns = rows[is_main], number[is_main], dur_ns[is_main].astype(np.float64)
    fraction[rows] = time_ns / np.bincount(number, weights=time_ns)[number]


def _flops_and_bytes(op_costs: tuple[OpCost, ...]) -> tuple[FloatArray, FloatArray]:
    """Two tables, a row for each cost: the whole op, dgrad, wgrad; a last row of NaN for unknown costs."""
    flops, moved = np.full((len(op_costs) + 1, 3), np.nan), np.full((len(op_costs) + 1, 3), np.nan)
    for i, cost in enumerate(op_costs):
        flops[i, 0], moved[i, 0] = cost.flops, cost.bytes
        for gradient in cost.backward_passes:
            column = BACKWARD_PASSES.index(gradient.name) + 1
            flops[i, column], moved[i, column] = gradient.flops, gradient.bytes
    return flops, moved


def _single_read_share(name: str) -> float:
    """The share of an op's bytes that a kernel moves: less than 1 for batch norms that read their input once."""
    if "singleread" not in name:
        return 1.0
    return next((share for word, share in _SINGLE_READ.items() if word in name), 1.0)
