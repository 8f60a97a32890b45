"""The lengths of the recorded steps, and of those of the whole run that a capture timed without the profiler."""

from __future__ import annotations

import numpy as np

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
    shown = _extremes(rank.run_steps.dur_ns)
    return StepSeries(recorded_ns, first, rank.run_steps.dur_ns[shown], rank.run_steps.number[shown])


def _extremes(values: Int64Array, max_points: int = _MAX_POINTS) -> Int64Array:
    """All; of more than `max_points` values the smallest and the largest of each of `max_points` / 2 parts."""
    if len(values) <= max_points:
        return np.arange(len(values))
    part = np.arange(len(values)) * (max_points // 2) // len(values)
    order = np.lexsort((values, part))
    is_last = np.append(part[1:] != part[:-1], True)
    is_first = np.append(True, is_last[:-1])
    return np.sort(order[is_first | is_last])
