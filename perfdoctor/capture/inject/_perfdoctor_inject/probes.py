"""What is looked at beside the times of steps: each look is a probe, all stand in one list, and none disturbs another.

A probe that raises is taken out with one note; the program, the recording and the other probes go on without it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple


class EndedStep(NamedTuple):
    """A step that has ended.

    Attributes:
        number: Its number.
        window: The window whose times stand in facts.json.
        label: The window in steps.jsonl.
        dur_ns: How long it took.
        is_profiled: Whether a profiler may have slowed it down, or the start of the program.
    """

    number: int
    window: str
    label: str
    dur_ns: int
    is_profiled: bool


class Probe:
    """What the recorder calls between two steps; a probe has of it what it needs."""

    def start(self, step: int) -> None:
        """The first window, or a later one, begins before this step."""

    def step(self, ended: EndedStep) -> None:
        """A step has ended."""

    def stop(self, step: int) -> None:
        """All windows are recorded before this step, or the program ends in it."""

    def facts(self) -> dict[str, Any]:
        """Its part of facts.json so far."""
        return {}


class Facts(Probe):
    """One fact that needs no look: a function returns it."""

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self.name, self._read = name, read

    def facts(self) -> dict[str, Any]:
        """What the function returns."""
        return {self.name: self._read()}


class Once(Facts):
    """One fact that is read once, before the first window, or at the end of a program that has none."""

    _found: Any = None
    _was_read = False

    def start(self, step: int) -> None:  # noqa: ARG002
        """Read it."""
        if not self._was_read:
            self._was_read, self._found = True, self._read()

    stop = start

    def facts(self) -> dict[str, Any]:
        """What was read; None before."""
        return {self.name: self._found}


class Probes:
    """The probes of a recorder, in the order of their facts."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """None yet; `note` takes sentences for the user, without a full stop."""
        self._note = note
        self._probes: list[Probe] = []

    def add(self, *probes: Probe) -> None:
        """Call these, too."""
        self._probes += probes

    def each(self, method: Callable[..., None], *args: Any) -> None:
        """Call `Probe.start`, `Probe.step` or `Probe.stop` of all."""
        for probe in list(self._probes):
            self.call(getattr(probe, method.__name__), *args)

    def facts(self) -> dict[str, Any]:
        """The facts of all."""
        return {key: value for probe in list(self._probes) for key, value in (self.call(probe.facts) or {}).items()}

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """What a probe's method returns; None where it fails."""
        try:
            return method(*args)
        except Exception as error:
            if not self.take_out(error):
                raise
            return None

    def take_out(self, error: Exception) -> bool:
        """Take out the probe in whose code an error was raised; False where it is none of a probe."""
        for frame, _ in traceback.walk_tb(error.__traceback__):
            probe = frame.f_locals.get("self")
            if isinstance(probe, Probe):
                if probe in self._probes:
                    self._probes.remove(probe)
                    self._note(f"{getattr(probe, 'name', type(probe).__name__)} is not recorded: {error!r}")
                return True
        return False
