"""debug-off: anomaly detection, NVTX ranges of every op, and the program's own profiler do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfdoctor.trials.change import Program


class DebugOff:
    """What people turn on to look for a fault, and forget."""

    name = "debug-off"
    summary = "anomaly detection, emit_nvtx and the program's own profiler do nothing"
    rules = ()
    needs = ""
    alters_numerics = False
    effect_on_results = "none; a NaN in a gradient is no error any more"
    is_what_if = False

    def settings(self, facts: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:  # noqa: ARG002
        """Where anomaly detection is on, or a profiler of the program was seen."""
        said = [*(facts.get("notes") or ()), *((facts.get("run") or {}).get("unrecorded") or ())]
        is_profiled = any("program's own profiler" in each for each in said)
        return ("on",) if is_profiled or (facts.get("flags") or {}).get("anomaly_detection") else ()

    def environment(self, setting: str) -> Mapping[str, str]:  # noqa: ARG002
        """No variable."""
        return {}

    def apply(self, setting: str, program: Program) -> None:  # noqa: ARG002
        """Let the setters do nothing."""
        import torch
        from torch.autograd import profiler as autograd_profiler

        def wrap_anomaly(original: Any) -> Any:
            def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
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
        program.patch(autograd_profiler.profile, "__exit__", leave_without_events)
        program.edit_arguments(self, torch.profiler.profile, "__init__", record_nothing)
        # What a program asks of its profiler afterwards: the answer is empty.
        for name in ("key_averages", "events"):
            program.patch(torch.profiler.profile, name, lambda original: answer_if_recorded(original, is_list=True))
        for name in ("export_chrome_trace", "export_stacks", "export_memory_timeline"):
            program.patch(torch.profiler.profile, name, lambda original: answer_if_recorded(original, is_list=False))

    def fix(self, setting: str) -> str:  # noqa: ARG002
        """What to leave out."""
        return "# leave out set_detect_anomaly(True), emit_nvtx, or the profiler around the loop"

    def answers(self, setting: str, finding: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether the finding's code turns anomaly detection off."""
        return "detect_anomaly(False)" in (finding.get("fix") or "")


class _Never:
    """A schedule of a profiler that never records."""

    def __init__(self, action: Any) -> None:
        self._action = action

    def __call__(self, step: int) -> Any:  # noqa: ARG002
        return self._action

    def __repr__(self) -> str:
        return "never"


def leave_without_events(original: Any) -> Any:
    """The end of a profiler that was turned off: it has recorded no event, which can be asked of it."""
    from torch.autograd.profiler_util import EventList

    def __exit__(profile: Any, *args: Any) -> Any:  # noqa: N807
        result = original(profile, *args)
        if not profile.enabled:
            for name in ("function_events", "_function_events"):
                if name in vars(profile) and vars(profile)[name] is None:
                    setattr(profile, name, EventList([]))  # type: ignore[no-untyped-call]
        return result

    return __exit__


def answer_if_recorded(original: Any, *, is_list: bool) -> Any:
    """A method of `torch.profiler.profile` that answers nothing where nothing was recorded."""
    from torch.autograd.profiler_util import EventList

    def answer(profile: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(profile, "profiler", None) is None:
            return EventList([]) if is_list else None  # type: ignore[no-untyped-call]
        return original(profile, *args, **kwargs)

    return answer
