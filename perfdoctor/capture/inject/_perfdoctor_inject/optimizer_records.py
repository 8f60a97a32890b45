"""What is known of each optimizer: where it was made, which line calls `step`, its settings, and what a step takes.

And the order in which a program scales, clips and unscales gradients: what is wrong only where all of it is seen.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.amp import autocast_mode, grad_scaler

from .model_facts import describe_optimizer
from .probes import EndedStep, Probe
from .user_code import Location, constructor_location, user_location
from .watched_calls import Watching

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
    """

    def __init__(self) -> None:
        self.clipped_too_early = 0
        self.clip_line: Location | None = None
        self._calls: Counter[str] = Counter()
        self._are_gradients_scaled = False
        # Parameters, by identity, since the last `update`.
        self._clipped: set[int] = set()
        self._unscaled: set[int] = set()
        self._frame_line: Location | None = None

    def install(self, watch: Callable[..., None]) -> None:
        """Watch what scales, unscales and clips gradients; `watch` is that of `Patches`, in the training thread."""
        for name in ("scale", "unscale_", "step", "get_scale"):
            watch(grad_scaler.GradScaler, name, functools.partial(self._see_scaler, name))
        watch(autocast_mode.autocast, "__enter__", self._see_autocast)
        for clipping in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                watch(clipping, name, self._watch_clipping)

    def _see_scaler(self, call: str, _frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A scaler is about to scale a loss, to unscale gradients, also within its step, or to tell its scale."""
        if not args[0].is_enabled():
            return
        self._calls[call] += 1
        if call == "scale":
            self._are_gradients_scaled = True
        elif call in ("step", "unscale_"):
            own = self._check_clips(args[1] if len(args) > 1 else kwargs["optimizer"])
            if call == "unscale_":
                self._unscaled |= own

    def _see_autocast(self, *_: Any) -> None:
        self._calls["autocast"] += 1

    def _watch_clipping(self, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching:
        self._calls["clip"] += 1
        if not self._are_gradients_scaled:
            return
        parameters = args[0] if args else kwargs.pop("parameters")
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)  # as torch does: they may come from a generator
        limit = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
        if isinstance(limit, int | float) and limit <= LARGEST_USUAL_LIMIT:
            clipped = map(id, [parameters] if isinstance(parameters, torch.Tensor) else parameters)
            self._clipped.update(each for each in clipped if each not in self._unscaled)
            self._frame_line = user_location(frame)
        yield (parameters, *args[1:]), kwargs

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
        self._are_gradients_scaled = False
        self._clipped.clear()
        self._unscaled.clear()

    def facts(self) -> dict[str, Any]:
        """How often mixed precision was used and gradients were clipped, and what was wrong with that."""
        used = {
            "autocast": self._calls["autocast"],
            "scaled": self._calls["scale"],
            "unscaled": self._calls["unscale_"],
            "clipped": self._calls["clip"],
            "clipped_before_unscale": self.clipped_too_early,
            "clip_location": self.clip_line,
            "scaler_steps": self._calls["step"],
            # The program may unscale by itself.
            "scale_was_read": self._calls["get_scale"],
        }
        return {"amp": used}
