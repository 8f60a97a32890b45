"""Which window each step belongs to, as a value computed once; nothing here knows of torch."""

from __future__ import annotations

from dataclasses import dataclass

from .settings import Settings


@dataclass(frozen=True)
class Stage:
    """What one step is for.

    Attributes:
        window: Label of the step in steps.jsonl: skip, base, warm, timing, evidence or after.
        trace: The trace that is prepared or recorded during the step, None without a profiler.
        recording: Whether events are recorded; a prepared profiler costs little and records nothing.
    """

    window: str
    trace: str | None = None
    recording: bool = False

    @property
    def counted(self) -> bool:
        """Whether the step belongs to its trace, and carries a `ProfilerStep#` range there."""
        return self.recording and self.window == self.trace


AFTER = Stage("after")
# Where a window stands that begins anew and had nothing before it.
BEFORE = Stage("skip")


def lead_in(trace: str, warmup: int, count: int) -> list[Stage]:
    """Warm-up and window of one trace; the last warm-up step is recorded, too, because the first recorded is slow."""
    if not count:
        return []
    warm = [Stage("warm", trace, recording=index == warmup - 1) for index in range(warmup)]
    return warm + [Stage(trace, trace, recording=True)] * count


def stages(settings: Settings) -> tuple[Stage, ...]:
    """The stage of each step from the first on; every later step is `AFTER`."""
    return (
        *[Stage("skip")] * settings.skip,
        *[Stage("base")] * settings.base,
        *lead_in("timing", settings.warmup, settings.timing),
        *lead_in("evidence", min(settings.warmup, 1), settings.evidence),
    )


class Plan:
    """A cursor over the stages."""

    def __init__(self, settings: Settings) -> None:
        self._stages = stages(settings)
        self._position = 0

    @property
    def stage(self) -> Stage:
        """The stage of the running step."""
        if self._position < 0:
            return BEFORE
        return self._stages[self._position] if self._position < len(self._stages) else AFTER

    @property
    def finished(self) -> bool:
        """Whether every window has passed."""
        return self._position >= len(self._stages)

    @property
    def untouched(self) -> bool:
        """Whether no profiler has been prepared yet, so that starting over loses nothing but base times."""
        return all(stage.trace is None for stage in self._stages[: self._position + 1])

    def advance(self) -> None:
        """Go on to the next step's stage."""
        self._position += 1

    def next(self) -> Stage:
        """The stage that `advance` would lead to."""
        position = self._position + 1
        return self._stages[position] if position < len(self._stages) else AFTER

    def restart(self) -> None:
        """Begin again with the first stage."""
        self._position = 0

    def leave(self, trace: str, *, but_last: bool = False) -> None:
        """Go behind the last stage of a trace that was closed early, or to its last, from which `advance` leaves it."""
        while not self.finished and self.stage.trace == trace:
            if but_last and self.next().trace != trace:
                return
            self._position += 1

    def again(self, trace: str) -> None:
        """Go back to the step before the first stage of a trace, to record it anew."""
        first = next(index for index, stage in enumerate(self._stages) if stage.trace == trace)
        self._position = first - 1
