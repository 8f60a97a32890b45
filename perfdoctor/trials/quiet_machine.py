"""Waits for other programs to leave the cores: a run beside them measures them rather than the change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from perfdoctor.capture.inject._perfdoctor_inject.core_usage import read_machine_busy_ns

# Time in /proc/stat is in ticks of 10 ms: a quarter of a core is 5 of them in a look, which each run pays.
LOOK_S = 0.2
# Others that use less take little from a run: a quarter of a core, of a large machine a tenth of all.
_FEW_CORES, _FEW_OF_ALL = 0.25, 0.1


@dataclass(slots=True)
class QuietWait:
    """Waits before runs of a program, between which nothing of it runs.

    Attributes:
        limit_s: Seconds to wait in all.
        on_wait: Called once, when it begins to wait.
        waited_s: Seconds waited so far.
        read_busy_ns: Returns the CPU time of the whole machine so far, in ns; None where nothing tells it.
        sleep: Sleeps for some seconds.
    """

    limit_s: float
    on_wait: Callable[[], None] = lambda: None
    waited_s: float = 0.0
    read_busy_ns: Callable[[], int | None] = read_machine_busy_ns
    sleep: Callable[[float], None] = time.sleep

    def wait(self) -> None:
        """Return once few of the cores are used, or once all of the time to wait is spent."""
        while self.waited_s < self.limit_s and self._is_busy():
            if not self.waited_s:
                self.on_wait()
            self.waited_s += LOOK_S

    def _is_busy(self) -> bool:
        before_ns = self.read_busy_ns()
        self.sleep(LOOK_S)
        now_ns = self.read_busy_ns()
        if before_ns is None or now_ns is None:
            return False
        return (now_ns - before_ns) / (LOOK_S * 1e9) > max(_FEW_CORES, _FEW_OF_ALL * (os.cpu_count() or 1))

    @property
    def note(self) -> str | None:
        """A sentence on the wait; None where there was none."""
        if not self.waited_s:
            return None
        left = "they did not: try again when it is quiet" if self.waited_s >= self.limit_s else "and they did"
        return f"Waited {max(self.waited_s, 1):.0f} s for other programs to leave the cores, {left}."
