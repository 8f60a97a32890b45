"""Switches for debugging that a program has turned on: which, by which line, in how many steps, and at what cost.

Anomaly detection, profilers, gradient checks and deterministic algorithms are left on by mistake: many programs and
trainers set them in a block, so that the flags at the end of the run do not tell.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .probes import EndedStep, Probe
from .tracebacks import OWN_FOLDER
from .user_code import Location, constructor_location, user_location
from .watched_calls import RAISED, Watching

ANOMALY, PROFILER, NVTX, GRADCHECK, DETERMINISTIC = (
    "anomaly detection",
    "profiler",
    "emit_nvtx",
    "gradcheck",
    "deterministic algorithms",
)
# Frames between the setter of anomaly detection and whoever asks for it.
_SETTERS = ("torch.autograd.anomaly_mode", "contextlib")


class DebugSwitches(Probe):
    """What is on, step by step. The clocks run only in programs that turn something on."""

    def __init__(self) -> None:
        self._locations: dict[str, Location | None] = {}
        self._steps: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._ns: Counter[str] = Counter()
        self._step_ns: Counter[str] = Counter()
        self._total_steps = self._unprofiled_steps = 0
        self._watch: Callable[..., None] | None = None

    def install(self, watch: Callable[..., None]) -> None:
        """Watch the setters; `watch` is that of `Patches`, in the training thread."""
        self._watch = watch
        watch(torch, "set_anomaly_enabled", self._watch_set_anomaly)
        watch(torch, "use_deterministic_algorithms", self._watch_deterministic)
        for name in ("gradcheck", "gradgradcheck"):
            watch(torch.autograd, name, self._watch_gradcheck)
        profilers = torch.autograd.profiler
        for owner in (torch.profiler.profile, profilers.profile, profilers.emit_nvtx, profilers.emit_itt):
            switch = NVTX if owner in (profilers.emit_nvtx, profilers.emit_itt) else PROFILER
            watch(owner, "__init__", functools.partial(self._watch_init, switch))

    def _watch_set_anomaly(self, frame: FrameType, *_: Any) -> Watching:
        # torch.compile traces with it, to know the lines of its nodes.
        if (yield) is RAISED or not torch.is_anomaly_enabled() or _is_called_by_torch(frame):
            return
        self.note(ANOMALY, frame)
        watch, self._watch = self._watch, None
        if watch is not None:
            from torch.fx import traceback as fx_traceback

            watch(fx_traceback, "format_stack", self._watch_format_stack, is_listening=lambda: True)

    def _watch_format_stack(self, *_: Any) -> Watching:
        """Time what anomaly detection calls for each node of the graph, and leave our frame out of what it keeps."""
        start_ns = time.perf_counter_ns()
        lines = yield
        if isinstance(lines, list) and lines and OWN_FOLDER in lines[-1]:
            lines.pop()
        self.add_time(ANOMALY, time.perf_counter_ns() - start_ns)

    def _watch_deterministic(self, frame: FrameType, *_: Any) -> Watching:
        if (yield) is not RAISED and torch.are_deterministic_algorithms_enabled():
            self.note(DETERMINISTIC, frame)

    def _watch_gradcheck(self, frame: FrameType, *_: Any) -> Watching:
        self.note(GRADCHECK, frame)
        self.see(GRADCHECK)
        start_ns = time.perf_counter_ns()
        yield
        self.add_time(GRADCHECK, time.perf_counter_ns() - start_ns)

    def _watch_init(self, switch: str, frame: FrameType, args: tuple[Any, ...], _: dict[str, Any]) -> Watching:
        # Not our own sessions, nor the profiler that torch's makes inside.
        if (yield) is not RAISED and not frame.f_code.co_filename.startswith((OWN_FOLDER, *_PROFILER_FILES)):
            self.note(switch, frame, args[0])

    def note(self, switch: str, frame: FrameType | None, made: Any = None) -> None:
        """The code in `frame` has turned a switch on, or made the object that does."""
        self._locations[switch] = user_location(frame) if made is None else constructor_location(frame, made)

    def see(self, switch: str) -> None:
        """The switch is on in the running step."""
        self._seen.add(switch)

    def add_time(self, switch: str, ns: int) -> None:
        """A call that the switch causes, or is, has taken so long."""
        self._step_ns[switch] += ns

    def on_backward(self) -> None:
        """A backward pass begins: with anomaly detection, its gradients are checked."""
        if torch.is_anomaly_enabled():
            self._seen.add(ANOMALY)

    def step(self, ended: EndedStep) -> None:
        """A step ends; one in which the program's own profiler ran is of the window user_profiler."""
        if ended.label == "user_profiler":
            has_nvtx = NVTX in self._locations and PROFILER not in self._locations
            self._seen.add(NVTX if has_nvtx else PROFILER)
        if torch.are_deterministic_algorithms_enabled():
            self._seen.add(DETERMINISTIC)
        self._total_steps += 1
        if not ended.is_profiled:
            self._unprofiled_steps += 1
            self._ns.update(self._step_ns)
        if self._seen:
            self._steps.update(self._seen)
            self._seen.clear()
        self._step_ns.clear()

    def facts(self) -> dict[str, Any]:
        """The switches that were on in any step."""
        switches = [
            {
                "switch": switch,
                "steps": steps,
                "of_steps": self._total_steps,
                "step_ns": self._ns[switch] // self._unprofiled_steps
                if switch in self._ns and self._unprofiled_steps
                else None,
                "location": self._locations.get(switch),
            }
            for switch, steps in sorted(self._steps.items())
        ]
        return {"debug_switches": switches}


_PROFILER_FILES = (torch.profiler.profiler.__file__,)


def _is_called_by_torch(frame: FrameType | None) -> bool:
    """Whether torch's own code asks for anomaly detection, not the program by one of its two context managers."""
    while frame is not None and frame.f_globals.get("__name__") in _SETTERS:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("torch.")
