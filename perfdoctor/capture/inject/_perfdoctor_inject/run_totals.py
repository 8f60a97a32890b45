"""Counts and times that the hooks add up while the program runs."""

from __future__ import annotations

import statistics
from collections import Counter
from types import FrameType
from typing import Any

from .compile_counters import CompilesByWindow
from .model_facts import describe_optimizer
from .user_code import Location, user_location

# Windows whose step times stand in facts.json; steps.jsonl has the times of all steps.
TIMED_WINDOWS = ("base", "timing", "evidence")


class RunTotals:
    """What happened so far in one process.

    Attributes:
        counts: Calls of the counted functions, by name.
        step_ns: Durations of the steps of each window.
        wait_ns: For each of these steps, the wait in `DataLoader.__next__`.
        optimizers: The description of each optimizer that has stepped, by `id`.
        compiles: What was compiled in the steps of each window.
        threads_set: The line that called `torch.set_num_threads` last; None where none did.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.step_ns: dict[str, list[int]] = {window: [] for window in TIMED_WINDOWS}
        self.wait_ns: dict[str, list[int]] = {window: [] for window in TIMED_WINDOWS}
        self.optimizers: dict[int, dict[str, Any]] = {}
        self.compiles = CompilesByWindow()
        self.threads_set: Location | None = None
        self._gradients_are_scaled = False
        self._last_step_ns = 0

    def count_call(self, name: str) -> None:
        """Add one call; clipping between `scale` and `unscale_` is also counted as `clipped_before_unscale`."""
        self.counts[name] += 1
        if name == "scaled":
            self._gradients_are_scaled = True
        elif name == "unscaled":
            self._gradients_are_scaled = False
        elif name == "clipped" and self._gradients_are_scaled:
            self.counts["clipped_before_unscale"] += 1

    def note_threads_set(self, frame: FrameType | None) -> None:
        """Remember the line that has set the number of threads."""
        self.threads_set = user_location(frame)

    def add_step(self, window: str, dur_ns: int, wait_ns: int) -> None:
        """Add a step that has ended."""
        self._last_step_ns = dur_ns
        self.compiles.end_step(window)
        if window in self.step_ns:
            self.step_ns[window].append(dur_ns)
            self.wait_ns[window].append(wait_ns)

    def count_optimizer_step(self, optimizer: Any) -> None:
        """Add one `Optimizer.step`; the first one of each optimizer describes it."""
        description = self.optimizers.get(id(optimizer))
        if description is None:
            description = self.optimizers[id(optimizer)] = describe_optimizer(optimizer)
        description["steps"] += 1

    def usual_step_ns(self) -> int:
        """The median step of the base window; before the base window, the last step."""
        base = self.step_ns["base"]
        return int(statistics.median(base)) if base else self._last_step_ns
