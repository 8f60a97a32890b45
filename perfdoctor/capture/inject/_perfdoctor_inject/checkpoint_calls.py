"""Activation checkpointing: how often `torch.utils.checkpoint.checkpoint` is called, how, and where."""

from __future__ import annotations

import statistics
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import torch

from .probes import EndedStep, Probe
from .user_code import Location, user_location

# The window without a profiler; calls of others count where it has none.
TIMED_WINDOW = "base"
# Lines that are kept apart; a program that checkpoints each of many layers does so in one line of its library.
MAX_LINES = 10
LINE_FACTS = ("use_reentrant", "preserve_rng_state", "location")


class CheckpointCalls(Probe):
    """The calls of `checkpoint` in forward passes that record a graph.

    Attributes:
        calls: All of them.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._in_step = 0
        self._by_window: dict[str, list[int]] = {}
        self._lines: dict[tuple[CodeType, int], dict[str, Any]] = {}
        self._calls_of_line: Counter[tuple[CodeType, int]] = Counter()

    def add_call(self, frame: FrameType, arguments: dict[str, Any]) -> None:
        """A call by the code in `frame`, with these keyword arguments.

        The stack is searched once for each line that calls.
        """
        if not torch.is_grad_enabled():
            return
        self.calls += 1
        self._in_step += 1
        line = frame.f_code, frame.f_lineno
        self._calls_of_line[line] += 1
        if line not in self._lines and len(self._lines) < MAX_LINES:
            self._lines[line] = describe_call(user_location(frame), arguments)

    def step(self, ended: EndedStep) -> None:
        """A step of the training loop has ended."""
        self._by_window.setdefault(ended.window, []).append(self._in_step)
        del self._by_window[ended.window][:-MAX_LINES]
        self._in_step = 0

    def facts(self) -> dict[str, Any]:
        """The calls in all, in a step, and at the line that calls most often."""
        steps = self._by_window.get(TIMED_WINDOW) or [each for steps in self._by_window.values() for each in steps]
        line = max(self._lines, key=lambda each: self._calls_of_line[each], default=None)
        of_line = dict.fromkeys(LINE_FACTS) if line is None else self._lines[line]
        per_step = statistics.median(steps) if steps else None
        return {"checkpointing": {"calls": self.calls, "calls_per_step": per_step, **of_line}}


def describe_call(location: Location | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Where `checkpoint` is called, and the keyword arguments that decide what it costs; None where left to torch."""
    reentrant = arguments.get("use_reentrant")
    return {
        "use_reentrant": None if reentrant is None else bool(reentrant),
        "preserve_rng_state": bool(arguments.get("preserve_rng_state", True)),
        "location": location,
    }
