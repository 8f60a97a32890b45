"""debug-off: anomaly detection, NVTX ranges of every op, and the program's own profiler do nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.facts.captured import CapturedFacts
    from perfdoctor.trials.change import Program

# Questions whose answers are no list of events.
ASKED = ("total_average", "table")
# What the capture calls those that this change turns off.
SWITCHES = ("anomaly detection", "profiler", "emit_nvtx")


class DebugOff:
    """What people turn on to look for a fault, and forget."""

    name = "debug-off"
    summary = "anomaly detection, emit_nvtx and the program's own profiler do nothing"
    rules = ("PD503",)
    effect_on_results = "none; a NaN in a gradient is no error any more"
    code = "# leave out set_detect_anomaly(True), emit_nvtx, or the profiler around the loop"

    def settings(self, facts: CapturedFacts, findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """Where anomaly detection is on, or a profiler of the program was seen."""
        said = [*facts.notes, *facts.run.unrecorded]
        is_profiled = any("program's own profiler" in each for each in said)
        is_on = any(each.switch in SWITCHES for each in facts.debug_switches)
        return ("on",) if is_profiled or is_on or facts.flags.anomaly_detection else ()

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Let the setters do nothing."""
        import torch
        from torch.autograd import profiler as autograd_profiler

        def wrap_anomaly(original: Any) -> Any:
            def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
                if is_called_by_torch(sys._getframe(1)):  # torch.compile looks for lines by it
                    original(mode, check_nan)
                    return
                if mode:
                    program.met(self, program.location_of_caller(), "anomaly detection on -> off")
                original(False, check_nan)

            return set_anomaly_enabled

        def turn_off(owner: Any, given: dict[str, Any]) -> dict[str, Any] | None:  # noqa: ARG001
            return {"enabled": False} if given.get("enabled", True) else None

        def record_nothing(owner: Any, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
            return {"schedule": _Never(torch.profiler.ProfilerAction.NONE)}

        program.patch(torch, "set_anomaly_enabled", wrap_anomaly)
        for name in ("emit_nvtx", "emit_itt", "profile"):
            program.edit_arguments(self, getattr(autograd_profiler, name), "__init__", turn_off)
        program.edit_arguments(self, torch.profiler.profile, "__init__", record_nothing)
        for owner in (torch.profiler.profile, autograd_profiler.profile):
            answer_for(owner, program)


def is_called_by_torch(frame: FrameType | None) -> bool:
    """Whether torch's own code asks for anomaly detection, not the program by one of its two context managers."""
    while frame is not None and frame.f_globals.get("__name__") in ("torch.autograd.anomaly_mode", "contextlib"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("torch.")


class _Never:
    """A schedule of a profiler that never records."""

    def __init__(self, action: Any) -> None:
        self._action = action

    def __call__(self, step: int) -> Any:  # noqa: ARG002
        return self._action

    def __repr__(self) -> str:
        return "never"


def answer_for(owner: Any, program: Program) -> None:
    """Let a class of profilers answer what a program asks them afterwards, also where they were turned off."""
    for name in ("key_averages", "events", "total_average", "table"):
        program.patch(owner, name, answer_if_recorded)
    for name in ("export_chrome_trace", "export_stacks", "export_memory_timeline"):
        program.patch(owner, name, export_if_recorded)
    program.patch(owner, "__enter__", enter_with_profile)


def enter_with_profile(original: Any) -> Any:
    """The beginning of a block of a profiler: the block has the profiler, also where it was turned off."""

    def __enter__(profile: Any) -> Any:  # noqa: N807
        return original(profile) or profile

    return __enter__


def has_recorded(profile: Any) -> bool:
    """Whether a profiler of either kind was not turned off."""
    return bool(getattr(profile, "enabled", True)) and getattr(profile, "profiler", profile) is not None


def answer_if_recorded(original: Any) -> Any:
    """A question to a profiler: about no events where it was turned off."""
    from torch.autograd.profiler_util import EventList

    def answer(profile: Any, *args: Any, **kwargs: Any) -> Any:
        if has_recorded(profile):
            return original(profile, *args, **kwargs)
        nothing = EventList([])  # type: ignore[no-untyped-call]
        return getattr(nothing, original.__name__)(*args, **kwargs) if original.__name__ in ASKED else nothing

    return answer


def export_if_recorded(original: Any) -> Any:
    """A file of a profiler: none where it was turned off."""

    def export(profile: Any, *args: Any, **kwargs: Any) -> Any:
        return original(profile, *args, **kwargs) if has_recorded(profile) else None

    return export
