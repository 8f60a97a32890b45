"""Counts and times that the hooks add up while the program runs, and how late steps compare with early ones."""

from __future__ import annotations

import functools
import statistics
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from .compile_counters import CompilesByWindow
from .probes import Probe
from .step_meter import StepWork
from .user_code import Location, user_location

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

    A step costs 0.3 us, a look 25 us. They decide on another window only: what a report says of drift is found in all
    steps, by `perfdoctor.run_watch.change_points`.
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


MAX_SOURCES = 8


class Float64Sources(Probe):
    """The lines that ask for float64, each call and line once: they run before the loop, where no trace shows them.

    Attributes:
        found: For each of them the call and the line, as they stand in facts.json.
    """

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def install(self, watch: Callable[..., None]) -> None:
        """Watch what may ask for it; `watch` is that of `Patches`, in the training thread."""
        for owner, name in ((torch.nn.Module, "double"), (torch.nn.Module, "to"), (torch, "set_default_dtype")):
            call = name if owner is torch else f"Module.{name}"
            watch(owner, name, functools.partial(self._see, call))

    def _see(self, call: str, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if call == "Module.double" or asks_for_float64(args, kwargs):
            self.note(call, frame)

    def note(self, call: str, frame: FrameType | None) -> None:
        """Remember the line of a call."""
        source: dict[str, Any] = {"call": call, "location": user_location(frame)}
        if len(self.found) < MAX_SOURCES and source not in self.found:
            self.found.append(source)

    def facts(self) -> dict[str, Any]:
        """The lines."""
        return {"float64_sources": self.found}


def asks_for_float64(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of `Module.to` or `set_default_dtype` name float64, or a tensor of it."""
    given = (*args, *kwargs.values())
    return any(each is torch.float64 or (type(each) is torch.Tensor and each.dtype is torch.float64) for each in given)


# Windows whose step times stand in facts.json; steps.jsonl has the times of all steps.
TIMED_WINDOWS = ("base", "timing", "evidence")
# Windows without a profiler, after the warm-up of the program.
UNPROFILED_WINDOWS = ("base", "after")
# Of each step of a timed window, in facts.json.
WORK_NAMES = (
    *("cpu_ns", "process_cpu_ns", "preempted", "queued_ns", "system_cpu_ns", "minor_faults"),
    *("batches", "backwards", "gc_ns", "host_call_ns", "samples"),
)
# The median of the run is of this many unprofiled steps at most: 8 bytes each.
MAX_UNPROFILED_STEPS = 200_000
# A run has changed when the median of this many late steps has, by so much: early steps of many programs are shorter
# (replay buffers fill, sequences grow), and 30 % is more than the noise of a shared machine.
RECENT_STEPS = 20
CHANGED_RATIO = 1.3
# Stacks cost about 0.25 us for every Python call; to save the trace of a step takes fifty times as long again.
EXPENSIVE_STACKS_NS = 20_000_000


@dataclass(frozen=True)
class TimedStep:
    """A step of a window: its duration, its wait in `DataLoader.__next__`, its cost and work."""

    dur_ns: int
    wait_ns: int
    work: StepWork


class RunTotals(Probe):
    """What happened so far in one process.

    Attributes:
        counts: Calls of the counted functions, by name.
        recent_steps: Duration and amount of work of the latest steps after the windows.
        levels: Of the steps after the windows that were recorded last.
        written_events: Events in the traces that were written.
        writing_ns: Time for writing them.
        steps: Steps that have ended.
        user_profiled_steps: Steps in which a profiler of the program ran.
        compiles: What was compiled in the steps of each window.
        threads_set: The line that called `torch.set_num_threads` last; None where none did.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sample: dict[str, list[TimedStep]] = {window: [] for window in TIMED_WINDOWS}
        self._kept: dict[str, list[TimedStep]] = {window: [] for window in TIMED_WINDOWS}
        self.recent_steps: deque[tuple[int, int]] = deque(maxlen=RECENT_STEPS)
        self.levels = StepLevels()
        self.written_events = self.writing_ns = 0
        self.steps = self.user_profiled_steps = 0
        self.compiles = CompilesByWindow()
        self.threads_set: Location | None = None
        self._last_step_ns = self._last_own_ns = 0
        self._last_cpu_ns: int | None = None
        self._first_step_end_ns = 0
        self._first_step_ns = 0
        self._unprofiled_ns = array("q")
        self._unprofiled_steps = self._unprofiled_total_ns = 0

    def add_step(self, window: str, label: str, dur_ns: int, wait_ns: int, work: StepWork) -> None:
        """Add a step that has ended.

        `window` is the one whose times and work stand in facts.json, `label` the one in steps.jsonl; `wait_ns` is the
        wait in `DataLoader.__next__`.
        """
        if not self.steps:
            self._first_step_end_ns, self._first_step_ns = time.perf_counter_ns(), dur_ns
        self.steps += 1
        self.user_profiled_steps += label == "user_profiler"
        self._last_step_ns = dur_ns
        self._last_own_ns, self._last_cpu_ns = _own_ns(dur_ns, work), work.cpu_ns
        if label in UNPROFILED_WINDOWS:
            self._unprofiled_steps += 1
            self._unprofiled_total_ns += dur_ns
        if label in UNPROFILED_WINDOWS and len(self._unprofiled_ns) < MAX_UNPROFILED_STEPS:
            self._unprofiled_ns.append(dur_ns)
        if label == "after":
            self.recent_steps.append((dur_ns, work.amount))
            self.levels.add(dur_ns / work.amount)
        if window in TIMED_WINDOWS:
            self._sample[window].append(TimedStep(dur_ns, wait_ns, work))

    def begin_window(self, window: str) -> None:
        """Forget the steps of this window that no trace was saved of."""
        self._sample[window] = []

    def keep_window(self, window: str) -> None:
        """The trace of a window was saved: its steps stand in facts.json, those of the base before it, too."""
        self._kept[window] = self._sample[window]
        if window == "timing" and self._sample["base"]:
            self._kept["base"] = self._sample["base"]

    def steps_of(self, window: str) -> list[TimedStep]:
        """The steps of a window as they stand in facts.json: those of the longer base window, and of saved traces."""
        kept, now = self._kept[window], self._sample[window]
        return now if not kept or (window == "base" and len(now) > len(kept)) else kept

    def base_work_changes(self) -> bool:
        """Whether the last step of the base window holds other work than its first: more micro-batches, say."""
        base = self._sample["base"]
        return len(base) > 1 and base[-1].work.amount != base[0].work.amount

    def run_has_changed(self) -> bool:
        """Whether steps grow, or those of late take longer or shorter than the base window's, by 30 % and more."""
        base = self.steps_of("base")
        if len(self.recent_steps) < RECENT_STEPS or not base:
            return False
        before = statistics.median(step.dur_ns / step.work.amount for step in base)
        now = statistics.median(dur_ns / amount for dur_ns, amount in self.recent_steps)
        return not 1 / CHANGED_RATIO <= now / max(before, 1) <= CHANGED_RATIO or self.levels.have_risen()

    def describe_run(self) -> dict[str, Any]:
        """The whole run: its steps and its time; of the steps without a profiler their number, median and time."""
        return {
            "steps": self.steps,
            "median_ns": int(statistics.median(self._unprofiled_ns)) if self._unprofiled_ns else None,
            "seen_ns": self.seen_ns(),
            "unprofiled_steps": self._unprofiled_steps,
            "unprofiled_ns": self._unprofiled_total_ns,
        }

    def seen_ns(self) -> int:
        """Wall time since the first step began."""
        return time.perf_counter_ns() - self._first_step_end_ns + self._first_step_ns if self.steps else 0

    def facts(self) -> dict[str, Any]:
        """The times of the steps of each window, and their cost and work."""
        return {
            "base_step_ns": [step.dur_ns for step in self.steps_of("base")],
            "base_loader_wait_ns": [step.wait_ns for step in self.steps_of("base")],
            "timing_step_ns": [step.dur_ns for step in self.steps_of("timing")],
            "evidence_step_ns": [step.dur_ns for step in self.steps_of("evidence")],
            **{
                f"{window}_{name}": [getattr(step.work, name) for step in self.steps_of(window)]
                for window in TIMED_WINDOWS
                for name in WORK_NAMES
            },
        }

    def usual_step_ns(self) -> int:
        """The median step of the base window; before the base window, the last step."""
        base = [step.dur_ns for step in self._sample["base"] or self._kept["base"]]
        return int(statistics.median(base)) if base else self._last_step_ns

    def stacks_are_expensive(self) -> bool:
        """Whether the last step, of the evidence window, took so long that one is enough.

        Python loops make 100,000 events a step and more. Waits for a core, or for another rank whose recorder works,
        are no cost of stacks.
        """
        base = self._sample["base"] or self._kept["base"]
        if not base:
            return False
        usual_ns = statistics.median(_own_ns(step.dur_ns, step.work) for step in base)
        added_ns = self._last_own_ns - usual_ns
        cpu_ns = [step.work.cpu_ns for step in base if step.work.cpu_ns is not None]
        if cpu_ns and self._last_cpu_ns is not None:
            added_ns = min(added_ns, self._last_cpu_ns - statistics.median(cpu_ns))
        return added_ns > max(usual_ns, EXPENSIVE_STACKS_NS)


def _own_ns(dur_ns: int, work: StepWork) -> int:
    """How long a step took without its waits for a core."""
    return max(dur_ns - (work.queued_ns or 0), 0)
