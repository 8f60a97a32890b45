"""How often an optimizer's steps go over the parameters, and how long the GPU works on them and waits for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.optimizer_passes import longest_pass
from perfdoctor.analysis.kernels.traffic_kinds import OPTIMIZER
from perfdoctor.rank import Rank
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals

_FUSED = r"(?i)fused_?(adam|sgd|adagrad|lamb)|AdamFunctor|SGDFunctor|LAMB|AdagradFunctor|LionFunctor"
_MANY = r"multi_tensor_apply"


class OptimizerSteps(NamedTuple):
    """The steps of one class of optimizer in the window.

    Attributes:
        optimizer: Name of the class.
        rows: The GPU items that they launched.
        claim: Their time; with the GPU's waits for their launches if `starved`.
        passes: Their kernel time over that of the longest pass.
        count_of_passes: How often they go over the parameters.
        loops: Launches a kernel a tensor.
        starved: The GPU waits for their launches longer than it works.
        busy_ns, wait_ns: Of the window.
    """

    optimizer: str
    rows: Int64Array
    claim: Intervals
    passes: float
    count_of_passes: int
    loops: bool
    starved: bool
    busy_ns: int
    wait_ns: int

    @property
    def saved_ns(self) -> int:
        """The most of `claim` that one fused pass could save."""
        return round(self.busy_ns * (1 - 1 / max(self.passes, 1))) + (self.wait_ns if self.starved else 0)


def steps_of(rank: Rank, launched: Int64Array, name: str) -> OptimizerSteps | None:
    """What one class of optimizer did; None for fused and generated ones, and where other work prevails."""
    trace, gpu = rank.trace, rank.trace.gpu
    own = rank.traffic.match_rows(OPTIMIZER)[launched]
    rows, other = launched[own], launched[~own & rank.in_window[launched]]
    time = int(gpu.dur_ns[rows].sum())
    if not time or gpu.dur_ns[other].sum() > time:
        return None
    done = (trace.match_rows(gpu, _FUSED) | trace.match_rows(gpu, vocabulary.TRITON_KERNEL))[rows]
    if 2 * gpu.dur_ns[rows[done]].sum() > time:
        return None
    many = trace.match_rows(gpu, _MANY)[rows]
    longest_ns, passes = _passes(rank, rows)
    busy = rank.time_in_window(rows)
    waits = iv.intersect(_phases(rank, rows), rank.account.parts["idle_launch"])
    starved = iv.total(waits) > iv.total(busy)
    return OptimizerSteps(
        optimizer=vocabulary.optimizer_class(name),
        rows=rows,
        claim=iv.union_of((busy, waits)) if starved else busy,
        passes=time / longest_ns,
        count_of_passes=passes,
        loops=2 * int(gpu.dur_ns[rows[many]].sum()) < time,
        starved=starved,
        busy_ns=iv.total(busy),
        wait_ns=iv.total(waits),
    )


def _phases(rank: Rank, rows: Int64Array) -> Intervals:
    """From the first to the last GPU item of each step of the optimizer."""
    gpu = rank.trace.gpu
    _, step = np.unique(rank.traffic.optimizer_step[rows], return_inverse=True)
    start = np.full(int(step.max()) + 1, np.iinfo(np.int64).max)
    end = np.full(len(start), np.iinfo(np.int64).min)
    np.minimum.at(start, step, gpu.start_ns[rows])
    np.maximum.at(end, step, gpu.end_ns[rows])
    return iv.union(start, end)


def _passes(rank: Rank, rows: Int64Array) -> tuple[float, int]:
    """The longest pass and the number of passes of GPU items, see `longest_pass`."""
    gpu, ops = rank.trace.gpu, rank.trace.ops
    op, dur = gpu.op[rows], gpu.dur_ns[rows]
    named = np.full(len(rows), -1, np.int64)
    if len(ops):
        named = np.where(op >= 0, ops.name[op], -1)
    # Without an op the kernel's name stands for it, and each launch counts.
    key = np.where(named >= 0, named, gpu.name[rows] + len(rank.trace.strings))
    call = np.where(op >= 0, len(rows) + op, np.arange(len(rows)))
    _, kind = np.unique(key, return_inverse=True)
    time = np.bincount(kind, weights=dur)
    count = np.bincount(distinct((kind << 32) + call) >> 32, minlength=len(time))
    return longest_pass(time, count)
