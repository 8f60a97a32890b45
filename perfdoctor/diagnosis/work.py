"""The work of each kernel: FLOPs and bytes of the op that launched it, given to the op's main kernel.

Several kernels can share one op. Its FLOPs belong to the kernel that did the maths: the longest with a verdict about
Tensor Cores; helpers (split-K tails, layout copies) get none. Where that kernel was launched several times, as in a
loop over images or groups, its launches share by their time. The two gradients of a convolution go to the kernels that
say so. Bytes of ops that only move data are shared by all their kernels by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from perfdoctor.gpu.op_cost import PASSES
from perfdoctor.gpu.roofline import FORMULAS, OpCost, cost_of_op
from perfdoctor.trace.intervals import Int64Array
from perfdoctor.trace.model import KERNEL, BoolArray, Int8Array, Int32Array, Trace

if TYPE_CHECKING:
    from perfdoctor.diagnosis.run import RankRun

FloatArray: TypeAlias = npt.NDArray[np.float64]

WHOLE = -1  # an op that is one part
# How kernels of convolution libraries spell the gradients (cuDNN and CUTLASS, MIOpen).
_SIDES = (("dgrad", "bwd_data", "bwddata", "igemm_bwd", "bwd_gtc"), ("wgrad", "wrw", "bwd_weight", "bwdwrw", "bwd_w"))
# Batch norms that read their input once: share of the traffic that the op's formula counts.
_SINGLE_READ = {"bn_fw": 2 / 3, "bn_bw": 3 / 5}


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """FLOPs and bytes of each GPU item.

    Attributes:
        costs: The distinct costs of the trace's ops.
        cost: For each GPU item the index into `costs` of its op's cost, -1 where unknown; helpers have it, too.
        main: Whether it is the kernel that its op's work was given to (or shares it).
        flops: FLOPs of the launch; NaN where unknown, and for helpers.
        bytes: Compulsory bytes of the launch; NaN likewise.
    """

    costs: tuple[OpCost, ...]
    cost: Int32Array
    main: BoolArray
    flops: FloatArray
    bytes: FloatArray

    def cost_at(self, row: int) -> OpCost | None:
        """The cost of the op that launched a GPU item; None where unknown."""
        index = int(self.cost[row])
        return self.costs[index] if index >= 0 else None

    def rows_of(self, *kinds: str) -> BoolArray:
        """For each GPU item whether it is the main kernel of an op of one of these kinds (`OpCost.kind`)."""
        hits = np.array([*(cost.kind in kinds for cost in self.costs), False], bool)
        result: BoolArray = self.main & hits[self.cost]
        return result


def work_of(run: RankRun) -> Work:
    """The work of each GPU item of a rank."""
    trace = run.trace
    gpu = trace.gpu
    cost, costs = _costs(trace)
    share = np.full(len(gpu), np.nan)
    side = np.full(len(gpu), WHOLE, np.int8)
    kinds = np.array([*(c.kind == "memory" for c in costs), False], bool)
    two = np.array([*(len(c.passes) > 1 for c in costs), False], bool)
    memory = (cost >= 0) & kinds[cost]
    maths = (cost >= 0) & ~kinds[cost] & run.kernels_where(lambda k: k.tensor_core != "na")
    memory &= run.kernels_where(lambda k: k.category != "communication")
    _share_by_time(trace, memory, share)
    halves = maths & two[cost]
    side[halves] = _sides(trace, np.flatnonzero(halves))
    _share_main(trace, np.flatnonzero(maths & ~(halves & (side == WHOLE))), side, share)
    flops, moved = _tables(costs)
    part = cost.astype(np.int64) * 3 + side + 1
    single = _single_reads(trace)
    return Work(
        costs=costs,
        cost=cost,
        main=~np.isnan(share),
        flops=np.where(cost >= 0, flops[part] * share, np.nan),
        bytes=np.where(cost >= 0, moved[part] * share * single[gpu.name], np.nan),
    )


def _costs(trace: Trace) -> tuple[Int32Array, tuple[OpCost, ...]]:
    """For each GPU item an index of its op's cost, and the distinct costs; -1 where the op has none."""
    gpu, ops = trace.gpu, trace.ops
    cost = np.full(len(gpu), -1, np.int32)
    priced = np.zeros(len(trace.strings), bool)
    priced[[code for code in np.unique(ops.name).tolist() if trace.strings[code] in FORMULAS]] = True
    rows = np.flatnonzero((gpu.op >= 0) & (gpu.kind == KERNEL))
    at = gpu.op[rows]
    keep = priced[ops.name[at]] & (ops.dims[at] >= 0)
    rows, at = rows[keep], at[keep]
    columns = (ops.name[at], ops.dims[at], ops.types[at], ops.strides[at], ops.concrete[at])
    which, first = distinct_rows(columns)
    found: dict[OpCost, int] = {}
    index = np.full(len(first), -1, np.int32)
    for i, codes in enumerate(zip(*(column[first].tolist() for column in columns), strict=True)):
        answer = cost_of_op(trace.strings[codes[0]], *(trace.text(code) for code in codes[1:]))
        if answer is not None:
            index[i] = found.setdefault(answer, len(found))
    cost[rows] = index[which]
    return cost, tuple(found)


def distinct_rows(columns: Sequence[Int32Array]) -> tuple[Int64Array, Int64Array]:
    """Number the distinct combinations of several columns of codes (-1 is a code, too).

    Tables instead of sorting: a million rows have a few thousand combinations, and sorting them takes ten times as
    long.

    Returns:
        For each row the number of its combination, and for each combination one row that has it.
    """
    count = len(columns[0])
    which = np.zeros(count, np.int64)
    size = 1
    for column in columns:
        codes, distinct = _dense(column.astype(np.int64) + 1)
        which, size = _dense(which * distinct + codes)
    first = np.zeros(size if count else 0, np.int64)
    first[which[::-1]] = np.arange(count - 1, -1, -1)
    return which, first


def _dense(keys: Int64Array) -> tuple[Int64Array, int]:
    """The keys numbered without gaps, and how many there are."""
    if not len(keys):
        return keys, 1
    most = int(keys.max())
    if most > max(4 * len(keys), 1 << 24):
        distinct, dense = np.unique(keys, return_inverse=True)
        return dense.astype(np.int64), len(distinct)
    there = np.zeros(most + 1, np.int64)
    there[keys] = 1
    number = np.cumsum(there) - 1
    return number[keys], int(number[-1]) + 1


def _share_by_time(trace: Trace, rows: BoolArray, share: FloatArray) -> None:
    """Give each of the rows its part of its op's kernel time."""
    at = np.flatnonzero(rows)
    op, dur = trace.gpu.op[at], np.maximum(trace.gpu.dur_ns[at], 1).astype(np.float64)
    whole = np.bincount(op, weights=dur, minlength=1)
    share[at] = dur / whole[op]


def _sides(trace: Trace, rows: Int64Array) -> Int8Array:
    """Which gradient of a convolution each kernel computes: index into PASSES, or WHOLE if that cannot be told.

    A kernel that does not say computes the other one if all its companions say the same.
    """
    table = np.full(len(trace.strings), WHOLE, np.int8)
    for code in np.unique(trace.gpu.name[rows]).tolist():
        text = trace.strings[code].lower()
        said = [i for i, needles in enumerate(_SIDES) if any(needle in text for needle in needles)]
        table[code] = said[0] if len(said) == 1 else WHOLE
    side = table[trace.gpu.name[rows]]
    op = trace.gpu.op[rows]
    said_by_op = [np.bincount(op[side == i], minlength=len(trace.ops)) > 0 for i in range(len(PASSES))]
    for i in range(len(PASSES)):
        side[(side == WHOLE) & said_by_op[1 - i][op] & ~said_by_op[i][op]] = i
    return side


def _share_main(trace: Trace, rows: Int64Array, side: Int8Array, share: FloatArray) -> None:
    """Give each op's (each gradient's) work to the launches of its main kernel."""
    gpu = trace.gpu
    key = gpu.op[rows].astype(np.int64) * 3 + side[rows] + 1
    alone = np.bincount(key, minlength=1)[key] == 1
    share[rows[alone]] = 1.0
    rows, key = rows[~alone], key[~alone]
    if not len(rows):
        return
    dur = np.maximum(gpu.dur_ns[rows], 1)
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
        for part in cost.passes:
            column = PASSES.index(part.name) + 1
            flops[i, column], moved[i, column] = part.flops, part.bytes
    return flops.reshape(-1), moved.reshape(-1)


def _single_reads(trace: Trace) -> FloatArray:
    """By string code the share of an op's bytes that a single-read kernel moves."""
    share = np.ones(len(trace.strings))
    for code in np.unique(trace.gpu.name).tolist():
        text = trace.strings[code]
        if "singleread" in text:
            share[code] = next((part for word, part in _SINGLE_READ.items() if word in text), 1.0)
    return share
