"""The phases of a step as ranges: for Nsight Systems through NVTX, for Perfetto through the profiler.

NVTX gets step, data, forward, backward, optimizer and zero_grad in the domain "perfdoctor", when the `nvtx` package can
be imported. The profiler gets forward and backward: torch itself records the others. Nothing is emitted, and nothing
imported, while nothing is recorded.

Nothing marks where a forward pass begins, short of hooks in every module, which would break compiled graphs. The
forward range is what the training thread does between having its batch, or its gradients cleared, and the backward
pass: model, loss, and copies. Where `zero_grad` stands in between there are two, one of them empty. Behind the
optimizer it is followed by no forward pass; which one is which shows in the step before.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .output import warn

DOMAIN = "perfdoctor"
FORWARD, BACKWARD = "forward", "backward"
# Torch records these itself; the step is recorded as ProfilerStep#.
OF_TORCH = ("step", "data", "optimizer", "zero_grad")
# A loop in which no step is ever found must not fill the memory with what it does.
LONGEST_HISTORY = 1000


class NvtxDomain:
    """The domain of the nvtx package; attributes are made once a name (a range costs 0.3 us then)."""

    def __init__(self) -> None:
        """Find the package.

        Raises:
            ImportError: It is not installed.
        """
        import nvtx

        self._domain: Any = nvtx.get_domain(DOMAIN)
        self._attributes: dict[str, Any] = {}

    def push(self, name: str) -> None:
        """Open a range."""
        attributes = self._attributes.get(name)
        if attributes is None:
            attributes = self._attributes[name] = self._domain.get_event_attributes(message=name)
        self._domain.push_range(attributes)

    def pop(self) -> None:
        """Close the innermost range."""
        self._domain.pop_range()


class Ranges:
    """A stack of open phases of the training thread. A failure turns it off; the program never sees one."""

    def __init__(self, *, required: bool = False) -> None:
        """Nothing is open and nothing imported yet.

        Args:
            required: Say so when the nvtx package is missing.
        """
        self._required = required
        self._nvtx: NvtxDomain | None = None
        self._looked = False
        self._on = False
        self._profiled = False
        self._open: list[tuple[str, Any]] = []
        self._history: list[str] = []
        self._previous: list[str] = []

    def on(self, *, profiled: bool) -> None:
        """Emit from here on, to the profiler, too, when it records."""
        if not self._looked:
            self._looked = True
            self._nvtx = self._find_nvtx()
        self._on, self._profiled = True, profiled

    def off(self, *, here: bool = True) -> None:
        """Emit nothing more, and close what is open unless that was opened in another thread."""
        if here:
            self._close_to(0)
        self._on = self._profiled = False

    def step_begins(self) -> None:
        """The step's range, around all others."""
        self._previous, self._history = self._history, []
        if self._on:
            self._begin("step")

    def step_ends(self) -> None:
        """Every range of the step ends with it."""
        self._close_to(0)

    def begin(self, name: str) -> int:
        """A phase begins; a running forward pass ends.

        Returns:
            How many ranges were open before it, for `end`.
        """
        if len(self._history) < LONGEST_HISTORY:
            self._history.append(name)
        if not self._on:
            return 0
        if self._open and self._open[-1][0] == FORWARD:
            self._close_to(len(self._open) - 1)
        self._begin(name)
        return len(self._open) - 1

    def end(self, depth: int, name: str) -> None:
        """The phase that began at this depth is over; one that something else has closed meanwhile is passed over."""
        if not self._on or len(self._open) <= depth or self._open[depth][0] != name:
            return
        self._close_to(depth)
        if self._forward_follows(name):
            self._begin(FORWARD)

    def _forward_follows(self, name: str) -> bool:
        """Whether what comes now is a forward pass: always behind a batch, behind zero_grad as in the step before."""
        if name != "zero_grad":
            return name == "data"
        position = len(self._history)
        if self._previous[:position] == self._history and position < len(self._previous):
            return self._previous[position] == BACKWARD
        return "optimizer" not in self._history

    def _begin(self, name: str) -> None:
        handle = None
        try:
            if self._nvtx is not None:
                self._nvtx.push(name)
            if self._profiled and name not in OF_TORCH:
                # A third of the cost of record_function, and the same annotation in the trace.
                handle = torch.autograd._record_function_with_args_enter(f"{DOMAIN}::{name}")  # type: ignore[attr-defined]
        except Exception as error:
            self._fail(error)
        self._open.append((name, handle))

    def _close_to(self, depth: int) -> None:
        while len(self._open) > depth:
            _, handle = self._open.pop()
            try:
                if handle is not None:
                    torch.autograd._record_function_with_args_exit(handle)  # type: ignore[attr-defined]
                if self._nvtx is not None:
                    self._nvtx.pop()
            except Exception as error:
                self._fail(error)

    def _find_nvtx(self) -> NvtxDomain | None:
        try:
            return NvtxDomain()
        except Exception as error:
            if self._required:
                warn(f"no ranges, because nvtx cannot be used in {sys.executable} ({error}): pip install nvtx")
            return None

    def _fail(self, error: Exception) -> None:
        self._nvtx, self._profiled = None, False
        warn(f"no more ranges: {error!r}")
