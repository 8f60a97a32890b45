"""What `perfdoctor run` captured beside the trace: parts of facts.json, and step times out of it and of steps.jsonl.

A file may hold anything: what is not of the kind expected counts as not captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np
import orjson

from perfdoctor.trace.arrays import Int64Array

# Windows in which nothing is recorded, and the program has warmed up.
_UNPROFILED = ("base", "after")


def captured_part(facts: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """A part of the facts by its name; empty where it was not captured."""
    part = (facts or {}).get(name)
    return part if isinstance(part, dict) else {}


def captured_list(facts: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """A part of the facts that holds several of a kind: loaders, optimizers, models, devices."""
    part = (facts or {}).get(name)
    return [each for each in part if isinstance(each, dict)] if isinstance(part, list) else []


def yes_or_no(setting: object) -> str | None:
    """A captured setting as evidence; None where it was not captured."""
    return None if setting is None else "yes" if setting else "no"


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

    A line that is no step, such as the last one of a program that was killed, is passed over.
    """
    rows = [row for row in map(_unprofiled, text.splitlines()) if row is not None]
    if not rows:
        return None
    number, dur_ns, wait_ns = np.array(rows, np.int64).T
    return RunSteps(number, dur_ns, wait_ns)


def _unprofiled(line: bytes) -> tuple[int, int, int] | None:
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
