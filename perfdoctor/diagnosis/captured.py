"""Step times that `perfdoctor run` captured beside the trace, out of facts.json."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, Literal


def captured_steps(facts: Mapping[str, Any] | None, window: Literal["base", "timing"]) -> tuple[int, ...]:
    """Lengths in ns of the steps of one window, by the program's own clock; empty without facts or that window.

    The base window ran without a profiler, right before the timing window, which is the trace that is analysed.
    """
    values = (facts or {}).get(f"{window}_step_ns")
    if not isinstance(values, list):
        return ()
    return tuple(value for value in values if isinstance(value, int) and value > 0)


def captured_median_ns(facts: Mapping[str, Any] | None, window: Literal["base", "timing"]) -> int | None:
    """The median step of one window in ns; None when nobody timed any."""
    steps = captured_steps(facts, window)
    return round(median(steps)) if steps else None
