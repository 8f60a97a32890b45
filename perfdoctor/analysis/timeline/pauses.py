"""Pauses: gaps in which the GPU had nothing to do because the CPU did something else than launching, by what it did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoctor.analysis.host.hot_path import HotPath, find_hot_path, find_pause_path, usual_run_of
from perfdoctor.analysis.timeline.idle_gaps import IdleGaps
from perfdoctor.analysis.timeline.recurrence import Recurrence, count_recurrence, split_one_offs
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import activity_kinds
from perfdoctor.trace.arrays import Int32Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace
from perfdoctor.trace.tables.steps import Steps

# A gap that is so long is a pause in any program: launches take 5 to 20 us, 100 us with Python stacks.
_ALWAYS_A_PAUSE_NS = 1_000_000
# In shorter steps a gap is one if it is long beside the step and beside the time from one launch to the next.
_PAUSE_SHARE = 0.02
_PAUSE_LAUNCHES = 10
# So many groups at most are separated: what is left is one group.
_MAX_GROUPS = 4
# An op that takes this many times as long as others of its name does extra work: a first use.
_UNUSUALLY_LONG = 10
_MIN_USUAL_RUNS = 3
_MIN_STEPS = 3


@frozen_dataclass(eq=False)
class PauseGroup:
    """Pauses that have in common what the CPU did in them.

    Attributes:
        time: The pauses.
        gaps: The number of gaps between GPU items that they are; a wait for the loader cuts a gap in several.
        path: What the CPU did.
        others: What it did in the rest of this time, when it was not in the deepest activity of the path.
        once: Whether they happen once in the trace, or are of a kind that does.
        usual_ns: The median of the other runs of the op that the path names, where these runs are far longer; else
            None.
        recurrence: In how many steps they occur; None without steps.
    """

    time: Intervals
    gaps: int
    path: HotPath
    others: HotPath
    once: bool
    usual_ns: int | None
    recurrence: Recurrence | None


def pause_threshold_ns(trace: Trace, thread: int, unit_ns: int) -> int:
    """From which length on a gap is a pause, not a slow launch.

    `unit_ns` is the length of the median step, or of the window without steps.
    """
    launches = occurring(trace.gpu.call)
    launches = launches[trace.calls.thread[launches] == thread]
    apart_ns = np.diff(trace.calls.start_ns[launches])
    launch_ns = float(np.median(apart_ns)) if len(apart_ns) else _ALWAYS_A_PAUSE_NS
    return round(min(max(_PAUSE_SHARE * unit_ns, _PAUSE_LAUNCHES * launch_ns), _ALWAYS_A_PAUSE_NS))


def find_pauses(
    trace: Trace, gaps: IdleGaps, idle: Intervals, steps: Steps, window: Intervals, threshold_ns: int
) -> tuple[PauseGroup, ...]:
    """The pauses by what the CPU did, those that recur first, then those that happen once; the longest group first.

    `idle` is the idle time that is nothing else's: no loader, sync or allocator explains it.
    """
    late = gaps.late_launch_time(min_ns=threshold_ns)
    found: list[PauseGroup] = []
    for time, once in zip(split_one_offs(iv.intersect(late, idle), steps), (False, True), strict=True):
        groups = _group_pauses(trace, gaps, time, window)
        found += [_describe_group(trace, gaps, late, each, path, steps, once) for each, path in groups]
    return tuple(sorted(found, key=lambda group: (group.once, -iv.total(group.time))))


def pausing_threads(trace: Trace, gaps: IdleGaps, pauses: Intervals) -> Int32Array:
    """For each pause the thread that launched the item after it: what it did meanwhile is why the item came late."""
    gap = np.searchsorted(gaps.start_ns, pauses[:, 0], side="right") - 1
    result: Int32Array = trace.calls.thread[gaps.launch[gap]]
    return result


def _group_pauses(
    trace: Trace, gaps: IdleGaps, pauses: Intervals, window: Intervals
) -> list[tuple[Intervals, HotPath]]:
    """Pauses with a hot path in common, longest group first, until all are named or nothing more can be."""
    found: list[tuple[Intervals, HotPath]] = []
    while len(pauses):
        thread = pausing_threads(trace, gaps, pauses)
        path, part = find_pause_path(trace, pauses, thread, window)
        if len(found) + 1 == _MAX_GROUPS:
            part[:] = True
        found.append((pauses[part], path))
        pauses = pauses[~part]
    return found


def _describe_group(
    trace: Trace, gaps: IdleGaps, late: Intervals, time: Intervals, path: HotPath, steps: Steps, once: bool
) -> PauseGroup:
    has_few_steps = steps.count < _MIN_STEPS
    once |= has_few_steps and path.kind in activity_kinds.HAPPENING_ONCE
    if path.kind == activity_kinds.MODULE_LOAD and not once:
        path = replace(path, kind=None, kind_time=iv.EMPTY)  # what takes long in every step loads nothing
    usual_ns = None
    if path.kind is None and (once or has_few_steps):
        usual_ns = _usual_ns(trace, path)
        once |= usual_ns is not None
    rest = iv.subtract(time, path.deepest_time)
    return PauseGroup(
        time,
        int(np.count_nonzero(iv.overlap(late[:, 0], late[:, 1], time))),
        path,
        find_hot_path(trace, rest, pausing_threads(trace, gaps, rest)),
        once,
        usual_ns,
        count_recurrence(time, steps),
    )


def _usual_ns(trace: Trace, path: HotPath) -> int | None:
    """The median run of the deepest op or call elsewhere, if it is far shorter than here and there are enough."""
    deepest = path.deepest
    if deepest is None or deepest.table not in ("op", "call"):
        return None
    count, median_ns = usual_run_of(trace, deepest, path.deepest_time)
    is_usual = count >= _MIN_USUAL_RUNS * deepest.runs
    return median_ns if is_usual and deepest.time_ns >= _UNUSUALLY_LONG * median_ns * deepest.runs else None
