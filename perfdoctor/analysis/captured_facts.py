"""What `perfdoctor run` captured beside the trace: parts of facts.json, and the step times in it and in steps.jsonl.

A file may contain anything: a value of another type than expected counts as not captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np
import orjson

from perfdoctor.trace.arrays import Int64Array

# Windows without a profiler, after the warm-up of the program.
_UNPROFILED = ("base", "after")


def captured_part(facts: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """A part of the facts by its name; empty where it was not captured."""
    part = (facts or {}).get(name)
    return part if isinstance(part, dict) else {}


def captured_list(facts: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """A part of the facts that is a list, such as loaders, optimizers, models or devices; empty where not captured."""
    part = (facts or {}).get(name)
    return [each for each in part if isinstance(each, dict)] if isinstance(part, list) else []


def yes_or_no(setting: object) -> str | None:
    """A captured setting as the value of evidence: "yes" or "no"; None where it was not captured."""
    return None if setting is None else "yes" if setting else "no"


def captured_steps(facts: Mapping[str, Any] | None, window: Literal["base", "timing"]) -> tuple[int, ...]:
    """Lengths in ns of the steps of one window, measured in the program; empty without facts or that window.

    The base window ran without a profiler, right before the timing window, whose trace is analysed. Where gradient
    accumulation has grown in between, the steps of the base window are those of as many micro-batches as the timing
    window has a step.
    """
    values = (facts or {}).get(f"{window}_step_ns")
    if not isinstance(values, list):
        return ()
    if window == "base":
        base, timing = _micro_batches(facts, "base"), _micro_batches(facts, "timing")
        if timing and len(base) == len(values) and median(base) != median(timing):
            usual, pairs = median(timing), zip(values, base, strict=True)
            values = [round(value * usual / count) for value, count in pairs if isinstance(value, int)]
    return tuple(value for value in values if isinstance(value, int) and value > 0)


def _micro_batches(facts: Mapping[str, Any] | None, window: str) -> list[int]:
    """Micro-batches in each step of a window: backward passes, else batches; empty where some step has none."""
    for name in ("backwards", "batches"):
        counts = (facts or {}).get(f"{window}_{name}")
        if isinstance(counts, list) and counts and all(isinstance(count, int) and count > 0 for count in counts):
            return counts
    return []


def captured_median_ns(facts: Mapping[str, Any] | None, window: Literal["base", "timing"]) -> int | None:
    """The median step of one window in ns; None where no step was timed."""
    steps = captured_steps(facts, window)
    return round(median(steps)) if steps else None


@dataclass(frozen=True, slots=True, eq=False)
class RunSteps:
    """The steps of a whole run that were timed without a profiler, in their order.

    Attributes:
        number: Number of each step, counted from the program's first one.
        dur_ns: Duration of each step.
        loader_wait_ns: How long the loop waited in DataLoader.__next__ during each step.
    """

    number: Int64Array
    dur_ns: Int64Array
    loader_wait_ns: Int64Array

    def __len__(self) -> int:
        return len(self.number)


def parse_run_steps(text: bytes) -> RunSteps | None:
    """The unprofiled steps in the text of a steps.jsonl; None where it has none.

    A line that is no step, such as the incomplete last one of a killed program, is ignored.
    """
    rows = [row for row in map(_parse_unprofiled_step, text.splitlines()) if row is not None]
    if not rows:
        return None
    number, dur_ns, wait_ns = np.array(rows, np.int64).T
    return RunSteps(number, dur_ns, wait_ns)


def _parse_unprofiled_step(line: bytes) -> tuple[int, int, int] | None:
    """Number, duration and loader wait of the step in a line; None where it is no step of an unprofiled window."""
    try:
        step = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(step, dict) or step.get("window") not in _UNPROFILED:
        return None
    number, dur_ns, wait_ns = step.get("step"), step.get("dur_ns"), step.get("loader_wait_ns")
    if not isinstance(number, int) or not isinstance(dur_ns, int) or not isinstance(wait_ns, int):
        return None
    return (number, dur_ns, wait_ns) if 0 <= min(number, dur_ns, wait_ns) <= dur_ns < 1 << 62 else None
