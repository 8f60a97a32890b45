"""The phases of a step as ranges: for Nsight Systems through NVTX, for Perfetto through the profiler.

NVTX gets step, data, forward, backward, optimizer, closure and zero_grad in the domain "perfdoctor", where the `nvtx`
package can be imported. The profiler gets forward, backward and closure only, because torch itself records the others.
While nothing is recorded, no range is emitted and nvtx is not imported.

Only hooks in every module would show where a forward pass begins, and they would break compiled graphs. So the forward
range is the time of the training thread between its batch, or its `zero_grad`, and the backward pass: model, loss, and
copies. Where `zero_grad` stands in between, there are two forward ranges, one of them empty::

    step [ data [] forward [] zero_grad [] forward [] backward [] optimizer [] ]

A `zero_grad` after the optimizer is followed by no forward pass. In a loop with several of both, the phases of the
step before show which `zero_grad` is followed by a forward pass.

The closure that a program gives to `Optimizer.step` begins with a forward pass::

    optimizer [ closure [ forward [] zero_grad [] forward [] backward [] ] ]
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .messages import warn

DOMAIN = "perfdoctor"
FORWARD, BACKWARD, CLOSURE = "forward", "backward", "closure"
# torch records these phases itself; the step is recorded as ProfilerStep#.
RECORDED_BY_TORCH = ("step", "data", "optimizer", "zero_grad")
# A loop in which no step is ever found must not fill the memory with its phases.
MAX_PHASES = 1000


class RecordedRange:
    """A range in the trace, opened when made; not by `record_function`, whose marks of steps are the program's own.

    It has a third of its cost, too.
    """

    def __init__(self, name: str) -> None:
        self._handle = torch.autograd._record_function_with_args_enter(name)  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the range."""
        torch.autograd._record_function_with_args_exit(self._handle)  # type: ignore[attr-defined]


class NvtxDomain:
    """perfdoctor's domain of the nvtx package; attributes are made once for each name (a range costs 0.3 us then)."""

    def __init__(self) -> None:
        """Import the package.

        Raises:
            ImportError: The package is not installed.
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


class PhaseRanges:
    """The stack of open ranges of the training thread; a failure ends the ranges and never enters the program."""

    def __init__(self, *, required: bool = False) -> None:
        """Open nothing and import nothing.

        Args:
            required: Warn the user when the nvtx package is missing.
        """
        self._required = required
        self._nvtx: NvtxDomain | None = None
        self._searched_nvtx = False
        self._emitting = False
        self._profiled = False
        self._open: list[tuple[str, Any]] = []
        self._phases: list[str] = []
        self._backward_in_closure = False
        self._previous_phases: list[str] = []

    def start(self, *, profiled: bool) -> None:
        """Emit ranges from now on.

        They go to the profiler, too, where it records.
        """
        if not self._searched_nvtx:
            self._searched_nvtx = True
            self._nvtx = self._find_nvtx()
        self._emitting, self._profiled = True, profiled

    def stop(self, *, in_training_thread: bool = True) -> None:
        """Emit nothing more; close the open ranges, except from a thread other than the one that opened them."""
        if in_training_thread:
            self._close_to(0)
        self._emitting = self._profiled = False

    def forget(self) -> None:
        """Forget the open ranges and close none: they belong to the process that this one was forked from."""
        self._open.clear()
        self._emitting = self._profiled = False

    def begin_step(self) -> None:
        """Open the step's range, around all others."""
        self._previous_phases, self._phases = self._phases, []
        if self._emitting:
            self._open_range("step")

    def end_step(self) -> None:
        """Close the step's range and every range inside it."""
        self._close_to(0)

    def begin(self, name: str) -> int:
        """Open the range of a phase; a running forward pass ends there.

        Returns the number of ranges that were open before, for `end`.
        """
        if len(self._phases) < MAX_PHASES:
            self._phases.append(name)
        if not self._emitting:
            return 0
        if self._open and self._open[-1][0] == FORWARD:
            self._close_to(len(self._open) - 1)
        self._open_range(name)
        depth = len(self._open) - 1
        if name == CLOSURE:
            self._backward_in_closure = False
            self._open_range(FORWARD)
        elif name == BACKWARD:
            self._backward_in_closure = True
        return depth

    def end(self, depth: int, name: str) -> None:
        """Close the range that `begin` opened at this depth, unless it was closed meanwhile."""
        if not self._emitting or len(self._open) <= depth or self._open[depth][0] != name:
            return
        self._close_to(depth)
        if self._forward_follows(name):
            self._open_range(FORWARD)

    def _forward_follows(self, name: str) -> bool:
        """Whether a forward pass follows a phase: always after a batch, after zero_grad as in the step before."""
        if name != "zero_grad":
            return name == "data"
        if any(opened == CLOSURE for opened, _ in self._open):
            return not self._backward_in_closure
        position = len(self._phases)
        if self._previous_phases[:position] == self._phases and position < len(self._previous_phases):
            return self._previous_phases[position] == BACKWARD
        return "optimizer" not in self._phases

    def _open_range(self, name: str) -> None:
        handle = None
        try:
            if self._nvtx is not None:
                self._nvtx.push(name)
            if self._profiled and name not in RECORDED_BY_TORCH:
                handle = RecordedRange(f"{DOMAIN}::{name}")
        except Exception as error:
            self._fail(error)
        self._open.append((name, handle))

    def _close_to(self, depth: int) -> None:
        while len(self._open) > depth:
            _, handle = self._open.pop()
            try:
                if handle is not None:
                    handle.close()
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
