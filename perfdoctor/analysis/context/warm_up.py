"""Whether the analysed time is steady, or the recording holds what happens once: the sentences of the context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.timeline.first_use import FirstUse, OnceCause
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.steps import Steps
from perfdoctor.units import format_ms

# A drift that takes less of the step changes no figure that a reader would act on.
_MIN_SHARE = 0.02
# The first step of a recording also starts the profiler; in steady recordings it is up to 1.3 times as long.
_LONG_FIRST_STEP = 1.5
_MIN_STEPS = 3
# Steps of recordings without a start lie within 0.2 of their median.
_STEADY_SPREAD = 0.3
_DONE_ONCE: Mapping[OnceCause, str] = MappingProxyType(
    {
        "graph_capture": "a graph is captured",
        "autotuning": "the fastest convolutions are searched",
        "compilation": "torch.compile compiles",
        "first_collective": "communicators are made",
        "module_loading": "code is loaded",
        "library_start": "libraries start",
        "allocator_growth": "device memory is allocated for the first time",
        "initial_weights": "a new model's weights are filled",
        "warm_up": "the program warms up",
        "unrecorded_work": "the GPU does work from before the recording",
        "other": "other work comes before first launches",
    }
)


class Steadiness(NamedTuple):
    """Whether the analysed time is steady, None where that is unknown, and the sentences that say why."""

    steady: bool | None
    reasons: tuple[str, ...]


def steadiness_of(steps: Steps, window: Intervals, first_use: FirstUse, drift_ns: int = 0) -> Steadiness:
    """Whether the analysed time is steady: not where it holds what happens once, or would without its being left out.

    `drift_ns` is by how much the clocks of CPU and GPU drift apart within the trace.
    """
    unit_ns = steps.median_ns or iv.total(window)
    if drift_ns > _MIN_SHARE * unit_ns:
        return Steadiness(None, (f"the clocks of CPU and GPU drift apart by {format_ms(drift_ns, ',.1f')}.",))
    once = tuple(describe_once(first_use))
    if once and steps.count < _MIN_STEPS:
        return Steadiness(False if first_use.is_in_window else None, once)
    durations = steps.durations_ns
    if steps.count >= _MIN_STEPS:
        first_ns, others_ns = int(durations[0]), float(np.median(durations[1:]))
        if first_ns > _LONG_FIRST_STEP * others_ns and first_ns >= durations.max():
            first, others = format_ms(first_ns, ",.1f"), format_ms(others_ns, ",.1f")
            return Steadiness(False, (*once, f"the first step takes {first}, the others {others}."))
    if steps.count < _MIN_STEPS:
        return Steadiness(None, (f"{steps.count} steps are too few to tell steady from warm-up.",))
    median_ns = float(np.median(durations))
    if np.abs(durations - median_ns).max() > _STEADY_SPREAD * median_ns:
        low, high = int(durations.min()) / 1e6, int(durations.max()) / 1e6
        return Steadiness(None, (f"the steps take {low:,.1f} to {high:,.1f} ms, in no order that a warm-up has.",))
    return Steadiness(True, ())


def describe_once(first_use: FirstUse) -> Iterator[str]:
    """Yield a sentence for each cause of what happens once."""
    for cause, time in first_use.parts.items():
        longest = first_use.longest.get(cause)
        where = f", the longest in {longest.name} takes {format_ms(longest.time_ns, ',.0f')}" if longest else ""
        yield f"once, {_DONE_ONCE[cause]}: {format_ms(iv.total(time), ',.1f')}{where}."
