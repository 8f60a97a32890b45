"""The whole run as a line and a chart show it: levels of its steps, and what happened where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from perfdoctor.analysis.captured_facts import RunSteps
from perfdoctor.facts.captured import CapturedFacts, RecordedWindow
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.run_watch.run_drift import RunDrift
from perfdoctor.trace.arrays import BoolArray

MIN_STEPS = 40
"""Fewer steps are no run to look at: two for each level."""
MAX_LEVELS = 20

MarkKind: TypeAlias = Literal["window", "evaluation", "checkpoint", "epoch", "compilation", "drift", "finding"]
# What steps contain, and how it is marked.
_CONTENTS: dict[str, MarkKind] = {"evaluation": "evaluation", "save": "checkpoint", "compile": "compilation"}


class RunMark(NamedTuple):
    """Something on the line of steps.

    Attributes:
        kind: What it is.
        first: The number of its first step.
        last: The number of its last step.
        text: What it is in words, such as "timing window".
    """

    kind: MarkKind
    first: int
    last: int
    text: str


@frozen_dataclass(eq=False)
class RunSeries:
    """The steps of a run without the profiler, from the first to the last.

    Attributes:
        steps: How many there are.
        levels_ns: Medians of up to 20 equal parts of the run, in their order.
        slower_from: The number of the first step from which on the steps are longer for good; None without.
    """

    steps: int
    levels_ns: tuple[int, ...]
    slower_from: int | None = None


def run_series_of(steps: RunSteps | None, drift: RunDrift | None) -> RunSeries | None:
    """The line of a run; None where too few of its steps were timed."""
    if steps is None or len(steps) < MIN_STEPS:
        return None
    parts = np.array_split(steps.dur_ns, min(len(steps) // 2, MAX_LEVELS))
    levels = tuple(round(float(np.median(part))) for part in parts)
    return RunSeries(len(steps), levels, None if drift is None else drift.first_step)


def marks_of_run(
    steps: RunSteps, drift: RunDrift | None, facts: CapturedFacts, early: CapturedFacts | None
) -> tuple[RunMark, ...]:
    """What happened where on the line of steps: windows, epochs, evaluations, checkpoints, compilation, drift."""
    marks = [*_windows_of(facts, "" if early is None else "late ")]
    if early is not None:
        marks += _windows_of(early, "first ")
    marked: dict[MarkKind, BoolArray] = {kind: steps.which_contain(content) for content, kind in _CONTENTS.items()}
    if steps.begins_epoch is not None:
        marked["epoch"] = steps.begins_epoch
    for kind, which in marked.items():
        marks += mark_steps(kind, steps.numbers_of(which), kind)
    if drift is not None:
        growth = f"{drift.growth:.2g} times as long at the end"
        marks.append(RunMark("drift", drift.first_step, int(steps.number[-1]), f"PD010: slower from here on, {growth}"))
    return tuple(marks)


def mark_steps(kind: MarkKind, numbers: Iterable[int], text: str) -> list[RunMark]:
    """A mark on each of these steps."""
    return [RunMark(kind, number, number, text) for number in numbers]


def _windows_of(facts: CapturedFacts, which: str) -> Iterable[RunMark]:
    windows: dict[str, RecordedWindow] = {"timing": facts.windows.timing, "evidence": facts.windows.evidence}
    for name, window in windows.items():
        if window.first_step is not None and window.steps:
            yield RunMark("window", window.first_step, window.first_step + window.steps - 1, f"{which}{name} window")
