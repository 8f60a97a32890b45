"""The idle time of the window in pieces, each with its gap, its cause, and what the CPU did that made the GPU wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.timeline.account import IDLE_CAUSES
from perfdoctor.analysis.timeline.idle_gaps import IdleGaps
from perfdoctor.analysis.timeline.queue_stalls import DEVICE_LATENCY_NS
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int32Array, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

DATALOADER, SYNC, LAUNCH, COMMUNICATION, ALLOCATOR, UNEXPLAINED = range(len(IDLE_CAUSES))
# A launch and the Python around it take 5 to 100 us. In what is longer the CPU may have been in several places, which
# are looked up at so many instants.
ONE_LAUNCH_NS = 100_000
_SAMPLES = 8


@frozen_dataclass(eq=False)
class IdlePieces:
    """The idle time of the window, cut where its cause changes; by start, disjoint, together all of it.

    Attributes:
        start_ns, end_ns: When each piece begins and ends.
        cause: Index into `IDLE_CAUSES`.
        gap: The gap between GPU items that it lies in, a row of `IdleGaps`; NONE beyond the first and last event.
        call: The call that made the GPU wait: the one that blocked or allocated, else the launch of what ran next; a
            row of `Trace.calls`, or NONE where no call did, or it is not known which.
        queued: Whether what ran next was in the queue already: then the device itself took that long between two items.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    cause: Int8Array
    gap: Int64Array
    call: Int32Array
    queued: BoolArray

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def dur_ns(self) -> Int64Array:
        """The length of each piece."""
        return self.end_ns - self.start_ns


def idle_pieces_of(trace: Trace, gaps: IdleGaps, parts: Mapping[str, Intervals]) -> IdlePieces:
    """The idle time of the account in pieces."""
    idle = [parts.get(f"idle_{cause}", iv.EMPTY) for cause in IDLE_CAUSES]
    time = np.concatenate(idle)
    cause = np.repeat(np.arange(len(idle), dtype=np.int8), [len(each) for each in idle])
    order = np.argsort(time[:, 0], kind="stable")
    time, cause = time[order], cause[order]
    edges = np.column_stack((gaps.start_ns, gaps.end_ns))
    # Parts of the account do not touch, but one can reach over a gap's end where events of a file overlap by rounding.
    cut, piece, gap = iv.intersect_rows(time, edges)
    beyond = iv.subtract(iv.union_of((time,)), edges)
    piece = np.append(piece, np.searchsorted(time[:, 0], beyond[:, 0], side="right") - 1)
    cut, gap = np.concatenate((cut, beyond)), np.append(gap, np.full(len(beyond), NONE))
    order = np.argsort(cut[:, 0], kind="stable")
    cut, gap, cause = cut[order], gap[order], cause[piece[order]]
    # In a longer gap of this cause the launch call began before it and still ran: that is late, too.
    in_queue = (gaps.launch >= 0) & ~gaps.late_launch & (gaps.end_ns - gaps.start_ns <= DEVICE_LATENCY_NS)
    queued = (cause == LAUNCH) & np.append(in_queue, False)[gap]
    return IdlePieces(cut[:, 0], cut[:, 1], cause, gap, _calls_to_blame(trace, gaps, cut, cause, gap), queued)


def _calls_to_blame(trace: Trace, gaps: IdleGaps, pieces: Intervals, cause: Int8Array, gap: Int64Array) -> Int32Array:
    calls = trace.calls
    call = np.full(len(cause), NONE, np.int32)
    launched = (cause == LAUNCH) & (gap >= 0)
    call[launched] = gaps.launch[gap[launched]]
    blocked = (cause == SYNC) & (gap >= 0)
    call[blocked] = gaps.sync[gap[blocked]]
    rows = np.flatnonzero(trace.match_rows(calls, vocabulary.ALLOCATOR_CALL))
    allocated = np.flatnonzero(cause == ALLOCATOR)
    if len(rows) and len(allocated):
        # Of the calls that began before the piece's end the last one: those that allocate do not nest.
        at = np.searchsorted(calls.start_ns[rows], pieces[allocated, 1]) - 1
        call[allocated] = np.where(at >= 0, rows[at], NONE)
    return call


class IdleInstants(NamedTuple):
    """Where on the CPU idle time comes from: instants that stand for some time each, all pieces' together for all.

    Attributes:
        piece: The number of the piece.
        at_ns: The instant; NONE where it is not known what the CPU did.
        thread: Its thread.
        op: The innermost op at this instant, or NONE.
        weight_ns: How much idle time it stands for.
    """

    piece: Int64Array
    at_ns: Int64Array
    thread: Int32Array
    op: Int32Array
    weight_ns: Int64Array


def idle_instants_of(trace: Trace, pieces: IdlePieces, launching_thread: int) -> IdleInstants:
    """Where on the CPU the idle time comes from.

    That is the call which made the GPU wait. Before a late launch the CPU may have done something else for long: then
    it is what its thread did at instants spread over that time. Waits for other ranks, and what no cause explains, come
    from nowhere on this CPU. The microseconds between two queued items come from the launch of the second one.
    """
    calls, ops = trace.calls, trace.ops
    thread = np.where(pieces.call >= 0, np.append(calls.thread, 0)[pieces.call], launching_thread).astype(np.int32)
    on_cpu = np.isin(pieces.cause, (DATALOADER, SYNC, LAUNCH, ALLOCATOR)) & (thread >= 0)
    spread = _is_spread(pieces) & on_cpu
    piece, at_ns, weight_ns = spread_instants(pieces.start_ns, pieces.end_ns, spread)
    called = (pieces.call[piece] >= 0) & ~spread[piece]
    at_ns = np.where(called, np.append(calls.start_ns, 0)[pieces.call[piece]], at_ns)
    at_ns = np.where(on_cpu[piece], at_ns, NONE)
    op = nesting.innermost(ops.start_ns, ops.end_ns, ops.thread, at_ns, thread[piece])
    op = np.where(called, np.append(calls.op, np.int32(NONE))[pieces.call[piece]], op)
    return IdleInstants(piece, at_ns, thread[piece], np.where(at_ns != NONE, op, NONE).astype(np.int32), weight_ns)


def spread_instants(
    start_ns: Int64Array, end_ns: Int64Array, spread: BoolArray
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Instants that stand for some pieces of time: the middle of each, of those that are spread the middles of parts.

    Returns:
        For each instant the number of its piece, the instant, and how much of the piece it stands for.
    """
    count = np.where(spread, _SAMPLES, 1)
    piece = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
    length, count = (end_ns - start_ns)[piece], count[piece]
    weight_ns = length * (number + 1) // count - length * number // count
    return piece, start_ns[piece] + length * (2 * number + 1) // (2 * count), weight_ns


def _is_spread(pieces: IdlePieces) -> BoolArray:
    """Whether the CPU may have been in several places while the GPU waited."""
    result: BoolArray = (pieces.dur_ns > ONE_LAUNCH_NS) & np.isin(pieces.cause, (DATALOADER, LAUNCH)) & ~pieces.queued
    return result
