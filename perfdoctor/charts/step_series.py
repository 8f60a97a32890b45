"""The lengths of the recorded steps, and of those of the whole run that a capture timed without the profiler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from perfdoctor.analysis.timeline.recurrence import time_by_step
from perfdoctor.charts.extremes import extremes
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import StepSeries
from perfdoctor.report.finding import Finding
from perfdoctor.run_watch.run_series import RunMark, mark_steps
from perfdoctor.trace.arrays import Int64Array

# A chart shows no more points than this; of a longer run the shortest and the longest of each of its parts.
_MAX_POINTS = 4_000


def step_series_of(rank: Rank, findings: Sequence[Finding] = ()) -> StepSeries | None:
    """The step times of a rank, with what its findings are seen in marked; None where it has no steps."""
    if not rank.steps.count:
        return None
    first = rank.steps.numbers[0] if rank.steps.numbers else 0
    recorded_ns = rank.steps.durations_ns
    marks = (*rank.run_marks, *(mark for finding in findings for mark in _marks_of(finding, rank, first)))
    if rank.run_steps is None:
        return StepSeries(recorded_ns, first, marks=marks)
    shown = _shown(rank.run_steps.dur_ns)
    return StepSeries(recorded_ns, first, rank.run_steps.dur_ns[shown], rank.run_steps.number[shown], marks)


def _marks_of(finding: Finding, rank: Rank, first: int) -> Iterable[RunMark]:
    """Where a finding is seen that is not in most steps: what its rule says, else the recorded steps of its claim."""
    numbers: Iterable[int] = finding.seen_in
    if not finding.seen_in and finding.is_one_off:
        numbers = (first + np.flatnonzero(time_by_step(finding.claim.intervals, rank.steps))).tolist()
    return mark_steps("finding", numbers, f"{finding.rule}: {finding.title}")


def _shown(values: Int64Array, max_points: int = _MAX_POINTS) -> Int64Array:
    """All; of more than `max_points` values the smallest and the largest of each of `max_points` / 2 parts."""
    count = len(values)
    if count <= max_points:
        return np.arange(count)
    return extremes(values, np.arange(count) * (max_points // 2) // count)
