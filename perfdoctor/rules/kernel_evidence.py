"""The kernels and the op that take most of the time of some GPU items: evidence of many rules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence
from perfdoctor.trace.arrays import BoolArray, Int64Array
from perfdoctor.trace.tables import nesting


def time_by_kernel_name(rank: Rank, rows: BoolArray | Int64Array) -> list[tuple[int, int]]:
    """String code and total time in ns of each distinct kernel name: the costliest first, equal times by name."""
    gpu, strings = rank.trace.gpu, rank.trace.strings
    names, inverse = np.unique(gpu.name[rows], return_inverse=True)
    totals = np.bincount(inverse, weights=gpu.dur_ns[rows]).astype(np.int64)
    pairs = zip(names.tolist(), totals.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: (-pair[1], strings[pair[0]]))


def top_kernels(rank: Rank, rows: BoolArray | Int64Array, max_count: int = 3) -> Iterable[Evidence]:
    """Evidence of the costliest kernel names, each with its time per step in ns."""
    for name, time_ns in time_by_kernel_name(rank, rows)[:max_count]:
        yield Evidence(rank.trace.strings[name], rank.per_step(time_ns), "ns")


def top_op(rank: Rank, rows: BoolArray) -> str | None:
    """The outermost op that launched most of the time of some kernels; None when no op is known."""
    trace = rank.trace
    rows = rows & (trace.gpu.op >= 0)
    if not rows.any():
        return None
    outermost = nesting.outermost(trace.ops.parent, trace.gpu.op[rows])
    codes, inverse = np.unique(trace.ops.name[outermost], return_inverse=True)
    totals = np.bincount(inverse, weights=trace.gpu.dur_ns[rows]).tolist()
    names: list[str] = [trace.strings[code] for code in codes.tolist()]
    return names[max(range(len(names)), key=lambda i: (totals[i], names[i]))]
