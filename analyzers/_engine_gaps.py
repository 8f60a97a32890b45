"""What a serving engine does between two passes while the GPU idles, and its waits for the tokens of a pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.rules import CallRows, Intervals, Rank, format_time, frozen_dataclass, match_blocking_calls, read_texts
from perfdoctor.rules import intervals as iv

# With fewer passes the first one, which begins behind an empty queue, is a large part of the recording.
_MIN_PASSES = 3
# Idle time with a name that is less of the window leaves the waits to the rule about waits.
_MIN_SHARE = 0.01


@frozen_dataclass(eq=False)
class EngineGaps:
    """The idle time of the GPU in the window while a serving engine does something that has a name.

    Attributes:
        idle: By the work of the engine, a key of `activity_kinds.ENGINE_WORK`.
        waits: The calls in which the engine waits for the GPU between two passes, as for the tokens of one.
    """

    idle: Mapping[str, Intervals]
    waits: CallRows

    @property
    def time(self) -> Intervals:
        """The idle time of all work."""
        return iv.union_of(self.idle.values())

    def describe(self, rank: Rank) -> str:
        """What the engine does per step, the longest first: "schedules (1.4 ms) and prepares inputs (800 us)"."""
        doing = read_texts("words")["engines"]
        costs = sorted(((rank.per_step(iv.total(idle)), work) for work, idle in self.idle.items()), reverse=True)
        parts = [f"{doing[work]} ({format_time(ns)})" for ns, work in costs if 10 * ns >= costs[0][0]]
        return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def find_engine_gaps(rank: Rank) -> EngineGaps | None:
    """The gaps between the passes of an engine; None where too few passes or too little named work is recorded."""
    passes = rank.engine_passes
    if passes is None or len(passes) < _MIN_PASSES:
        return None
    idle = {work: iv.intersect(passes.idle[work], rank.window) for work in read_texts("words")["engines"]}
    if sum(map(iv.total, idle.values())) < _MIN_SHARE * rank.window_ns:
        return None
    return EngineGaps(idle, _find_waits_between_passes(rank))


def can_hide_cpu_work(rank: Rank, waits: CallRows) -> bool:
    """Whether an engine that schedules ahead, by one pass, hides all of its CPU's work behind the GPU's.

    That is so where the CPU works on no pass for longer than the GPU does, without the waits between the passes.
    """
    passes = rank.engine_passes
    if passes is None or len(passes) < _MIN_PASSES:
        return False
    began, ended = passes.began_ns[:-1], passes.began_ns[1:]
    waiting = iv.union(waits.table.start_ns[waits.index], waits.table.end_ns[waits.index])
    return bool((ended - began - iv.overlap(began, ended, waiting) <= passes.busy_ns[:-1]).all())


def is_recorded_alone(rank: Rank) -> bool:
    """Whether the only pass of the recording idles no longer than it works, and a running engine would hide that.

    Starting the profiler takes longer than a pass, so that the first one begins behind an empty queue; the engine
    prepares those after it while the GPU works.
    """
    passes = rank.engine_passes
    if passes is None or len(passes) > 1 or not rank.context.schedules_ahead:
        return False
    return 2 * sum(map(iv.total, passes.idle.values())) <= iv.total(passes.windows)


def _find_waits_between_passes(rank: Rank) -> CallRows:
    """The blocking calls of the engine's thread between the last launch of a pass and the first of the next."""
    trace, passes = rank.trace, rank.engine_passes
    waits = rank.calls.where(match_blocking_calls(trace)).in_steps().rows
    if passes is None:
        return waits
    calls, launched = trace.calls, np.flatnonzero((trace.gpu.call >= 0) & (passes.pass_of_item >= 0))
    launched = launched[np.argsort(calls.start_ns[trace.gpu.call[launched]], kind="stable")]
    launched_ns = calls.start_ns[trace.gpu.call[launched]]
    number = np.append(passes.pass_of_item[launched], -1)  # the last one for what lies before or after all launches
    before = np.searchsorted(launched_ns, calls.start_ns[waits.index], side="right") - 1
    after = np.searchsorted(launched_ns, calls.end_ns[waits.index])
    is_between = (number[before] != number[after]) & (calls.thread[waits.index] == passes.thread)
    return CallRows(calls, waits.index[is_between])
