"""The passes of an engine or a loop over its batch: what each computes, when the GPU works for it, and why it idles.

A pass begins on the CPU with its range, and ends where the next begins. An engine that schedules ahead begins the next
range while the GPU works on this pass, so what was launched in a pass is the GPU's part of it. Its window lasts from
its first GPU item to the first one of the next::

    CPU   [ pass 1 ]schedule[ pass 2 ]schedule[ pass 3 ]
    GPU        111111  1     22222222  2      33333   3
    window     |1            |2               |3       |
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.analysis.launching_ops import launch_instants
from perfdoctor.analysis.timeline.pass_marks import PassMarks, find_pass_marks
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.activity_kinds import BETWEEN_PASSES, ENGINE_MODEL, ENGINE_WORK, IDLE_ENGINE
from perfdoctor.trace.arrays import NONE, BoolArray, Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

# A gap that is so many times as long as the GPU works in a pass, and at least so long, is no work of the engine's loop.
_LONG_GAP, _MIN_LONG_GAP_NS = 2, 20_000_000
# This and what comes after it in `ENGINE_WORK` an engine does in each round of its loop, with requests or without.
_FIRST_WORK_OF_LOOP = "messages"


@frozen_dataclass(eq=False)
class EnginePasses:
    """The passes that gave the GPU work, in order.

    Attributes:
        passes: What the name of each one's range says.
        windows: int64 (n, 2), ``[start, end)`` in nanoseconds on the GPU; those of an engine touch.
        began_ns: When each one begins on the CPU.
        pass_of_item: For each GPU item the pass in which it was launched; NONE before the first.
        thread: Their thread, an index into `Trace.threads`.
        idle: Idle time of the GPU in the windows by what that thread did: a key of `ENGINE_WORK`, ENGINE_MODEL or
            BETWEEN_PASSES.
        of_engine: Whether a serving engine makes them: else a loop that generates text, or denoises pictures.
    """

    passes: tuple[vocabulary.EnginePass, ...]
    windows: Intervals
    began_ns: Int64Array
    pass_of_item: Int64Array
    thread: int
    idle: Mapping[str, Intervals]
    of_engine: bool = True

    def __len__(self) -> int:
        return len(self.passes)

    @property
    def busy_ns(self) -> Int64Array:
        """How long the GPU works in the window of each pass."""
        start_ns, end_ns = self.windows.T
        busy_ns: Int64Array = end_ns - start_ns - iv.overlap(start_ns, end_ns, iv.union_of(self.idle.values()))
        return busy_ns

    def match_items(self, passes: BoolArray) -> BoolArray:
        """For each GPU item whether it is of one of some passes."""
        found: BoolArray = np.append(passes, False)[self.pass_of_item]
        return found


def find_engine_passes(trace: Trace) -> EnginePasses | None:
    """The passes of an engine or a loop; None without any, and where launches were not recorded."""
    marks, gpu = find_pass_marks(trace), trace.gpu
    if marks is None:
        return None
    launched_ns, _ = launch_instants(trace)
    item_pass = np.searchsorted(marks.began_ns, launched_ns, side="right") - 1
    item_pass[launched_ns < 0] = NONE
    working = np.unique(item_pass[item_pass >= 0])
    passes = [marks.passes[each] for each in working.tolist()]
    if not len(working) or None in passes:
        return None
    new_number = np.full(len(marks.passes) + 1, NONE)
    new_number[working] = np.arange(len(working))
    pass_of_item = new_number[item_pass]
    start_ns, end_ns = np.full(len(working), np.iinfo(np.int64).max), np.zeros(len(working), np.int64)
    mine = pass_of_item >= 0
    np.minimum.at(start_ns, pass_of_item[mine], gpu.start_ns[mine])
    np.maximum.at(end_ns, pass_of_item[mine], gpu.end_ns[mine])
    start_ns = np.maximum.accumulate(start_ns)
    next_ns = np.append(start_ns[1:], gpu.end_ns[mine].max())
    windows = np.column_stack((start_ns, np.minimum(next_ns, np.maximum(end_ns, marks.ended_ns[working]))))
    idle = iv.subtract(iv.union(windows[:, 0], windows[:, 1]), iv.union(gpu.start_ns, gpu.end_ns))
    without_requests = _find_gaps_without_requests(trace, marks.thread, windows, idle) if marks.of_engine else iv.EMPTY
    return EnginePasses(
        tuple(each for each in passes if each is not None),
        windows,
        marks.began_ns[working],
        pass_of_item,
        marks.thread,
        _split_by_work(trace, marks, idle, without_requests),
        marks.of_engine,
    )


def _find_gaps_without_requests(trace: Trace, thread: int, windows: Intervals, idle: Intervals) -> Intervals:
    """The gaps that are far longer than passes, or in which the engine says that it has nothing to serve.

    A worker waits for its next message, and a loop goes round, whether the engine schedules or has no requests.
    """
    start_ns, end_ns = idle[:, 0], idle[:, 1]
    busy_ns = windows[:, 1] - windows[:, 0] - iv.overlap(windows[:, 0], windows[:, 1], idle)
    frames = trace.frames
    says_idle = trace.match_rows(frames, IDLE_ENGINE) & (frames.thread == thread)
    found = iv.overlap(start_ns, end_ns, iv.union(frames.start_ns[says_idle], frames.end_ns[says_idle])) > 0
    found |= end_ns - start_ns > max(_MIN_LONG_GAP_NS, _LONG_GAP * float(np.median(busy_ns)))
    return idle[found]


def _split_by_work(
    trace: Trace, marks: PassMarks, idle: Intervals, without_requests: Intervals
) -> Mapping[str, Intervals]:
    """Idle time by what the thread of the passes did meanwhile; of gaps without requests only what takes long."""
    layers = []
    for patterns in ENGINE_WORK.values():
        pattern, spans = "|".join(patterns), []
        for table in (trace.frames, trace.ranges):
            found = (
                trace.match_rows(table, pattern) & (table.thread == marks.thread) if len(table) else np.zeros(0, bool)
            )
            spans.append(iv.union(table.start_ns[found], table.end_ns[found]))
        layers.append(iv.union_of(spans))
    layers.append(marks.model)
    works = [*ENGINE_WORK, ENGINE_MODEL, BETWEEN_PASSES]
    before = works.index(_FIRST_WORK_OF_LOOP)
    parts = iv.partition(idle, [*layers[:before], without_requests, *layers[before:]])
    waiting = parts.pop(before)
    found = dict(zip(works, parts, strict=True))
    return {**found, "no_requests": iv.union_of((found["no_requests"], waiting))}
