"""How fast collectives move their data: bus bandwidth, which compares kinds and group sizes with what a link can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfdoctor.trace.arrays import FloatArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.vocabulary import COLLECTIVE_KINDS

# Bytes over the busiest link for each byte that one of n ranks puts in: nccl-tests, doc/PERFORMANCE.md, which gives the
# factors for the whole size (for an all-gather that is n times what one rank puts in). For other kinds the factor
# depends on which rank sends to which.
_FACTORS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: np.ones_like(n),
    "reduce": lambda n: np.ones_like(n),
}


def algorithm_bytes(kind: Int8Array, size_bytes: Int64Array, ranks: Int32Array) -> FloatArray:
    """The size of each collective by which nccl-tests counts algorithmic bandwidth; NaN where it is not known.

    It is what one rank puts in; of an all-gather what comes out, from all ranks (nccl-tests, doc/PERFORMANCE.md). Sizes
    are -1 and `ranks` below 2 where they were not recorded.
    """
    whole = np.where(size_bytes >= 0, size_bytes, np.nan).astype(np.float64)
    gathers = kind == COLLECTIVE_KINDS.index("all_gather")
    whole[gathers] *= np.where(ranks >= 2, ranks, np.nan)[gathers]
    return whole


def bus_bytes(kind: Int8Array, size_bytes: Int64Array, ranks: Int32Array) -> FloatArray:
    """Bytes that cross the busiest link of each collective; NaN for other kinds, and where size or ranks are unknown.

    Sizes are -1 and `ranks` below 2 where they were not recorded.
    """
    crossing = np.full(len(kind), np.nan)
    for name, factor in _FACTORS.items():
        rows = (kind == COLLECTIVE_KINDS.index(name)) & (size_bytes >= 0) & (ranks >= 2)
        crossing[rows] = size_bytes[rows] * factor(ranks[rows].astype(np.float64))
    return crossing
