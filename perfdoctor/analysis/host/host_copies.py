"""Copies between host and device: how long the CPU sat in them, what the GPU lost by it, whose line they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfdoctor.analysis.captured_facts import captured_list, captured_part
from perfdoctor.analysis.host.locations import SourceLocation, find_locations, most_common_location
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import MEMCPY, Trace

# A copy that blocks is submitted and then waited for: PyTorch calls cudaMemcpyAsync, then cudaStreamSynchronize.
_WAIT = r"^(cuda|hip)(Device|Stream|Event)Synchronize"
# Idle time with a cause of its own is not the copy's doing.
_IDLE = ("idle_sync", "idle_launch", "idle_unexplained")
# Bytes a second of one PCIe lane in one direction, by generation, after encoding (PCI-SIG's base specifications).
_LANE_BYTES_PER_S: Mapping[int, float] = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# What large pinned copies reach of it: bandwidthTest shows 12 to 13 of 15.75 GB/s on generation 3 x16.
_PINNED_SHARE = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class HostCopies:
    """Some copies between host and device that have a launching call.

    `rows` are rows of `trace.gpu`, `calls` those of their calls, `maker` the row in `trace.ops` of the op that made the
    tensor (-1: not known; see `host_made`). `begin_ns` is where the outermost op around the call begins, or the call,
    and `done_ns` where the CPU went on: the end of the call, or of the synchronize call that follows it in the same op.
    """

    rows: Int64Array
    calls: Int32Array
    maker: Int32Array
    begin_ns: Int64Array
    done_ns: Int64Array

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, keep: BoolArray | Int64Array) -> HostCopies:
        """Some of them."""
        return HostCopies(self.rows[keep], self.calls[keep], self.maker[keep], self.begin_ns[keep], self.done_ns[keep])


def host_copies(run: Rank, pattern: str) -> HostCopies:
    """The copies of the window whose name fits, with a launching call in the window, by time of that call."""
    trace, gpu, calls = run.trace, run.trace.gpu, run.trace.calls
    rows = np.flatnonzero((gpu.kind == MEMCPY) & (gpu.call >= 0) & trace.match_rows(gpu, pattern))
    rows = rows[iv.contains(run.window, calls.start_ns[gpu.call[rows]])]
    rows = rows[np.lexsort((gpu.start_ns[rows], calls.start_ns[gpu.call[rows]]))]
    call = gpu.call[rows]
    top = nesting.outermost(trace.ops.parent, calls.op[call]) if len(trace.ops) else np.full(len(rows), NONE, np.int32)
    begin, until = calls.start_ns[call].copy(), calls.end_ns[call].copy()
    inside = top >= 0
    begin[inside] = trace.ops.start_ns[top[inside]]
    until[inside] = np.maximum(until[inside], trace.ops.end_ns[top[inside]])
    return HostCopies(rows, call, np.full(len(rows), NONE, np.int32), begin, _done(trace, call, until))


def _done(trace: Trace, call: Int32Array, until_ns: Int64Array) -> Int64Array:
    """The end of the call, or of the wait that follows it next on its thread and begins before `until_ns`."""
    calls, done_ns = trace.calls, trace.calls.end_ns[call]
    waits, thread = trace.match_strings(calls, _WAIT), calls.thread[call]
    for number in set(thread.tolist()):
        mine, on_thread = np.flatnonzero(thread == number), np.flatnonzero(calls.thread == number)
        waiting = on_thread[waits[calls.name[on_thread]]]
        asked_ns = done_ns[mine]
        there = np.flatnonzero(np.searchsorted(calls.start_ns[waiting], asked_ns) < len(waiting))
        mine, asked_ns = mine[there], asked_ns[there]
        wait = waiting[np.searchsorted(calls.start_ns[waiting], asked_ns)]
        following = on_thread[np.searchsorted(calls.start_ns[on_thread], asked_ns)]
        # Of calls that start together the wait comes first: files with whole microseconds hold such.
        next_ns = calls.start_ns[wait]
        waited = (next_ns == calls.start_ns[following]) & (next_ns < until_ns[mine])
        done_ns[mine[waited]] = calls.end_ns[wait[waited]]
    return done_ns


def lost_time(run: Rank, copies: HostCopies, led_ns: Int64Array) -> Intervals:
    """The time of the window that the GPU lost by copies.

    What only the copies themselves filled; and idle time from the beginning of each copy's op until the next GPU item
    after the CPU went on, which is the copy's doing for `led_ns` after that at most: a wait takes away no more lead
    than it lasts.
    """
    gpu = run.trace.gpu
    starts = np.sort(gpu.start_ns)
    following = np.searchsorted(starts, copies.done_ns)
    resumed = np.where(following < len(starts), starts[np.minimum(following, len(starts) - 1)], copies.done_ns)
    reach = np.minimum(resumed, copies.done_ns + led_ns)
    idle = iv.union_of(run.account.parts[name] for name in _IDLE)
    copying = iv.union(gpu.start_ns[copies.rows], gpu.end_ns[copies.rows])
    return iv.union_of(
        (
            iv.intersect(copying, run.account.parts["memcpy"]),
            iv.intersect(iv.union(copies.begin_ns, reach), idle),
        )
    )


def by_place(run: Rank, copies: HostCopies) -> list[tuple[SourceLocation | None, HostCopies]]:
    """The copies by the user's line, in the order of the lines' first copies.

    Where the analysed window has no lines, a copy of the same name and size in the evidence window tells.
    """
    trace = run.trace
    found = (
        find_locations(trace, trace.calls.thread[copies.calls], trace.calls.start_ns[copies.calls])
        if len(copies)
        else []
    )
    told = _told_by_evidence(run) if None in found else {}
    groups: dict[SourceLocation | None, list[int]] = defaultdict(list)
    for i, place in enumerate(found):
        row = copies.rows[i]
        key = trace.strings[trace.gpu.name[row]], int(trace.gpu.bytes[row])
        groups[place or told.get(key)].append(i)
    return [(place, copies.only(np.array(rows, np.int64))) for place, rows in groups.items()]


def _told_by_evidence(run: Rank) -> dict[tuple[str, int], SourceLocation | None]:
    if run.evidence_trace is None:
        return {}
    trace, gpu = run.evidence_trace, run.evidence_trace.gpu
    rows = np.flatnonzero((gpu.kind == MEMCPY) & (gpu.call >= 0))
    calls = gpu.call[rows]
    groups: dict[tuple[str, int], list[SourceLocation | None]] = defaultdict(list)
    found = find_locations(trace, trace.calls.thread[calls], trace.calls.start_ns[calls])
    for row, place in zip(rows.tolist(), found, strict=True):
        groups[trace.strings[gpu.name[row]], int(gpu.bytes[row])].append(place)
    return {key: most_common_location(group) for key, group in groups.items()}


def pinned_bytes_per_s(run: Rank) -> float | None:
    """What a large copy from or to pinned memory reaches here, one direction; None where the link is not known.

    By generation and width of the link as NVML told while the program ran, else by the table of devices.
    """
    for device in captured_list(captured_part(run.facts, "nvml"), "devices"):
        generation, width = device.get("max_pcie_generation"), device.get("max_pcie_width")
        lane = _LANE_BYTES_PER_S.get(generation) if isinstance(generation, int) else None
        if lane is not None and isinstance(width, int):
            return lane * width * _PINNED_SHARE
    both = run.device.pcie_bytes_per_s if run.device is not None else None
    return None if both is None else both / 2 * _PINNED_SHARE
