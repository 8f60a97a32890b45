"""When to look again: after 200 times the CPU time of the last look, so that looks take half a per cent of a thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

WAIT_PER_LOOK = 200
Answer = TypeVar("Answer")


class LookPace:
    """Spaces looks by what they cost; the first is due at once."""

    def __init__(self) -> None:
        self._next_ns = 0
        self._spent_ns = 0

    def is_due(self) -> bool:
        """Whether to look now."""
        return time.perf_counter_ns() >= self._next_ns

    def run(self, look: Callable[[], Answer]) -> Answer:
        """What a look, or a part of it, returns."""
        start_ns = time.thread_time_ns()
        try:
            return look()
        finally:
            self._spent_ns += time.thread_time_ns() - start_ns

    def end_look(self) -> None:
        """All parts of a look are done: wait for the next one."""
        self._next_ns = time.perf_counter_ns() + WAIT_PER_LOOK * self._spent_ns
        self._spent_ns = 0


class PacedLook(Generic[Answer]):
    """Asks something at the end of steps, at its pace."""

    def __init__(self, look: Callable[[], Answer | None]) -> None:
        self._look = look
        self._pace = LookPace()

    def read(self) -> Answer | None:
        """The answer; None between two looks."""
        if not self._pace.is_due():
            return None
        found = self._pace.run(self._look)
        self._pace.end_look()
        return found
