"""Tensors that a factory makes on the host and that are copied to the GPU: when, and the one fix of all that they cost.

PD106 tells the copies. PD102 and PD103 meet the same lines: the wait in the copy, and the time in the factory.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._host_factories import select_host_made_tensors
from perfdoctor.rules import (
    Action,
    Advice,
    BoolArray,
    HostCopies,
    Int32Array,
    Int64Array,
    Intervals,
    Rank,
    Trace,
    copy_kinds_of,
    host_copies,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

TARGET_DEVICE = (
    "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device"
)
# Pauses or waits of which less lies in such tensors have another cause as well.
_MOST = 0.6


def find_host_made(rank: Rank, batch_bytes: float) -> tuple[HostCopies, BoolArray]:
    """The copies to the GPU of tensors that were made on the host, and for each whether a factory made it."""
    # AMD's traces say "Host", whichever memory it was.
    from_host = copy_kinds_of(rank.trace).matches(vocabulary.HTOD, vocabulary.PAGEABLE, vocabulary.HOST)
    copies = host_copies(rank.trace, rank.window, from_host)
    return select_host_made_tensors(rank.trace, rank.steps, rank.loader_waits.intervals, copies, batch_bytes)


def most_frequent_name(trace: Trace, ops: Int64Array | Int32Array) -> str:
    """The name that most of some ops have."""
    names, counts = np.unique(trace.ops.name[ops], return_counts=True)
    return trace.strings[int(names[np.argmax(counts)])]


def advise_on_factories(rank: Rank, makers: Int64Array | Int32Array) -> Advice:
    """What to do about the ops that made tensors which are copied: the line of the most frequent one."""
    maker = most_frequent_name(rank.trace, makers).removeprefix("aten::")
    return Advice(
        "Make the tensor where it is used, with device=: nothing has to be copied, and the CPU does not wait.",
        f"torch.{maker}(..., device=x.device)",
        TARGET_DEVICE,
        (Action("make-on-device"),),
    )


def advise_if_made_on_host(rank: Rank, time: Intervals) -> Advice | None:
    """The same advice where most of some time passes in making such tensors and copying them; None elsewhere."""
    copies, by_factory = find_host_made(rank, 0)
    copies = copies.select(by_factory)
    if not len(copies) or not len(time):
        return None
    copies = copies.select(iv.overlap(copies.op_start_ns, copies.resume_ns, time) > 0)
    making = iv.union(copies.op_start_ns, copies.resume_ns)
    if iv.total(iv.intersect(making, time)) < _MOST * iv.total(time):
        return None
    return advise_on_factories(rank, copies.creator_op)
