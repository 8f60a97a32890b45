"""What is known of each optimizer: where it was made, which line calls `step`, its settings, and what a step takes.

And the order in which a program scales, clips and unscales gradients: what is wrong only where all of it is seen.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from .model_facts import describe_optimizer
from .probes import EndedStep, Probe
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


class OptimizerRecords(Probe):
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

    def step(self, ended: EndedStep) -> None:
        """A step of the training loop has ended."""
        if ended.window == TIMED_WINDOW:
            self._timed_steps += 1
            for optimizer_id, (own_ns, inside_ns) in self._times_of_step.items():
                record = self._by_id.get(optimizer_id)
                if record is not None:
                    record.own_ns.append(own_ns)
                    record.closure_ns.append(inside_ns)
        self._times_of_step.clear()

    def facts(self) -> dict[str, Any]:
        """The records as they stand in facts.json."""
        return {"optimizers": [record.to_dict(self._timed_steps) for record in self.records]}

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


# Who clips scaled gradients on purpose multiplies the limit by the scale (65,536 at first). Limits that people mean for
# gradients are a few units.
LARGEST_USUAL_LIMIT = 1000.0


class ScalerRecords(Probe):
    """What enabled gradient scalers did.

    Gradients count as clipped too early where parameters are clipped after a loss was scaled, and a scaler divides the
    gradients of the same parameters afterwards: whatever else a program does with its gradients is not seen as wrong.

    Attributes:
        clipped_too_early: How often gradients were clipped while they were scaled.
        clip_line: The line that did it last.
        are_gradients_scaled: Whether a loss was scaled since the last `update`.
    """

    def __init__(self, counts: Counter[str]) -> None:
        """Nothing was scaled; `counts` are those of the whole run."""
        self._counts = counts
        self.clipped_too_early = 0
        self.clip_line: Location | None = None
        self.are_gradients_scaled = False
        self._steps = 0
        self._scale_was_read = 0
        # Parameters, by identity, since the last `update`.
        self._clipped: set[int] = set()
        self._unscaled: set[int] = set()
        self._frame_line: Location | None = None

    def on_scale(self, *_: Any, **__: Any) -> None:
        """A loss is about to be scaled."""
        self._counts["scaled"] += 1
        self.are_gradients_scaled = True

    def on_step(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """An optimizer is about to step by the scaler, which unscales its gradients, or lets a fused one do it."""
        self._steps += 1
        self._check_clips(optimizer)

    def on_get_scale(self, *_: Any, **__: Any) -> None:
        """The program asks for the scale: it may unscale by itself."""
        self._scale_was_read += 1

    def on_clip(self, parameters: Any, limit: Any, frame: FrameType | None) -> None:
        """The code in `frame` is about to clip the gradients of these parameters to a limit."""
        if not isinstance(limit, int | float) or limit > LARGEST_USUAL_LIMIT:
            return
        clipped = map(id, [parameters] if isinstance(parameters, torch.Tensor) else parameters)
        self._clipped.update(each for each in clipped if each not in self._unscaled)
        self._frame_line = user_location(frame)

    def on_unscale_(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """The gradients of an optimizer are about to be unscaled, by the program or by `GradScaler.step`."""
        self._counts["unscaled"] += 1
        self._unscaled |= self._check_clips(optimizer)

    def _check_clips(self, optimizer: Any) -> set[int]:
        """Count a clip of this optimizer's parameters, whose gradients are scaled up to now; returns the parameters."""
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if not own.isdisjoint(self._clipped):
            self.clipped_too_early += 1
            self.clip_line = self._frame_line
            self._clipped -= own
        return own

    def on_update(self) -> None:
        """`GradScaler.update` has run: the next iteration begins."""
        self.are_gradients_scaled = False
        self._clipped.clear()
        self._unscaled.clear()

    def facts(self) -> dict[str, Any]:
        """How often mixed precision was used and gradients were clipped, and what was wrong with that."""
        used = {
            **{name: self._counts[name] for name in ("autocast", "scaled", "unscaled", "clipped")},
            "clipped_before_unscale": self.clipped_too_early,
            "clip_location": self.clip_line,
            "scaler_steps": self._steps,
            "scale_was_read": self._scale_was_read,
        }
        return {"amp": used}
