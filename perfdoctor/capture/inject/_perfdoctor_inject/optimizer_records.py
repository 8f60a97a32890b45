"""What is known of each optimizer: where it was made, which line calls `step`, its settings, and what a step takes."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from .model_facts import describe_optimizer
from .user_code import Location, constructor_location, user_location

# The window whose times are the program's own: it runs without a profiler.
TIMED_WINDOW = "base"


@dataclass
class OptimizerRecord:
    """One optimizer that has stepped.

    Attributes:
        description: What `describe_optimizer` returned.
        created: The line that made the optimizer, None when nothing listened then.
        location: The line that calls its `step`.
        steps: Calls of `step` in the whole run.
        own_ns: For each step of the training loop in which it stepped, its own time, in the timed window.
        closure_ns: For each of these steps the time in closures, and in optimizers that this one calls.
    """

    description: dict[str, Any]
    created: Location | None = None
    location: Location | None = None
    steps: int = 0
    own_ns: list[int] = field(default_factory=list)
    closure_ns: list[int] = field(default_factory=list)

    def to_dict(self, timed_steps: int) -> dict[str, Any]:
        """The record as it stands in facts.json.

        `timed_steps` counts also those steps of the training loop in which it did not step.
        """
        return {
            **self.description,
            "steps": self.steps,
            "created": self.created,
            "location": self.location,
            "own_ns": usual_ns(self.own_ns, timed_steps),
            "closure_ns": usual_ns(self.closure_ns, timed_steps),
        }


class OptimizerRecords:
    """The records of all optimizers that have stepped, in the order of their first steps."""

    def __init__(self) -> None:
        self.records: list[OptimizerRecord] = []
        self._by_id: dict[int, OptimizerRecord] = {}
        self._created: dict[int, Location | None] = {}
        # Calls that run now, of `step` and of closures within: when each began, and the time of calls inside it.
        self._running: list[list[int]] = []
        self._times_of_step: dict[int, list[int]] = {}
        self._timed_steps = 0

    @property
    def is_running(self) -> bool:
        """Whether an optimizer steps now."""
        return bool(self._running)

    def add_optimizer(self, optimizer: Any, frame: FrameType | None) -> None:
        """Remember where a new optimizer was made."""
        self._by_id.pop(id(optimizer), None)  # an optimizer that is gone had the same address
        self._created[id(optimizer)] = constructor_location(frame, optimizer)

    def count_step(self, optimizer: Any) -> None:
        """Add one `Optimizer.step`; the first one of each optimizer describes it."""
        self._record_of(optimizer).steps += 1

    def begin_call(self) -> None:
        """`Optimizer.step`, or a closure in it, begins."""
        self._running.append([time.perf_counter_ns(), 0])

    def end_call(self) -> tuple[int, int]:
        """The innermost call ends.

        Returns its own time, and the time of the calls inside it.
        """
        if not self._running:
            return 0, 0
        start_ns, inside_ns = self._running.pop()
        whole_ns = time.perf_counter_ns() - start_ns
        if self._running:
            self._running[-1][1] += whole_ns
        return whole_ns - inside_ns, inside_ns

    def end_optimizer_step(self, optimizer: Any, frame: FrameType | None) -> None:
        """`Optimizer.step` ends, which the code in `frame` has called."""
        own_ns, inside_ns = self.end_call()
        times = self._times_of_step.setdefault(id(optimizer), [0, 0])
        times[0] += own_ns
        times[1] += inside_ns
        record = self._by_id.get(id(optimizer))
        if record is not None and record.location is None:
            record.location = user_location(frame)

    def end_step(self, window: str) -> None:
        """A step of the training loop has ended."""
        if window == TIMED_WINDOW:
            self._timed_steps += 1
            for optimizer_id, (own_ns, inside_ns) in self._times_of_step.items():
                record = self._by_id.get(optimizer_id)
                if record is not None:
                    record.own_ns.append(own_ns)
                    record.closure_ns.append(inside_ns)
        self._times_of_step.clear()

    def to_list(self) -> list[dict[str, Any]]:
        """The records as they stand in facts.json."""
        return [record.to_dict(self._timed_steps) for record in self.records]

    def _record_of(self, optimizer: Any) -> OptimizerRecord:
        record = self._by_id.get(id(optimizer))
        if record is None:
            record = OptimizerRecord(describe_optimizer(optimizer), self._created.get(id(optimizer)))
            self._by_id[id(optimizer)] = record
            self.records.append(record)
        return record


def usual_ns(times_ns: list[int], timed_steps: int) -> int | None:
    """The median time, spread over all steps where only some have one; None where nothing was timed."""
    if not times_ns or not timed_steps:
        return None
    return round(statistics.median(times_ns) * len(times_ns) / max(timed_steps, len(times_ns)))
