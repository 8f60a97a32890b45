"""The window of a rank in pieces, each with one cause of the account, and with the instant on the CPU it comes from.

On a CPU a piece is the time of its innermost op, or of the Python between ops. On a GPU it is the time of the item
that began first, or idle time, which comes from where the CPU was then. The pieces are a partition of the window::

    CPU   forward [ embedding: norm norm ]    Python     ->  latency/norm, latency/norm, idle_launch
    GPU   [ kernel   ]   idle   [ kernel ]               ->  compute/kernel, idle_launch, compute/kernel
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.analysis.host.locations import frame_thread_of, loop_thread_of
from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.timeline.account import BUSY_DETAILS, DETAILS, IDLE_CAUSES, innermost_ops
from perfdoctor.analysis.timeline.idle_gaps import IdleGaps
from perfdoctor.analysis.timeline.idle_pieces import IdleInstants, IdlePieces
from perfdoctor.analysis.timeline.own_time import cut_by_thread
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, BoolArray, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# Python may have been in several places in what is longer: so many instants stand for it, at most.
_ONE_PLACE_NS = 50_000
_MAX_INSTANTS = 64
_IDLE_DETAILS = np.array([DETAILS.index(f"idle_{cause}") for cause in IDLE_CAUSES])


class Pieces(NamedTuple):
    """The window in pieces; their times add up to the account, in all and by cause.

    Attributes:
        cause: The cause of each, an index into DETAILS.
        start_ns: When each begins, on the GPU where its time is what is cut; none of them overlap.
        time_ns: How long each takes.
        at_ns: When the CPU was in the code that it comes from; NONE where that is not known.
        thread: On which thread.
        op: The innermost op then, or the one that launched the item; NONE where none did.
        item: The GPU item, a row of `Trace.gpu`; NONE where none runs.
    """

    cause: Int64Array
    start_ns: Int64Array
    time_ns: Int64Array
    at_ns: Int64Array
    thread: Int32Array
    op: Int32Array
    item: Int64Array

    def within(self, time: Intervals) -> Int64Array:
        """The rows of the pieces whose middle lies in some time."""
        return np.flatnonzero(iv.contains(time, self.start_ns + self.time_ns // 2))

    def cut_at(self, steps: Intervals) -> Pieces:
        """The pieces, those that go over the end of a step in parts."""
        order = np.argsort(self.start_ns, kind="stable")
        spans = np.column_stack((self.start_ns, self.start_ns + self.time_ns))[order]
        cut, row, _ = iv.intersect_rows(spans, steps)
        rows = order[row]
        own = self.cause[rows], cut[:, 0], cut[:, 1] - cut[:, 0]
        return Pieces(*own, self.at_ns[rows], self.thread[rows], self.op[rows], self.item[rows])


def _pieces(
    cause: Int64Array,
    start_ns: Int64Array,
    time_ns: Int64Array,
    at_ns: Int64Array,
    thread: Int32Array,
    op: Int32Array,
    item: Int64Array | None = None,
) -> Pieces:
    item = np.full(len(cause), NONE, np.int64) if item is None else item
    return Pieces(cause, start_ns, time_ns, at_ns.astype(np.int64), thread.astype(np.int32), op.astype(np.int32), item)


def cut_cpu_window(trace: Trace, window: Intervals, parts: Mapping[str, Intervals], without: Intervals) -> Pieces:
    """The pieces of a program on the CPU.

    `parts` are the account's. Time in `without` is left out: what the recorder itself does in the window with stacks.
    """
    time, op = cut_by_thread(trace, iv.subtract(window, without))
    cause = np.repeat(np.arange(len(DETAILS)), [len(parts[name]) for name in DETAILS])
    by_cause = np.concatenate([parts[name] for name in DETAILS])
    order, by_time = np.argsort(by_cause[:, 0], kind="stable"), np.argsort(time[:, 0], kind="stable")
    cut, by, row = iv.intersect_rows(by_cause[order], time[by_time])
    cause, op = cause[order[by]], op[by_time[row]]
    start_ns, end_ns = cut.T
    # In an autograd.Function of the program's own the CPU may be anywhere in its Python.
    is_python = np.append(trace.match_rows(trace.ops, vocabulary.FUNCTION_OP), True)[op]
    piece, begins_ns, time_ns = _spread(start_ns, end_ns, is_python)
    op = op[piece]
    thread = np.where(op >= 0, np.append(trace.ops.thread, np.int32(0))[op], loop_thread_of(trace))
    at_ns = np.where(is_python[piece], begins_ns + time_ns // 2, start_ns[piece])
    return _pieces(cause[piece], begins_ns, time_ns, at_ns, thread, op)


def find_recorder_time(trace: Trace) -> Intervals:
    """When the recorder's own code runs on the thread of the loop, as far as stacks tell.

    Short built-in functions that it calls belong to it, and all else to the program: the recorder wraps functions.
    """
    frames = trace.frames
    of_recorder = trace.match_rows(frames, vocabulary.RECORDER_FRAME)
    helping = np.append(of_recorder, False)[frames.parent] & trace.match_rows(frames, vocabulary.BUILT_IN_FRAME)
    start_ns, end_ns, frame = innermost_ops(frames)
    of_loop = frames.thread[frame] == frame_thread_of(trace, loop_thread_of(trace))
    rows = of_loop & (of_recorder | (helping & (frames.dur_ns < _ONE_PLACE_NS)))[frame]
    return iv.union(start_ns[rows], end_ns[rows])


def charge_engine(trace: Trace, joins: ForwardOps, pieces: Pieces) -> Pieces:
    """The pieces with what the engine does between two nodes of a backward pass charged to the node that comes next."""
    free = np.flatnonzero((pieces.op < 0) & (pieces.at_ns != NONE))
    before, after = neighbouring_ops(trace, pieces.thread[free], pieces.at_ns[free])
    between = np.append(joins.in_backward, False)[before] & np.append(joins.in_backward, False)[after]
    between &= np.append(joins.forward, NONE)[after] >= 0
    op = pieces.op.copy()
    op[free[between]] = after[between]
    return pieces._replace(op=op)


def neighbouring_ops(trace: Trace, thread: IntArray, at_ns: Int64Array) -> tuple[Int32Array, Int32Array]:
    """For each instant between ops that Python calls the last and the next one on its thread; NONE where none is."""
    ops = trace.ops
    top = np.flatnonzero(ops.parent < 0)
    top = top[np.lexsort((ops.start_ns[top], ops.thread[top]))]
    following = nesting.count_preceding(thread, at_ns, ops.thread[top], ops.start_ns[top])
    rows = np.concatenate(([NONE], top, [NONE])).astype(np.int32)
    on_thread = np.append(ops.thread, np.int32(NONE))
    before, after = (
        np.where(on_thread[side] == thread, side, np.int32(NONE)) for side in (rows[following], rows[following + 1])
    )
    return before, after


def cut_gpu_window(
    trace: Trace,
    parts: Mapping[str, Intervals],
    rows_by_detail: Mapping[str, BoolArray],
    idle: IdlePieces,
    instants: IdleInstants,
    gaps: IdleGaps,
) -> Pieces:
    """The pieces of a program on a GPU.

    `parts` are the account's, `rows_by_detail` the GPU items of each of its busy details, `instants` where its `idle`
    time comes from. What waits for nothing that this CPU did comes from the launch of what ran next.
    """
    at_ns, thread = launch_instants(trace)
    found = []
    for number, detail in enumerate(DETAILS):
        if detail in BUSY_DETAILS:
            item, start_ns, time_ns = _split_among_items(trace, rows_by_detail[detail], parts[detail])
            columns = np.full(len(item), number), start_ns, time_ns, at_ns[item], thread[item], trace.gpu.op[item]
            found.append(_pieces(*columns, item))
    calls = trace.calls
    call = np.append(gaps.launch, np.int32(NONE))[idle.gap[instants.piece]]
    moved = (instants.at_ns == NONE) & (call >= 0)
    idle_ns = np.where(moved, np.append(calls.start_ns, 0)[call], instants.at_ns)
    on_thread = np.where(moved, np.append(calls.thread, 0)[call], instants.thread)
    op = np.where(moved, np.append(calls.op, NONE)[call], instants.op)
    # The instants of a piece, one after the other in its time.
    passed_ns = np.cumsum(instants.weight_ns) - instants.weight_ns
    first = np.searchsorted(instants.piece, instants.piece)
    start_ns = idle.start_ns[instants.piece] + passed_ns - passed_ns[first]
    cause = _IDLE_DETAILS[idle.cause[instants.piece]]
    found.append(_pieces(cause, start_ns, instants.weight_ns, idle_ns, on_thread, op))
    return Pieces(*map(np.concatenate, zip(*found, strict=True)))


def _split_among_items(trace: Trace, which: BoolArray, part: Intervals) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The items of a part of the account, and of each when the time begins that is its own, and how long that is.

    Where several run the time is that of the first one.
    """
    gpu, rows = trace.gpu, np.flatnonzero(which)
    rows = rows[np.lexsort((gpu.stream[rows], gpu.device[rows], gpu.start_ns[rows]))]
    end_ns = gpu.end_ns[rows]
    before_ns = np.maximum.accumulate(np.concatenate((gpu.start_ns[rows[:1]], end_ns)))[:-1]
    spans = np.column_stack((np.maximum(gpu.start_ns[rows], before_ns), end_ns))
    own = spans[:, 1] > spans[:, 0]
    cut, _, row = iv.intersect_rows(part, spans[own])
    return rows[own][row], cut[:, 0], cut[:, 1] - cut[:, 0]


def _spread(start_ns: Int64Array, end_ns: Int64Array, wide: BoolArray) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Pieces of time in parts, the wide ones in many: for each the number of its piece, its beginning, its length."""
    length = end_ns - start_ns
    count = np.where(wide, np.clip(length // _ONE_PLACE_NS, 1, _MAX_INSTANTS), 1)
    piece = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count)
    length, count = length[piece], count[piece]
    begins_ns = length * number // count
    return piece, start_ns[piece] + begins_ns, length * (number + 1) // count - begins_ns
