"""How the memory of a device grows with the batch: at each event some of what is allocated does, and some does not."""

from __future__ import annotations

import numpy as np

from perfdoctor.rules import NONE, DeviceMemory, Int64Array, MemoryEdit, allocated_after, shrink


class BatchGrowth:
    """What is allocated after each event, in two parts: what a larger batch makes larger, and the rest.

    For example, with a parameter of 4 and values of 2 and 3 of a batch::

        event        0   1   2   3   4
        fixed        4   4   4   4   4
        growing      0   2   5   3   0     largest batch in 14: (14 - 4) / 5, twice as large

    Attributes:
        fixed_bytes: What stays as it is: parameters, gradients, states, and what is not known.
        growing_bytes: What is as many times as large as the batch.
    """

    def __init__(self, memory: DeviceMemory, places: Int64Array, *edits: MemoryEdit) -> None:
        """Some allocations grow; they are as recorded, or as some edits leave them."""
        self.fixed_bytes: Int64Array = allocated_after(memory, [shrink(memory, NONE, places)])
        self.growing_bytes: Int64Array = np.maximum(allocated_after(memory, edits) - self.fixed_bytes, 0)

    def peak_bytes(self, ratio: float) -> float:
        """The most that is allocated with a batch so many times as large."""
        return float((self.fixed_bytes + ratio * self.growing_bytes).max(initial=0))

    def largest_ratio(self, limit_bytes: float) -> float:
        """How many times as large a batch may be, so that no more is allocated; 0 where the rest alone is too much."""
        if self.fixed_bytes.max(initial=0) > limit_bytes:
            return 0.0
        growing = self.growing_bytes > 0
        ratios = (limit_bytes - self.fixed_bytes[growing]) / self.growing_bytes[growing]
        return float(ratios.min(initial=np.inf))
