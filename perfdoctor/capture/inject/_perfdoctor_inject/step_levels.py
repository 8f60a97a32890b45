"""Whether the steps of a running program take longer and longer: a cheap look, which decides on another window only.

What a report says of drift is found in all steps, by `perfdoctor.run_watch.change_points`.
"""

from __future__ import annotations

import statistics

# Levels that are kept; then two neighbours become one.
MAX_LEVELS = 64
# Fewer say nothing; a side of a split has an eighth of them at least.
MIN_LEVELS = 16
SPLITS = 8
# The first level is of so many steps.
LEVEL_STEPS = 10
# A tenth is twice what the levels of a quiet machine vary by.
RISEN_RATIO = 1.1


class StepLevels:
    """Median durations of runs of steps, in their order: 64 numbers at most, however many steps there are.

    A step costs 0.3 us, a look 25 us.
    """

    def __init__(self) -> None:
        self.levels: list[float] = []
        self._steps: list[float] = []
        self._steps_per_level = LEVEL_STEPS
        self._parts: list[float] = []

    def add(self, dur_ns: float) -> None:
        """Add a step that has ended."""
        self._steps.append(dur_ns)
        if len(self._steps) < LEVEL_STEPS:
            return
        self._parts.append(sorted(self._steps)[LEVEL_STEPS // 2])
        self._steps.clear()
        if len(self._parts) * LEVEL_STEPS < self._steps_per_level:
            return
        self.levels.append(sum(self._parts) / len(self._parts))
        self._parts.clear()
        if len(self.levels) >= MAX_LEVELS:
            self.levels = [(a + b) / 2 for a, b in zip(self.levels[::2], self.levels[1::2], strict=True)]
            self._steps_per_level *= 2

    def have_risen(self) -> bool:
        """Whether nine tenths of the last levels lie above nine tenths of the first ones, and a tenth above them."""
        count = len(self.levels)
        if count < MIN_LEVELS:
            return False
        for part in range(1, SPLITS):
            before = sorted(self.levels[: part * count // SPLITS])
            after = sorted(self.levels[part * count // SPLITS :])
            is_apart = after[len(after) // 10] > before[-1 - len(before) // 10]
            if is_apart and statistics.median(after) > RISEN_RATIO * statistics.median(before):
                return True
        return False
