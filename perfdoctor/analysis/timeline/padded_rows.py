"""How many rows the kernels of a pass compute: more than it has tokens, where its graph was captured for more."""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.timeline.engine_passes import EnginePasses
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.model import Trace

_MIN_NAMES = 2


def count_rows_of_passes(trace: Trace, passes: EnginePasses) -> Int64Array:
    """For each pass the number of rows by its kernels that have a block a row; 0 where too few of them are known.

    The largest number on which kernels of two names agree: caches may be written for the real tokens alone.
    """
    gpu = trace.gpu
    items = np.flatnonzero(trace.match_rows(gpu, vocabulary.ROW_KERNEL) & (passes.pass_of_item >= 0) & (gpu.blocks > 0))
    found = np.zeros(len(passes), np.int64)
    by_name = np.unique(np.column_stack((passes.pass_of_item[items], gpu.blocks[items], gpu.name[items])), axis=0)
    agreed, names = np.unique(by_name[:, :2], axis=0, return_counts=True)
    sure = agreed[names >= _MIN_NAMES]
    np.maximum.at(found, sure[:, 0], sure[:, 1])
    return found
