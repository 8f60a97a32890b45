"""How titles name how often something happens."""

from __future__ import annotations

import math

from perfdoctor.rank import Rank

# A count so near to a whole number is that number: in real traces the first step, or the last, lacks a few events.
_NEARLY_WHOLE = 0.1
# From this number on a whole number is near enough.
_MIN_ROUNDED = 3


def format_frequency(rank: Rank, count: int) -> str:
    """How often something happens that happens `count` times: "about 5 times a step", "once", "twice in 10 steps"."""
    steps = rank.steps.count
    if not steps:
        return _name_times(f"{count:,}")
    if count < (1 - _NEARLY_WHOLE) * steps:
        return f"{_name_times(f'{count:,}')} in {steps} steps"
    return f"{_name_times(_format_mean(count / steps))} a step"


def format_per_step(rank: Rank, count: int) -> str:
    """How many there are, of `count` in all: "about 5 a step", "7 in 10 steps", "120 in all"."""
    steps = rank.steps.count
    if not steps:
        return f"{count:,} in all"
    if count < (1 - _NEARLY_WHOLE) * steps:
        return f"{count:,} in {steps} steps"
    return f"{_format_mean(count / steps)} a step"


def _format_mean(mean: float) -> str:
    """A mean count as whole numbers: no step has 4.67 of anything."""
    whole = round(mean)
    if abs(mean - whole) <= _NEARLY_WHOLE:
        return f"{whole:,}"
    return f"about {whole:,}" if whole >= _MIN_ROUNDED else f"{math.floor(mean)} to {math.ceil(mean)}"


def _name_times(count: str) -> str:
    return {"1": "once", "2": "twice"}.get(count, f"{count} times")
