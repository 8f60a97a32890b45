"""Copies between host and device: how long the CPU sat in them, what the GPU lost by it, whose line they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfdoctor.analysis.captured_facts import captured_list, captured_part
from perfdoctor.analysis.host.locations import (
    Locations,
    SourceLocation,
    find_locations,
    most_common_location,
)
from perfdoctor.gpu import Device
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import MEMCPY, Trace

# Idle time with a cause of its own is not the copy's doing.
_IDLE = ("idle_sync", "idle_launch", "idle_unexplained")
# Bytes a second of one PCIe lane in one direction, by generation, after encoding (PCI-SIG's base specifications).
_LANE_BYTES_PER_S: Mapping[int, float] = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# What large pinned copies reach of it: bandwidthTest shows 12 to 13 of 15.75 GB/s on generation 3 x16.
_PINNED_SHARE = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class HostCopies:
    """Some copies between host and device that have a launching call.

    Attributes:
        rows: Rows of `trace.gpu`.
        calls: Rows of `trace.calls`, their launching calls.
        creator_op: For each the op that made the tensor, a row of `trace.ops` (-1: not known; see `host_made_tensors`).
        op_start_ns: Where the outermost op around the call begins, or the call.
        resume_ns: When the CPU went on: the end of the call, or of the synchronize call that follows it in the same op.
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


def host_copies(trace: Trace, window: Intervals, wanted: BoolArray) -> HostCopies:
    """The wanted GPU items with a launching call in the window, by time of that call.

    Args:
        trace: The trace.
        window: The analysed time.
        wanted: For each GPU item whether it counts, see `CopyKinds.matches`.
    """
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
    return HostCopies(rows, call, np.full(len(rows), NONE, np.int32), begin, _done_ns(trace, call, until))


def _done_ns(trace: Trace, call: Int32Array, until_ns: Int64Array) -> Int64Array:
    """The end of the call, or of the wait that follows it next on its thread and begins before `until_ns`."""
    calls, done_ns = trace.calls, trace.calls.end_ns[call]
    # A copy that blocks is submitted and then waited for: PyTorch calls cudaMemcpyAsync, then cudaStreamSynchronize.
    waits, thread = trace.match_strings(calls, vocabulary.SYNC_CALL), calls.thread[call]
    for number in set(thread.tolist()):
        mine, on_thread = np.flatnonzero(thread == number), np.flatnonzero(calls.thread == number)
        waiting = on_thread[waits[calls.name[on_thread]]]
        returned_ns = done_ns[mine]
        followed = np.flatnonzero(np.searchsorted(calls.start_ns[waiting], returned_ns) < len(waiting))
        mine, returned_ns = mine[followed], returned_ns[followed]
        wait = waiting[np.searchsorted(calls.start_ns[waiting], returned_ns)]
        following = on_thread[np.searchsorted(calls.start_ns[on_thread], returned_ns)]
        # Of calls that start together the wait comes first: files with whole microseconds hold such.
        next_ns = calls.start_ns[wait]
        waited = (next_ns == calls.start_ns[following]) & (next_ns < until_ns[mine])
        done_ns[mine[waited]] = calls.end_ns[wait[waited]]
    return done_ns


def time_lost_by_copies(
    trace: Trace, parts: Mapping[str, Intervals], copies: HostCopies, lead_ns: Int64Array
) -> Intervals:
    """The time of the window that the GPU lost by copies.

    That is the time which only the copies themselves filled; and idle time from the beginning of each copy's op until
    the next GPU item after the CPU went on, but for at most `lead_ns` after that: a wait takes away no more lead than
    it lasts.

    Args:
        trace: The trace.
        parts: `Account.parts`.
        copies: The copies.
        lead_ns: For each of them how long the CPU waited.
    """
    gpu = trace.gpu
    starts = np.sort(gpu.start_ns)
    following = np.searchsorted(starts, copies.resume_ns)
    resumed = np.where(following < len(starts), starts[np.minimum(following, len(starts) - 1)], copies.resume_ns)
    until = np.minimum(resumed, copies.resume_ns + lead_ns)
    idle = iv.union_of(parts[name] for name in _IDLE)
    copying = iv.union(gpu.start_ns[copies.rows], gpu.end_ns[copies.rows])
    return iv.union_of(
        (
            iv.intersect(copying, parts["memcpy"]),
            iv.intersect(iv.union(copies.op_start_ns, until), idle),
        )
    )


def group_by_location(locations: Locations, copies: HostCopies) -> list[tuple[SourceLocation | None, HostCopies]]:
    """The copies by the user's line, in the order of the lines' first copies.

    Where the analysed window has no lines, a copy of the same name and size in the evidence window tells.
    """
    trace = locations.trace
    found: list[SourceLocation | None] = []
    if len(copies):
        found = locations.at(trace.calls.thread[copies.calls], trace.calls.start_ns[copies.calls])
    by_evidence = _locations_by_name_and_size(locations.evidence_trace) if None in found else {}
    groups: dict[SourceLocation | None, list[int]] = defaultdict(list)
    for i, location in enumerate(found):
        row = copies.rows[i]
        key = trace.strings[trace.gpu.name[row]], int(trace.gpu.bytes[row])
        groups[location or by_evidence.get(key)].append(i)
    return [(location, copies.select(np.array(rows, np.int64))) for location, rows in groups.items()]


def _locations_by_name_and_size(trace: Trace | None) -> dict[tuple[str, int], SourceLocation | None]:
    if trace is None:
        return {}
    gpu = trace.gpu
    rows = np.flatnonzero((gpu.kind == MEMCPY) & (gpu.call >= 0))
    calls = gpu.call[rows]
    groups: dict[tuple[str, int], list[SourceLocation | None]] = defaultdict(list)
    found = find_locations(trace, trace.calls.thread[calls], trace.calls.start_ns[calls])
    for row, location in zip(rows.tolist(), found, strict=True):
        groups[trace.strings[gpu.name[row]], int(gpu.bytes[row])].append(location)
    return {key: most_common_location(group) for key, group in groups.items()}


def pinned_bytes_per_s(facts: Mapping[str, Any] | None, device: Device | None) -> float | None:
    """What a large copy from or to pinned memory reaches here, one direction; None where the link is not known.

    By generation and width of the link as NVML told while the program ran, else by the table of devices.
    """
    for captured in captured_list(captured_part(facts, "nvml"), "devices"):
        generation, width = captured.get("max_pcie_generation"), captured.get("max_pcie_width")
        lane = _LANE_BYTES_PER_S.get(generation) if isinstance(generation, int) else None
        if lane is not None and isinstance(width, int):
            return lane * width * _PINNED_SHARE
    both = device.pcie_bytes_per_s if device is not None else None
    return None if both is None else both / 2 * _PINNED_SHARE
