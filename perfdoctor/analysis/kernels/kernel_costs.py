"""The work of each kernel: FLOPs and bytes of the op that launched it, given to the op's main kernel.

Several kernels can share one op. Its FLOPs belong to the kernel that did the maths: the longest with a verdict about
Tensor Cores; helpers (split-K tails, layout copies) get none. Where that kernel was launched several times, as in a
loop over images or groups, its launches share by their time. The two gradients of a convolution go to the kernels that
say so. Bytes of ops that only move data are shared by all their kernels by time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perfdoctor.gpu import KernelClass
from perfdoctor.gpu.roofline.cost_of_op import FORMULAS, cost_of_op
from perfdoctor.gpu.roofline.op_cost import BACKWARD_PASSES, OpCost
from perfdoctor.trace.arrays import NONE, BoolArray, FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables.distinct import distinct_rows, occurring
from perfdoctor.trace.tables.model import KERNEL, Trace

if TYPE_CHECKING:
    from perfdoctor.rank import Rank


WHOLE = -1  # an op that is one part
# How kernels of convolution libraries spell the gradients (cuDNN and CUTLASS, MIOpen).
_SIDES = (("dgrad", "bwd_data", "bwddata", "igemm_bwd", "bwd_gtc"), ("wgrad", "wrw", "bwd_weight", "bwdwrw", "bwd_w"))
# Batch norms that read their input once: share of the traffic that the op's formula counts.
_SINGLE_READ = {"bn_fw": 2 / 3, "bn_bw": 3 / 5}


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """The distinct kinds of GPU item, by kernel name, cost and part; arrays of one length.

    Attributes:
        name: String code of the name.
        cost: Index of the cost, -1 where unknown.
        flops, bytes: Of the whole part, however many launches share it; NaN where unknown.
    """

    name: Int32Array
    cost: Int32Array
    flops: FloatArray
    bytes: FloatArray

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, eq=False)
class Work:
    """FLOPs and bytes of each GPU item.

    Attributes:
        costs: The distinct costs of the trace's ops.
        cost: For each GPU item the index into `costs` of its op's cost, -1 where unknown; helpers have it, too.
        items: The distinct kinds of GPU item: facts that do not depend on a launch are worked out once for each.
        item: For each GPU item the row in `items`.
        share: Which part of the item's work the launch does; NaN where it got none.
    """

    costs: tuple[OpCost, ...]
    cost: Int32Array
    items: Items
    item: Int64Array
    share: FloatArray

    @cached_property
    def main(self) -> BoolArray:
        """For each GPU item whether it is the kernel that its op's work was given to (or shares it)."""
        result: BoolArray = ~np.isnan(self.share)
        return result

    @cached_property
    def flops(self) -> FloatArray:
        """FLOPs of each GPU item; NaN where unknown, and for helpers."""
        result: FloatArray = self.items.flops[self.item] * self.share
        return result

    @cached_property
    def bytes(self) -> FloatArray:
        """Compulsory bytes of each GPU item; NaN where unknown, and for helpers of matrix maths."""
        result: FloatArray = self.items.bytes[self.item] * self.share
        return result

    def kinds(self, *kinds: str) -> BoolArray:
        """For each row of `items` whether its op is of one of these kinds (`OpCost.kind`)."""
        result: BoolArray = _by_cost(self.costs, lambda cost: cost.kind in kinds)[self.items.cost]
        return result

    def rows_of(self, *kinds: str) -> BoolArray:
        """For each GPU item whether it is the main kernel of an op of one of these kinds (`OpCost.kind`)."""
        result: BoolArray = self.main & self.kinds(*kinds)[self.item]
        return result


def kernel_costs_of(run: Rank) -> Work:
    """The work of each GPU item of a rank."""
    trace = run.trace
    gpu = trace.gpu
    cost, costs = _costs(trace)
    item, first = distinct_rows((gpu.name, cost), max(len(trace.strings), len(costs)))
    names, kinds = gpu.name[first], cost[first]
    moves = _by_cost(costs, lambda c: c.kind == "memory")[kinds]
    computes = names_where(run, lambda k: k.tensor_core != "na")[names]
    moves_data = names_where(run, lambda k: k.category != "communication")[names]
    takes = (kinds >= 0) & np.where(moves, moves_data, computes)
    halved = takes & _by_cost(costs, lambda c: len(c.backward_passes) > 1)[kinds]
    share = np.full(len(gpu), np.nan)
    rows = np.flatnonzero((takes & ~halved)[item])
    op = gpu.op[rows]
    alone = np.bincount(op, minlength=1)[op] == 1
    share[rows[alone]] = 1.0
    shared = rows[~alone]
    moving = moves[item[shared]]
    _share_by_time(trace, shared[moving], share)
    _share_main(trace, shared[~moving], gpu.op[shared[~moving]], share)
    part = np.zeros(len(first), np.int64)
    if halved.any():
        rows = np.flatnonzero(halved[item])
        side = _sides(trace, rows)
        rows, side = rows[side != WHOLE], side[side != WHOLE]
        _share_main(trace, rows, gpu.op[rows].astype(np.int64) * len(BACKWARD_PASSES) + side, share)
        # Either gradient is an item of its own, behind all others.
        number = len(first) + len(BACKWARD_PASSES) * (np.cumsum(halved) - 1)
        item[rows] = number[item[rows]] + side
        twice = np.repeat(np.flatnonzero(halved), len(BACKWARD_PASSES))
        names, kinds = np.concatenate((names, names[twice])), np.concatenate((kinds, kinds[twice]))
        part = np.concatenate((part, np.tile(np.arange(len(BACKWARD_PASSES)) + 1, int(halved.sum()))))
    return Work(costs, cost, _items(trace, names, kinds, part, costs), item, share)


def _by_cost(costs: tuple[OpCost, ...], test: Callable[[OpCost], bool]) -> BoolArray:
    """For each cost whether the test holds; a last False, for index -1."""
    return np.array([*(test(cost) for cost in costs), False], bool)


def names_where(run: Rank, test: Callable[[KernelClass], bool]) -> BoolArray:
    """For each string of the trace whether it is the name of a kernel that passes."""
    hits = np.zeros(len(run.trace.strings), bool)
    hits[[code for code, kernel in run.kernel_classes.items() if test(kernel)]] = True
    return hits


def ops_where(trace: Trace, test: Callable[[str], bool]) -> BoolArray:
    """For each string of the trace whether it is the name of an op that passes."""
    hits = np.zeros(len(trace.strings), bool)
    hits[[code for code in trace.name_ids(trace.ops) if test(trace.strings[code])]] = True
    return hits


def op_names(trace: Trace) -> Int32Array:
    """For each GPU item the code of the name of the op that launched it, or -1."""
    return np.append(trace.ops.name, np.int32(NONE))[trace.gpu.op]


def _costs(trace: Trace) -> tuple[Int32Array, tuple[OpCost, ...]]:
    """For each GPU item an index of its op's cost, and the distinct costs; -1 where the op has none."""
    gpu, ops = trace.gpu, trace.ops
    cost = np.full(len(gpu), -1, np.int32)
    priced = ops_where(trace, FORMULAS.__contains__)
    rows = np.flatnonzero((gpu.op >= 0) & (gpu.kind == KERNEL))
    at = gpu.op[rows]
    keep = priced[ops.name[at]]
    if not keep.all():
        rows, at = rows[keep], at[keep]
    columns = tuple(column[at] for column in (ops.name, ops.dims, ops.types, ops.strides, ops.concrete))
    which, first = distinct_rows(columns, len(trace.strings))
    found: dict[OpCost, int] = {}
    index = np.full(len(first), -1, np.int32)
    for i, codes in enumerate(zip(*(column[first].tolist() for column in columns), strict=True)):
        answer = cost_of_op(trace.strings[codes[0]], *(trace.text(code) for code in codes[1:]))
        if answer is not None:
            index[i] = found.setdefault(answer, len(found))
    cost[rows] = index[which]
    return cost, tuple(found)


def _items(trace: Trace, names: Int32Array, kinds: Int32Array, part: Int64Array, costs: tuple[OpCost, ...]) -> Items:
    """Names, costs and parts (0 the whole, then BACKWARD_PASSES) with their FLOPs and bytes."""
    flops, moved = _tables(costs)
    single = np.array([_single_read(trace.strings[code]) for code in names.tolist()], np.float64)
    return Items(names, kinds, flops[kinds, part], moved[kinds, part] * single)


def _share_by_time(trace: Trace, rows: Int64Array, share: FloatArray) -> None:
    """Give each of the rows its part of its op's kernel time."""
    op, dur = trace.gpu.op[rows], np.maximum(trace.gpu.end_ns[rows] - trace.gpu.start_ns[rows], 1)
    whole = np.bincount(op, weights=dur, minlength=1)
    share[rows] = dur / whole[op]


def _sides(trace: Trace, rows: Int64Array) -> Int8Array:
    """Which gradient of a convolution each kernel computes: index into BACKWARD_PASSES; WHOLE if that is unknown.

    A kernel that does not say computes the other one if all its companions say the same.
    """
    table = np.full(len(trace.strings), WHOLE, np.int8)
    for code in occurring(trace.gpu.name[rows], len(table)).tolist():
        text = trace.strings[code].lower()
        said = [i for i, needles in enumerate(_SIDES) if any(needle in text for needle in needles)]
        table[code] = said[0] if len(said) == 1 else WHOLE
    side = table[trace.gpu.name[rows]]
    op = trace.gpu.op[rows]
    said_by_op = [np.bincount(op[side == i], minlength=len(trace.ops)) > 0 for i in range(len(BACKWARD_PASSES))]
    for i in range(len(BACKWARD_PASSES)):
        side[(side == WHOLE) & said_by_op[1 - i][op] & ~said_by_op[i][op]] = i
    return side


def _share_main(trace: Trace, rows: Int64Array, key: npt.NDArray[np.signedinteger[Any]], share: FloatArray) -> None:
    """Give the work of each op (each gradient: each key) to the launches of its main kernel."""
    if not len(rows):
        return
    gpu = trace.gpu
    dur = np.maximum(gpu.end_ns[rows] - gpu.start_ns[rows], 1)
    order = np.lexsort((dur, key))
    last = np.append(key[order][1:] != key[order][:-1], True)
    group = np.empty(len(rows), np.int64)
    group[order] = np.cumsum(last) - last
    main_name = gpu.name[rows[order[last]]]
    chosen = gpu.name[rows] == main_name[group]
    rows, group, time = rows[chosen], group[chosen], dur[chosen].astype(np.float64)
    share[rows] = time / np.bincount(group, weights=time)[group]


def _tables(costs: tuple[OpCost, ...]) -> tuple[FloatArray, FloatArray]:
    """FLOPs and bytes by cost and part: the whole, dgrad, wgrad; a last row of nothing for unknown costs."""
    flops, moved = np.full((len(costs) + 1, 3), np.nan), np.full((len(costs) + 1, 3), np.nan)
    for i, cost in enumerate(costs):
        flops[i, 0], moved[i, 0] = cost.flops, cost.bytes
        for part in cost.backward_passes:
            column = BACKWARD_PASSES.index(part.name) + 1
            flops[i, column], moved[i, column] = part.flops, part.bytes
    return flops, moved


def _single_read(name: str) -> float:
    """The share of an op's bytes that a kernel moves: less than all for batch norms that read once."""
    if "singleread" not in name:
        return 1.0
    return next((part for word, part in _SINGLE_READ.items() if word in name), 1.0)
