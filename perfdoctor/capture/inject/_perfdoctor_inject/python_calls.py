"""How many functions a step calls: with its stacks the profiler keeps each call, as 2 kB of memory and 300 of text.

They are counted in a step whose time counts for nothing, the warm-up of the timing window, at 0.3 us a call.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

from .source_lines import dynamo_has_compiled


class PythonCalls:
    """Counts the calls of one step in the thread that makes it.

    Attributes:
        per_step: Calls of functions, of Python's and of C's; None before a step was counted.
    """

    def __init__(self) -> None:
        self.per_step: int | None = None
        self._hook: Any = None
        self._events = itertools.count()
        self._thread: int | None = None

    def start(self) -> None:
        """Count from now on, unless that was done or the program has a profile function of its own."""
        if self.per_step is not None or sys.getprofile() is not None or dynamo_has_compiled():
            return
        events = self._events = itertools.count()
        self._hook, self._thread = lambda *_: next(events), threading.get_ident()
        sys.setprofile(self._hook)

    def stop(self) -> None:
        """Count no more; where the program has set a function of its own meanwhile, nothing was counted."""
        if self._hook is None or self._thread != threading.get_ident():
            return
        if sys.getprofile() is self._hook:
            sys.setprofile(None)
            self.per_step = next(self._events) // 2  # the call and the return
        self._hook = None
