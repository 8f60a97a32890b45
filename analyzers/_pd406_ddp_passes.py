"""The forward passes of DistributedDataParallel, and whether gradients were reduced after each.

The names are those of torch's `reducer.cpp` and `distributed.py`; traces of PyTorch 2.13 were looked at for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfdoctor.analysis.launching_ops import find_outermost_ops
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """The forward passes of wrapped models in the order in which they began, each until the next or the optimizer.

    Attributes:
        start_ns, end_ns: When each began, and when the next one or the step of an optimizer did.
        update: Which update of the weights it belongs to: passes with the same number are accumulated.
        reduces: Whether gradients were reduced in its backward pass.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    update: Int64Array
    reduces: BoolArray

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def needless(self) -> BoolArray:
        """For each pass whether it reduced gradients that a later pass of the same update reduces again."""
        last = np.full(int(self.update.max()) + 1 if len(self) else 0, -1, np.int64)
        rows = np.flatnonzero(self.reduces)
        last[self.update[rows]] = rows
        needless: BoolArray = self.reduces & (last[self.update] != np.arange(len(self)))
        return needless


def passes_of(rank: Rank) -> Passes:
    """The passes of complete updates in the window: what follows the last step of an optimizer is left out."""
    trace, ranges = rank.trace, rank.trace.ranges
    inside = iv.contains(rank.window, ranges.start_ns)
    optimizer = trace.match_rows(ranges, vocabulary.OPTIMIZER_STEP) & inside
    updates = np.sort(ranges.start_ns[optimizer])
    start = np.sort(ranges.start_ns[trace.match_rows(ranges, vocabulary.DDP_FORWARD) & inside])
    # A closure's passes (LBFGS) are evaluations of their own, not accumulated ones.
    start = start[~iv.contains(iv.union(ranges.start_ns[optimizer], ranges.end_ns[optimizer]), start)]
    update = np.searchsorted(updates, start)
    start, update = start[update < len(updates)], update[update < len(updates)]
    end = np.minimum(np.append(start[1:], np.iinfo(np.int64).max), updates[update]) if len(start) else start
    issued = _reductions(rank)
    reduces = np.searchsorted(issued, end) > np.searchsorted(issued, start)
    return Passes(start, end, update, reduces)


def _reductions(rank: Rank) -> Int64Array:
    """When all-reduces were issued by a backward pass, sorted: those of metrics and of losses are not among them."""
    trace, ops = rank.trace, rank.trace.ops
    rows = np.flatnonzero(trace.match_rows(ops, vocabulary.ALL_REDUCE_OP)).astype(np.int32)
    if not len(rows):
        return np.empty(0, np.int64)
    _, within = find_outermost_ops(trace, rows, lambda name: not re.search(vocabulary.AUTOGRAD_OP, name))
    return np.sort(ops.start_ns[rows[within >= 0]])


def exposed_in(rank: Rank, passes: Passes, chosen: BoolArray) -> Intervals:
    """Exposed communication that was issued in some of the passes."""
    trace, gpu = rank.trace, rank.trace.gpu
    if rank.device_kind == "cpu":
        rows = np.flatnonzero(trace.match_rows(trace.ranges, vocabulary.CPU_COLLECTIVE_RANGE))
        start, end, issued = (
            column[rows] for column in (trace.ranges.start_ns, trace.ranges.end_ns, trace.ranges.start_ns)
        )
    else:
        rows = np.flatnonzero(rank.kernel_classes.match_rows(lambda k: k.category == "communication") & (gpu.call >= 0))
        start, end, issued = gpu.start_ns[rows], gpu.end_ns[rows], trace.calls.start_ns[gpu.call[rows]]
    if not len(rows) or not len(passes):
        return iv.EMPTY
    row = np.searchsorted(passes.start_ns, issued, side="right") - 1
    mine = (row >= 0) & (issued < passes.end_ns[row]) & chosen[row]
    return iv.intersect(iv.union(start[mine], end[mine]), rank.account.parts["communication"])
