"""What was measured of other forms of the program's calls, as facts.json has it after `perfdoctor measure`."""

from __future__ import annotations

from typing import Literal

from perfdoctor.facts.part import CapturedLine, CapturedPart, Later, Written


class FormLine(CapturedLine):
    """A line whose calls a form replaces, and what they are called."""

    ops: tuple[str, ...] = ()


class MeasuredForm(CapturedPart):
    """Some calls of a step, and another form of them, measured by themselves at their sizes; the fastest of turns.

    Attributes:
        form: Its name in forms.toml.
        says: What it is, in words.
        results: equal but for rounding, which was checked; in another type, or other numbers.
        lines: The lines of the calls, the one with the most time first.
        calls: How often a step computes this.
        ops: The first of the calls.
        now_ns, form_ns: One computation as it is, and in the other form, with the backward pass where there is one.
        threads: With how many threads: one, by its CPU time, where others had the cores.
        noise: How far the measurement varied, as a share.
        difference: The largest difference of the results and gradients beside the largest number.
        write: How the other form is written.
        statement: The statement of the last call with it; null where it takes more than one expression.
    """

    form: Written[str] = None
    says: Written[str] = None
    results: Literal["equal", "other type", "other numbers"] | None = None
    lines: tuple[FormLine, ...] = ()
    calls: Written[int] = None
    ops: tuple[str, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    device: Literal["cpu", "cuda"] | None = None
    now_ns: Written[int] = None
    form_ns: Written[int] = None
    threads: Written[int] = None
    noise: float | None = None
    difference: float | None = None
    has_backward: Later[bool] = False
    write: Written[str] = None
    statement: str | None = None

    @property
    def remaining(self) -> tuple[float, float, float] | None:
        """The share of the time that the form takes at worst, as expected and at best; None where it does not win.

        The noise of a measurement may have come on top of either time.
        """
        if not self.now_ns or not self.form_ns or self.noise is None:
            return None
        ratio = self.form_ns / self.now_ns
        worst = ratio * (1 + max(self.noise, 0.0))
        return (worst, ratio, ratio / (1 + max(self.noise, 0.0))) if worst <= MOST_REMAINING else None

    def saves_ns(self, at: int = 1) -> float:
        """What it saves of a step: at worst, as expected (1) or at best; 0 where it does not win."""
        return 0.0 if self.remaining is None else (self.calls or 0) * (self.now_ns or 0) * (1 - self.remaining[at])


MOST_REMAINING = 0.9
"""A form that leaves more of the time at worst is no better: the next machine, or the next version, turns it round."""
