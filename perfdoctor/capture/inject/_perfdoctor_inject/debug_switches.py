"""Switches for debugging that a program has turned on: which, by which line, in how many steps, and at what cost.

Anomaly detection, profilers, gradient checks and deterministic algorithms are left on by mistake: many programs and
trainers set them in a block, so that the flags at the end of the run do not tell.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .run_totals import UNPROFILED_WINDOWS
from .tracebacks import OWN_FOLDER, remove_own_frames
from .user_code import Location, constructor_location, user_location

ANOMALY, PROFILER, NVTX, GRADCHECK, DETERMINISTIC = (
    "anomaly detection",
    "profiler",
    "emit_nvtx",
    "gradcheck",
    "deterministic algorithms",
)
# Frames between the setter of anomaly detection and whoever asks for it.
_SETTERS = ("torch.autograd.anomaly_mode", "contextlib")

Function = Callable[..., Any]


class DebugSwitches:
    """What is on, step by step. The clocks run only in programs that turn something on."""

    def __init__(self) -> None:
        self._locations: dict[str, Location | None] = {}
        self._steps: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._ns: Counter[str] = Counter()
        self._step_ns: Counter[str] = Counter()
        self._total_steps = self._unprofiled_steps = 0

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

    def end_step(self, window: str) -> None:
        """A step of this window ends; one in which the program's own profiler ran is of the window user_profiler."""
        if window == "user_profiler":
            has_nvtx = NVTX in self._locations and PROFILER not in self._locations
            self._seen.add(NVTX if has_nvtx else PROFILER)
        if torch.are_deterministic_algorithms_enabled():
            self._seen.add(DETERMINISTIC)
        self._total_steps += 1
        if window in UNPROFILED_WINDOWS:
            self._unprofiled_steps += 1
            self._ns.update(self._step_ns)
        if self._seen:
            self._steps.update(self._seen)
            self._seen.clear()
        self._step_ns.clear()

    def to_list(self) -> list[dict[str, Any]]:
        """The switches that were on in any step, as they stand in facts.json."""
        return [
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


class DebugHooks:
    """The wrappers around the setters; each calls the original unchanged."""

    def __init__(
        self, switches: DebugSwitches, is_listening: Callable[[], bool], call_recorder: Callable[..., Any]
    ) -> None:
        self._switches = switches
        self._is_listening = is_listening
        self._call_recorder = call_recorder
        self._patch: Callable[..., None] | None = None

    def install(self, patch: Callable[..., None]) -> None:
        """Replace the functions; `patch` is that of `Hooks`."""
        self._patch = patch
        patch(torch, "set_anomaly_enabled", self._wrap_set_anomaly)
        patch(torch, "use_deterministic_algorithms", self._wrap_deterministic)
        for name in ("gradcheck", "gradgradcheck"):
            patch(torch.autograd, name, functools.partial(self._wrap_to_time, GRADCHECK))
        patch(torch.profiler.profile, "__init__", functools.partial(self._wrap_init, PROFILER))
        patch(torch.autograd.profiler.profile, "__init__", functools.partial(self._wrap_init, PROFILER))
        for name in ("emit_nvtx", "emit_itt"):
            patch(getattr(torch.autograd.profiler, name), "__init__", functools.partial(self._wrap_init, NVTX))

    def _wrap_set_anomaly(self, original: Function) -> Function:
        def set_anomaly_enabled(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            # torch.compile traces with it, to know the lines of its nodes.
            if torch.is_anomaly_enabled() and self._is_listening() and not _is_called_by_torch(sys._getframe(1)):
                self._call_recorder(self._note_anomaly, sys._getframe(1))
            return result

        return set_anomaly_enabled

    def _note_anomaly(self, frame: FrameType) -> None:
        self._switches.note(ANOMALY, frame)
        patch, self._patch = self._patch, None
        if patch is not None:
            from torch.fx import traceback as fx_traceback

            patch(fx_traceback, "format_stack", self._wrap_format_stack)

    def _wrap_format_stack(self, original: Function) -> Function:
        """Time what anomaly detection calls for each node of the graph, and leave our frame out of what it keeps."""

        def format_stack(*args: Any, **kwargs: Any) -> Any:
            start_ns = time.perf_counter_ns()
            lines = original(*args, **kwargs)
            if isinstance(lines, list) and lines and OWN_FOLDER in lines[-1]:
                lines.pop()
            self._switches.add_time(ANOMALY, time.perf_counter_ns() - start_ns)
            return lines

        return format_stack

    def _wrap_deterministic(self, original: Function) -> Function:
        def use_deterministic_algorithms(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._is_listening() and torch.are_deterministic_algorithms_enabled():
                self._call_recorder(self._switches.note, DETERMINISTIC, sys._getframe(1))
            return result

        return use_deterministic_algorithms

    def _wrap_to_time(self, switch: str, original: Function) -> Function:
        def time_call(*args: Any, **kwargs: Any) -> Any:
            if not self._is_listening():
                return original(*args, **kwargs)
            self._call_recorder(self._switches.note, switch, sys._getframe(1))
            self._switches.see(switch)
            start_ns = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            finally:
                self._switches.add_time(switch, time.perf_counter_ns() - start_ns)

        return time_call

    def _wrap_init(self, switch: str, original: Function) -> Function:
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                original(made, *args, **kwargs)
            except BaseException as error:
                remove_own_frames(error)
                raise
            caller = sys._getframe(1)
            name = caller.f_code.co_filename
            # Not our own sessions, nor the profiler that torch's makes inside.
            if self._is_listening() and not name.startswith((OWN_FOLDER, *_PROFILER_FILES)):
                self._call_recorder(self._switches.note, switch, caller, made)

        return __init__


_PROFILER_FILES = (torch.profiler.profiler.__file__,)


def _is_called_by_torch(frame: FrameType | None) -> bool:
    """Whether torch's own code asks for anomaly detection, not the program by one of its two context managers."""
    while frame is not None and frame.f_globals.get("__name__") in _SETTERS:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("torch.")
