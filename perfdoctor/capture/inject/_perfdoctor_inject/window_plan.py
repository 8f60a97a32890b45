"""Which window each step belongs to; nothing here knows of torch.

Nobody knows beforehand how many steps a program makes. So with windows of standard size three samples are taken, each
longer than the one before: six steps give a report, eighteen a better one, forty the best. A later sample replaces an
earlier one when it has recorded as many steps. Sizes that the user has chosen are one sample, to the letter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .recorder_settings import RecorderSettings

# Events of one window: the profiler takes 5 us for each to stop, save and pack it, with stacks 13 us.
MAX_TIMING_EVENTS = 300_000
MAX_EVIDENCE_EVENTS = 300_000
# Stacks and memory add up to three events to each event of the timing window.
EVIDENCE_FACTOR = 4


@dataclass(frozen=True)
class Stage:
    """The purpose of one step.

    Attributes:
        window: Label of the step in steps.jsonl: skip, base, warm, timing, evidence or after.
        trace: The trace (timing or evidence) that a profiler is prepared for or records in this step; None without a
            profiler.
        recording: Whether the profiler records events. A prepared profiler costs little and records nothing.
        sample: Number of the sample that the step belongs to.
        is_early: Whether the sample is the one of the first steps of a program.
    """

    window: str
    trace: str | None = None
    recording: bool = False
    sample: int = 0
    is_early: bool = False

    @property
    def label(self) -> str:
        """The window of the step in steps.jsonl: the second step of a program is no measure for the run."""
        return "skip" if self.is_early and self.window == "base" else self.window

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


def make_samples(settings: RecorderSettings) -> list[Stage]:
    """The stages of three samples that end after 6, 17 and 42 steps, the last one of the sizes in the settings.

    A step is left out between two samples, because the step after a trace was written is slow.
    """
    early = [
        *make_stages(replace(settings, skip=1, base=1, warmup=1, timing=2, evidence=0)),
        *stages_of_trace("evidence", 0, 1),
    ]
    middle = [
        *make_stages(replace(settings, skip=1, base=3, warmup=1, timing=4, evidence=0)),
        *stages_of_trace("evidence", 0, 2),
    ]
    return [
        *[replace(stage, is_early=True) for stage in early],
        *[replace(stage, sample=1) for stage in middle],
        *[replace(stage, sample=2) for stage in make_stages(replace(settings, skip=1))],
    ]


class WindowPlan:
    """The stages of all steps, and which of them is running."""

    def __init__(self, settings: RecorderSettings) -> None:
        self._settings = settings
        self._events_per_step: dict[str, int] = {}
        self._stages = make_samples(settings) if settings.adapts else list(make_stages(settings))
        self._position = 0

    @property
    def adapts(self) -> bool:
        """Whether the plan may change with what the program does."""
        return self._settings.adapts

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

    def warm_up_evidence(self) -> None:
        """Let a recorded step that does not count come before each evidence window of a plan that adapts.

        In a job of several ranks, each waits in that step for the others to write their timing windows.
        """
        if not self.adapts:
            return
        stages: list[Stage] = []
        for stage in self._stages:
            if stage.counted and stage.trace == "evidence" and stages and stages[-1].trace != "evidence":
                stages.append(replace(stage, window="warm"))
            stages.append(stage)
        self._stages = stages

    def restart(self) -> None:
        """Go to the first stage."""
        self._position = 0

    def restart_base(self) -> None:
        """Go to the stage before the base window, so that the next `advance` begins the window again."""
        while self._position >= 0 and self.stage.window == "base":
            self._position -= 1

    def add_sample(self) -> None:
        """Take one more sample after the running step: base, timing and evidence windows of full size."""
        self._position = min(self._position, len(self._stages))
        sample = self._stages[-1].sample + 1 if self._stages else 0
        stages = [replace(stage, sample=sample) for stage in make_stages(replace(self._settings, skip=1))]
        self._stages[self._position :] = [AFTER, *stages]
        for trace, events in self._events_per_step.items():
            self.limit_events(trace, events)

    def limit_events(self, trace: str, events_per_step: int) -> None:
        """Shorten what is still to come, so that no window grows beyond its events.

        Where a window has no room for two steps beside its warm-up, later samples have a base window alone.
        """
        self._events_per_step[trace] = events_per_step
        max_events = MAX_TIMING_EVENTS if trace == "timing" else MAX_EVIDENCE_EVENTS
        room = max_events // max(events_per_step, 1) - 1
        kept, counts = self._stages[: self._position + 1], dict[int, int]()
        for stage in self._stages[self._position + 1 :]:
            is_later = stage.sample > self.stage.sample
            if is_later and stage.window == trace:
                counts[stage.sample] = counts.get(stage.sample, 0) + 1
                if counts[stage.sample] > max(room, 1):
                    continue
            # Without a timing window there is no evidence window: both are of the same steps.
            is_dropped = stage.trace is not None and (trace == "timing" or stage.trace == trace)
            if is_later and room < 2 and is_dropped:
                continue
            kept.append(stage)
        self._stages = kept

    def limit_steps(self, trace: str, steps: int) -> int:
        """Leave a trace at most so many counted steps in the running sample; returns how many it had."""
        counted = [
            number
            for number, stage in enumerate(self._stages)
            if stage.window == trace and stage.sample == self.stage.sample
        ]
        for number in reversed(counted[steps:]):
            del self._stages[number]
        return len(counted)

    def shorten_trace(self) -> None:
        """Let the running step be the last one of its window."""
        end = self._position + 1
        while end < len(self._stages) and self._stages[end] == self.stage:
            del self._stages[end]

    def skip_warm_recording(self) -> None:
        """Record nothing in the warm-up steps of the early sample."""
        self._stages = [
            replace(stage, recording=False) if stage.is_early and stage.window == "warm" else stage
            for stage in self._stages
        ]

    def skip_trace(self, trace: str) -> None:
        """Go past the last stage of a trace that was closed early; of another trace, do nothing."""
        while not self.finished and self.stage.trace == trace:
            self._position += 1

    def repeat_trace(self, trace: str) -> None:
        """Go to the stage before the first one of a trace, so that the next `advance` begins the trace again."""
        sample = self.stage.sample
        stages = enumerate(self._stages)
        first = next(index for index, stage in stages if stage.trace == trace and stage.sample == sample)
        self._position = first - 1
