"""The lengths of the recorded steps, and of those of the whole run that a capture timed without the profiler."""

from __future__ import annotations

import numpy as np

from perfdoctor.charts.extremes import extremes
from perfdoctor.rank import Rank
from perfdoctor.report.chart_data import StepSeries
from perfdoctor.trace.arrays import Int64Array

# A chart shows no more points than this; of a longer run the shortest and the longest of each of its parts.
_MAX_POINTS = 4_000


def step_series_of(rank: Rank) -> StepSeries | None:
    """The step times of a rank; None where it has no steps."""
    if not rank.steps.count:
        return None
    first = rank.steps.numbers[0] if rank.steps.numbers else 0
    recorded_ns = rank.steps.durations_ns
    if rank.run_steps is None:
        return StepSeries(recorded_ns, first)
    shown = _shown(rank.run_steps.dur_ns)
    return StepSeries(recorded_ns, first, rank.run_steps.dur_ns[shown], rank.run_steps.number[shown], rank.run_marks)


def _shown(values: Int64Array, max_points: int = _MAX_POINTS) -> Int64Array:
    """All; of more than `max_points` values the smallest and the largest of each of `max_points` / 2 parts."""
    count = len(values)
    if count <= max_points:
        return np.arange(count)
    return extremes(values, np.arange(count) * (max_points // 2) // count)
