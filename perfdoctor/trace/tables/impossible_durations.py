"""Durations that no GPU item can have, as broken records and clocks leave them in files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoctor.trace.arrays import BoolArray, Int64Array, IntArray

# The CPU's events may end before the last kernel does, but not by that much.
_MAX_RATIO, _MAX_NS = 10, 10**10
# Items that overlap in a file of a few short events prove nothing: where it names no streams they share a queue.
_MIN_NS = 10**7


def find_impossible(
    start_ns: Int64Array, dur_ns: Int64Array, queue: Sequence[IntArray], host_ns: tuple[int, int] | None
) -> BoolArray:
    """For each GPU item whether its duration is impossible: negative, or longer than everything else in the trace.

    The last kernel may outlast all else, where nobody waited for it. So a longer one is impossible only if the next
    item of its queue starts before it ends, or if it is ten times as long as all else and longer than 10 s::

        CPU         |--------|
        stream 7       |-------------------------|      possible: nobody waited for it
        stream 7       |--------- 54 years ---------    impossible
        stream 8       |----------------|               impossible: another item of its stream starts meanwhile
        stream 8             |--|

    The items are in order of their start. The columns of `queue` together name the queue of each, such as process,
    device and stream; `host_ns` is when the events of the CPU begin and end.
    """
    negative = dur_ns < 0
    if not len(start_ns):
        return negative
    begin, end = host_ns or (int(start_ns[0]), int(start_ns[-1]))
    suspect = dur_ns > end - begin
    if not suspect.any():
        return negative
    others = ~suspect & ~negative
    if others.any():
        begin = min(begin, int(start_ns[others].min()))
        end = max(end, int((start_ns + dur_ns)[others].max()))
    extent_ns = end - begin
    suspect &= dur_ns > extent_ns
    beyond_doubt = dur_ns > max(_MAX_RATIO * extent_ns, _MAX_NS)
    return negative | (
        suspect & (beyond_doubt | (dur_ns > _MIN_NS) & _is_overtaken(start_ns, start_ns + dur_ns, queue))
    )


def _is_overtaken(start_ns: Int64Array, end_ns: Int64Array, queue: Sequence[IntArray]) -> BoolArray:
    """For each item whether the next one of its queue starts before it ends."""
    order = np.lexsort((start_ns, *queue))
    this, following = order[:-1], order[1:]
    overtaken = start_ns[following] < end_ns[this]
    for column in queue:
        overtaken &= column[this] == column[following]
    result = np.zeros(len(start_ns), bool)
    result[this] = overtaken
    return result
