"""Which window each step belongs to, as a list made once; nothing here knows of torch."""

from __future__ import annotations

from dataclasses import dataclass

from .recorder_settings import RecorderSettings


@dataclass(frozen=True)
class Stage:
    """The purpose of one step.

    Attributes:
        window: Label of the step in steps.jsonl: skip, base, warm, timing, evidence or after.
        trace: The trace (timing or evidence) that a profiler is prepared for or records in this step; None without a
            profiler.
        recording: Whether the profiler records events. A prepared profiler costs little and records nothing.
    """

    window: str
    trace: str | None = None
    recording: bool = False

    @property
    def counted(self) -> bool:
        """Whether the step is one of its trace's counted steps, which have a `ProfilerStep#` range in the trace."""
        return self.recording and self.window == self.trace


AFTER = Stage("after")
# The stage before the first one: `repeat_trace` goes there when the trace begins with the first stage.
BEFORE = Stage("skip")


def stages_of_trace(trace: str, warmup: int, count: int) -> list[Stage]:
    """Warm-up and window of one trace; the last warm-up step is recorded, because the first recorded step is slow."""
    if not count:
        return []
    warm = [Stage("warm", trace, recording=index == warmup - 1) for index in range(warmup)]
    return warm + [Stage(trace, trace, recording=True)] * count


def make_stages(settings: RecorderSettings) -> tuple[Stage, ...]:
    """The stage of each step from the first step on; every later step is `AFTER`.

    For skip=1, base=2, warmup=2, timing=2, evidence=1::

        window     skip  base  base  warm    warm    timing  timing  warm      evidence
        trace      -     -     -     timing  timing  timing  timing  evidence  evidence
        recording  no    no    no    no      yes     yes     yes     yes       yes
    """
    return (
        *[Stage("skip")] * settings.skip,
        *[Stage("base")] * settings.base,
        *stages_of_trace("timing", settings.warmup, settings.timing),
        *stages_of_trace("evidence", min(settings.warmup, 1), settings.evidence),
    )


class WindowPlan:
    """The stages of all steps, and which of them is running."""

    def __init__(self, settings: RecorderSettings) -> None:
        self._stages = make_stages(settings)
        self._position = 0

    @property
    def stage(self) -> Stage:
        """The stage of the running step."""
        if self._position < 0:
            return BEFORE
        return self._stages[self._position] if self._position < len(self._stages) else AFTER

    @property
    def next_stage(self) -> Stage:
        """The stage of the step after the running one."""
        position = self._position + 1
        return self._stages[position] if position < len(self._stages) else AFTER

    @property
    def finished(self) -> bool:
        """Whether every window has passed."""
        return self._position >= len(self._stages)

    @property
    def can_restart(self) -> bool:
        """Whether no profiler was prepared yet, so that a restart loses nothing but base times."""
        return all(stage.trace is None for stage in self._stages[: self._position + 1])

    def advance(self) -> None:
        """Go to the stage of the next step."""
        self._position += 1

    def restart(self) -> None:
        """Go to the first stage."""
        self._position = 0

    def skip_trace(self, trace: str, *, but_last: bool = False) -> None:
        """Go past the last stage of a trace that was closed early.

        Args:
            trace: The trace; nothing happens when the running stage belongs to another one.
            but_last: Go to the last stage of the trace instead, so that the next `advance` goes past it.
        """
        while not self.finished and self.stage.trace == trace:
            if but_last and self.next_stage.trace != trace:
                return
            self._position += 1

    def repeat_trace(self, trace: str) -> None:
        """Go to the stage before the first one of a trace, so that the next `advance` begins the trace again."""
        first = next(index for index, stage in enumerate(self._stages) if stage.trace == trace)
        self._position = first - 1
