"""Copies between host and device: how long the CPU waits in them, what the GPU loses by it, which line makes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import Device
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# The parts of the account that a copy can cause; idle time with another known cause is not the copy's.
_IDLE = ("idle_sync", "idle_launch", "idle_unexplained")
# Bytes a second of one PCIe lane in one direction, by generation, after encoding (PCI-SIG's base specifications).
_LANE_BYTES_PER_S: Mapping[int, float] = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# The share of it that large pinned copies achieve: bandwidthTest shows 12 to 13 of 15.75 GB/s on generation 3 x16.
_PINNED_SHARE = 0.8


@frozen_dataclass(eq=False)
class HostCopies:
    """Some copies between host and device that have a launching call.

    Attributes:
        rows: Rows of `trace.gpu`.
        calls: Rows of `trace.calls`, their launching calls.
        creator_op: The op that made the tensor, a row of `trace.ops`; -1 where unknown (PD106 asks what made it).
        op_start_ns: Where the outermost op around the call begins, or the call.
        resume_ns: When the CPU continues: the end of the call, or of the synchronize call after it in the same op.
    """

    rows: Int64Array
    calls: Int32Array
    creator_op: Int32Array
    op_start_ns: Int64Array
    resume_ns: Int64Array

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, keep: BoolArray | Int64Array) -> HostCopies:
        """Some of them."""
        return HostCopies(
            self.rows[keep], self.calls[keep], self.creator_op[keep], self.op_start_ns[keep], self.resume_ns[keep]
        )

    def group_by(self, lines: Sequence[SourceLocation | None]) -> list[tuple[SourceLocation | None, HostCopies]]:
        """The copies by the line of each, in the order of the lines' first copies."""
        rows: dict[SourceLocation | None, list[int]] = defaultdict(list)
        for i, line in enumerate(lines):
            rows[line].append(i)
        return [(line, self.select(np.array(some, np.int64))) for line, some in rows.items()]


def host_copies(trace: Trace, window: Intervals, wanted: BoolArray) -> HostCopies:
    """The wanted GPU items with a launching call in the window, by time of that call."""
    gpu, calls = trace.gpu, trace.calls
    rows = np.flatnonzero(wanted & (gpu.call >= 0))
    rows = rows[iv.contains(window, calls.start_ns[gpu.call[rows]])]
    rows = rows[np.lexsort((gpu.start_ns[rows], calls.start_ns[gpu.call[rows]]))]
    call = gpu.call[rows]
    top = nesting.outermost(trace.ops.parent, calls.op[call]) if len(trace.ops) else np.full(len(rows), NONE, np.int32)
    begin, until = calls.start_ns[call].copy(), calls.end_ns[call].copy()
    inside = top >= 0
    begin[inside] = trace.ops.start_ns[top[inside]]
    until[inside] = np.maximum(until[inside], trace.ops.end_ns[top[inside]])
    return HostCopies(rows, call, np.full(len(rows), NONE, np.int32), begin, _resume_ns(trace, call, until))


def _resume_ns(trace: Trace, call: Int32Array, until_ns: Int64Array) -> Int64Array:
    """For each copy call its end, or that of a wait that is the next call of its thread and begins before `until_ns`.

    PyTorch makes a blocking copy of two calls: cudaMemcpyAsync, then cudaStreamSynchronize.
    """
    calls, resume_ns = trace.calls, trace.calls.end_ns[call]
    is_wait, thread = trace.match_strings(calls, vocabulary.SYNC_CALL), calls.thread[call]
    for number in set(thread.tolist()):
        copies, on_thread = np.flatnonzero(thread == number), np.flatnonzero(calls.thread == number)
        waits = on_thread[is_wait[calls.name[on_thread]]]
        end_ns = resume_ns[copies]
        followed = np.flatnonzero(np.searchsorted(calls.start_ns[waits], end_ns) < len(waits))
        copies, end_ns = copies[followed], end_ns[followed]
        next_wait = waits[np.searchsorted(calls.start_ns[waits], end_ns)]
        next_call = on_thread[np.searchsorted(calls.start_ns[on_thread], end_ns)]
        # Instants are compared, not rows: in files with whole microseconds another call may start with the wait.
        wait_ns = calls.start_ns[next_wait]
        blocks = (wait_ns == calls.start_ns[next_call]) & (wait_ns < until_ns[copies])
        resume_ns[copies[blocks]] = calls.end_ns[next_wait[blocks]]
    return resume_ns


def time_lost_by_copies(
    trace: Trace, parts: Mapping[str, Intervals], copies: HostCopies, lead_ns: Int64Array
) -> Intervals:
    """The time of the window that the GPU lost by copies.

    That is the time in which only the copies ran, and idle time from the start of each copy's op until the first GPU
    item that starts after the CPU continued, at most `lead_ns` after it continued: a wait costs no more lead than it
    lasts. `parts` are `Rank.exposed_parts`.
    """
    gpu = trace.gpu
    starts = np.sort(gpu.start_ns)
    next_item = np.searchsorted(starts, copies.resume_ns)
    next_ns = np.where(next_item < len(starts), starts[np.minimum(next_item, len(starts) - 1)], copies.resume_ns)
    until = np.minimum(next_ns, copies.resume_ns + lead_ns)
    idle = iv.union_of(parts[name] for name in _IDLE)
    copying = iv.union(gpu.start_ns[copies.rows], gpu.end_ns[copies.rows])
    return iv.union_of(
        (iv.intersect(copying, parts["memcpy"]), iv.intersect(iv.union(copies.op_start_ns, until), idle))
    )


def pinned_bytes_per_s(facts: CapturedFacts, device: Device | None) -> float | None:
    """Bandwidth of a large copy from or to pinned memory, in one direction; None where the link is unknown.

    By the generation and width of the link that NVML reported while the program ran, else by the table of devices.
    """
    for captured in facts.nvml.devices:
        lane = _LANE_BYTES_PER_S.get(captured.max_pcie_generation or 0)
        if lane is not None and captured.max_pcie_width is not None:
            return lane * captured.max_pcie_width * _PINNED_SHARE
    both_ways = device.pcie_bytes_per_s if device is not None else None
    return None if both_ways is None else both_ways / 2 * _PINNED_SHARE


def copy_limit_bytes_per_s(direction: int, facts: CapturedFacts, device: Device | None) -> float | None:
    """The rate that large copies of a direction reach on this device; None where the link is not known.

    From and to the host that of pinned copies over PCIe. Within the device half of the memory's bandwidth, because
    each byte is read and written. To another device half of what the link does in both directions, if there is one.
    """
    if direction in (vocabulary.HTOD, vocabulary.DTOH):
        return pinned_bytes_per_s(facts, device)
    if device is None:
        return None
    if direction == vocabulary.DTOD:
        bandwidth = device.attainable_bandwidth_bytes_per_s
        return None if bandwidth is None else bandwidth / 2
    if direction == vocabulary.PTOP and device.link_bytes_per_s:
        return device.link_bytes_per_s / 2
    return None
