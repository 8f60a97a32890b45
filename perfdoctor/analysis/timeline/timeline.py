"""The timeline: GPU time over the whole trace, by the definitions of docs/measuring.md."""

from __future__ import annotations

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, Trace


@frozen_dataclass
class Timeline:
    """One rank's GPU time over the whole trace, in ns; every figure is None when the trace has no GPU items."""

    rank: int | None = None
    window_ns: int | None = None
    busy_ns: int | None = None
    idle_ns: int | None = None
    computation_ns: int | None = None
    exposed_communication_ns: int | None = None
    exposed_memcpy_ns: int | None = None
    communication_ns: int | None = None
    memcpy_ns: int | None = None


def timeline_of(trace: Trace) -> Timeline:
    """The timeline over the whole trace, from the first GPU item's start to the last one's end.

    Collectives are here the kernels named nccl or rccl, as in HTA, so that the figures can be compared
    with those of other tools; the account includes other collectives, too.
    """
    gpu = trace.gpu
    if not len(gpu):
        return Timeline(rank=trace.rank)
    kernel = gpu.kind == KERNEL
    collective = kernel & trace.match_rows(gpu, vocabulary.NCCL_KERNEL)

    def union(rows: BoolArray) -> Intervals:
        return iv.union(gpu.start_ns[rows], gpu.end_ns[rows])

    computation, communication, memcpy = union(kernel & ~collective), union(collective), union(~kernel)
    exposed_communication = iv.subtract(communication, computation)
    exposed_memcpy = iv.subtract(iv.subtract(memcpy, computation), communication)
    window_ns = int(gpu.end_ns.max() - gpu.start_ns.min())
    busy_ns = sum(iv.total(part) for part in (computation, exposed_communication, exposed_memcpy))
    return Timeline(
        rank=trace.rank,
        window_ns=window_ns,
        busy_ns=busy_ns,
        idle_ns=window_ns - busy_ns,
        computation_ns=iv.total(computation),
        exposed_communication_ns=iv.total(exposed_communication),
        exposed_memcpy_ns=iv.total(exposed_memcpy),
        communication_ns=iv.total(communication),
        memcpy_ns=iv.total(memcpy),
    )
