"""Counts and times that the hooks add up while the program runs."""

from __future__ import annotations

import statistics
import time
from array import array
from collections import Counter
from types import FrameType
from typing import Any

from .compile_counters import CompilesByWindow
from .step_meter import StepWork
from .user_code import Location, user_location

# Windows whose step times stand in facts.json; steps.jsonl has the times of all steps.
TIMED_WINDOWS = ("base", "timing", "evidence")
# Windows without a profiler, after the warm-up of the program.
UNPROFILED_WINDOWS = ("base", "after")
# Of each step of a timed window, in facts.json.
WORK_NAMES = ("cpu_ns", "process_cpu_ns", "preempted", "batches", "backwards")
# The median of the run is of this many unprofiled steps at most: 8 bytes each.
MAX_UNPROFILED_STEPS = 200_000


class RunTotals:
    """What happened so far in one process.

    Attributes:
        counts: Calls of the counted functions, by name.
        step_ns: Durations of the steps of each window.
        wait_ns: For each of these steps, the wait in `DataLoader.__next__`.
        work: For each of these steps, what it cost and did.
        steps: Steps that have ended.
        unrecorded: Sentences on what was not seen of the run.
        compiles: What was compiled in the steps of each window.
        threads_set: The line that called `torch.set_num_threads` last; None where none did.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.step_ns: dict[str, list[int]] = {window: [] for window in TIMED_WINDOWS}
        self.wait_ns: dict[str, list[int]] = {window: [] for window in TIMED_WINDOWS}
        self.work: dict[str, list[StepWork]] = {window: [] for window in TIMED_WINDOWS}
        self.steps = 0
        self.unrecorded: list[str] = []
        self.compiles = CompilesByWindow()
        self.threads_set: Location | None = None
        self._gradients_are_scaled = False
        self._last_step_ns = 0
        self._first_step_end_ns = 0
        self._first_step_ns = 0
        self._unprofiled_ns = array("q")

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

    def add_step(self, window: str, dur_ns: int, wait_ns: int, work: StepWork) -> None:
        """Add a step that has ended."""
        if not self.steps:
            self._first_step_end_ns, self._first_step_ns = time.perf_counter_ns(), dur_ns
        self.steps += 1
        self._last_step_ns = dur_ns
        if window in UNPROFILED_WINDOWS and len(self._unprofiled_ns) < MAX_UNPROFILED_STEPS:
            self._unprofiled_ns.append(dur_ns)
        if window in self.step_ns:
            self.step_ns[window].append(dur_ns)
            self.wait_ns[window].append(wait_ns)
            self.work[window].append(work)

    def describe_run(self) -> dict[str, Any]:
        """The whole run: its steps, the median of those without a profiler, its time, and what was not seen."""
        elapsed_ns = time.perf_counter_ns() - self._first_step_end_ns if self.steps else 0
        return {
            "steps": self.steps,
            "median_ns": int(statistics.median(self._unprofiled_ns)) if self._unprofiled_ns else None,
            "seen_ns": elapsed_ns + self._first_step_ns,
            "unrecorded": self.unrecorded,
        }

    def describe_work(self) -> dict[str, list[int | None]]:
        """Of each step of each timed window its cost and work, by names such as base_cpu_ns."""
        return {
            f"{window}_{name}": [getattr(work, name) for work in self.work[window]]
            for window in TIMED_WINDOWS
            for name in WORK_NAMES
        }

    def usual_step_ns(self) -> int:
        """The median step of the base window; before the base window, the last step."""
        base = self.step_ns["base"]
        return int(statistics.median(base)) if base else self._last_step_ns
