"""When a rank begins a pass through its model: what it does before that made it enter the step late.

A wrapper marks its forward pass. On a GPU the pass begins with the first kernel that is launched from there on::

    CPU   [ loader ][ DistributedDataParallel.forward ]
    GPU     optimizer      | kernel kernel ...                  the pass begins at |
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import KERNEL
from perfdoctor.trace.tables.steps import Steps

# The first of these that a trace has marks its passes: the wrapper's own mark is exact, that of `perfdoctor run` begins
# with the batch or with `zero_grad`.
_MARKS = (vocabulary.DDP_FORWARD, vocabulary.FSDP_FORWARD, vocabulary.FSDP2_ROOT_FORWARD, vocabulary.FORWARD_RANGE)


def find_pass_starts(classes: KernelClasses, steps: Steps, *, on_gpu: bool) -> Int64Array:
    """When each pass through the model begins, sorted; the starts of the steps where nothing marks passes."""
    trace, ranges = classes.trace, classes.trace.ranges
    marked = (trace.match_rows(ranges, pattern) for pattern in _MARKS)
    rows = next((rows for rows in marked if rows.any()), None)
    # Of marks inside each other the outermost one counts.
    begin_ns = steps.intervals[:, 0] if rows is None else iv.union(ranges.start_ns[rows], ranges.end_ns[rows])[:, 0]
    if not on_gpu:
        return np.sort(begin_ns)
    gpu = trace.gpu
    is_work = (gpu.kind == KERNEL) & ~classes.match_rows(lambda kernel: kernel.category == "communication")
    launched = np.flatnonzero(is_work & (gpu.call >= 0))
    launch_ns = trace.calls.start_ns[gpu.call[launched]]
    order = np.argsort(launch_ns, kind="stable")
    first = np.searchsorted(launch_ns[order], np.sort(begin_ns))
    return distinct(gpu.start_ns[launched[order[first[first < len(order)]]]])


def time_since_pass_start(pass_start_ns: Int64Array, start_ns: Int64Array) -> Int64Array:
    """For each collective the time since the first pass that began after the collective before it; NONE without one.

    For example::

        pass_start_ns   10            50   70              two micro-batches, the first one without a reduction
        start_ns           20   30             90
        result             10   NONE           40          the second collective is not the first one of its pass
    """
    order = np.argsort(start_ns, kind="stable")
    arrival_ns = start_ns[order]
    before = np.searchsorted(pass_start_ns, np.append(np.iinfo(np.int64).min, arrival_ns[:-1])[: len(order)], "right")
    until = np.searchsorted(pass_start_ns, arrival_ns, "right")
    has_pass = np.flatnonzero(until > before)
    since_ns = np.full(len(start_ns), NONE, np.int64)
    since_ns[order[has_pass]] = arrival_ns[has_pass] - pass_start_ns[before[has_pass]]
    return since_ns
