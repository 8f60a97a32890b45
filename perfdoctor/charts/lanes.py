"""How deep each item of a track is drawn: by nesting on a thread, beside what it overlaps on a stream."""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.arrays import BoolArray, Int8Array, Int32Array, Int64Array

MAX_DEPTH = 127
"""What is nested deeper is drawn at this depth."""
_MAX_LANES = 16


def depth_of(parent: Int32Array) -> Int64Array:
    """For each row the number of rows around it, by the row of its parent (NONE without one).

    Jumps to ancestors double in length, so that deep stacks cost the logarithm of their depth.
    """
    count = len(parent)
    jump = np.append(np.where(parent >= 0, parent, count), count)
    depth = np.append(parent >= 0, False).astype(np.int64)
    while (jump[:count] < count).any():
        depth += depth[jump]
        jump = jump[jump]
    return depth[:count]


def side_lanes(start_ns: Int64Array, end_ns: Int64Array) -> Int8Array:
    """For each item of a stream the first lane in which it overlaps no item before it; items are sorted by start.

    For example::

        start  0  5  12  14
        end   10 20  13  30
        lane   0  1   0   0

    What overlaps in the last of 16 lanes stays there.
    """
    lane = np.zeros(len(start_ns), np.int8)
    rest = np.arange(len(start_ns))
    for number in range(_MAX_LANES):
        lane[rest] = number
        start, end = start_ns[rest], end_ns[rest]
        if (start[1:] >= end[:-1]).all():
            break
        following = np.maximum(np.searchsorted(start, end), np.arange(1, len(rest) + 1))
        rest = rest[~_on_chain(following)]
    return lane


def _on_chain(following: Int64Array) -> BoolArray:
    """Which positions come up when one starts at 0 and goes from each to the `following` one, up to the end."""
    count = len(following)
    jump = np.append(following, count)
    reached = np.zeros(count + 1, bool)
    reached[0] = True
    while jump[0] < count:
        reached[jump[reached]] = True
        jump = jump[jump]
    reached[jump[reached]] = True
    return reached[:count]
