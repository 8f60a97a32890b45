"""Drift over the steps of a whole run, and in which parts of the step it is, by what a capture has timed of each step.

Three questions, in this order: do usual steps rise (`change_points`) without what they wait for a core; do they rise
with it; and if not, does what only some steps contain rise by as much: collections of garbage, checkpoints and logs::

    step          ....................      usual steps do not rise
    gc_ns         .    :    |    !          every tenth step collects more and more: a drift of the mean step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from perfdoctor.analysis.captured_facts import RunSteps
from perfdoctor.analysis.step_times import even_out_work
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.run_watch.change_points import Drift, find_drift, levels_by_step
from perfdoctor.trace.arrays import FloatArray, Int64Array

MIN_GROWTH = 0.08
"""The least rise, as a share of the step: levels of quiet programs stay within a twentieth."""
# Of the run, the first and the last part that stand for its beginning and its end.
_END_SHARE = 1 / 8
# What only some steps contain, by columns of the steps.
_RARE_PARTS = ("gc_ns", "host_call_ns")
_PARTS = ("loader_wait_ns", "gc_ns", "host_call_ns", "queued_ns", "cpu_ns", "system_cpu_ns", "samples")


class PartRise(NamedTuple):
    """A part of the mean step, before a drift and at its end; ns, of samples their number."""

    before: float
    after: float

    @property
    def rise(self) -> float:
        """By how much it rises."""
        return self.after - self.before


@frozen_dataclass(eq=False)
class RunDrift:
    """A run whose steps get longer.

    Attributes:
        kind: "jump" where they do so at once, "ramp" where they go on doing so.
        began: The first step that belongs to it, as a row of the run's steps.
        first_step: The number of that step in the program.
        before_ns: The step before it, without exceptions.
        after_ns: The step at the end of the run.
        noise_ns: By how much levels of the step vary otherwise: one standard deviation.
        mean_rise_ns: By how much the mean step is longer, as the parts are: of a ramp less than at its end.
        lasted_ns: How long the steps took that belong to it.
        parts: What of the mean step was before and is now in some part, by columns of the steps; what was not recorded
            is not there. Parts may overlap: CPU time is in most of them.
        is_wait_for_core: Whether steps rise only with what the training thread waited for a core.
        is_in_every_step: Whether usual steps rise, not only what some of them contain.
        compiling: Shares (0 to 1) of the steps that compiled something.
    """

    kind: Literal["jump", "ramp"]
    began: int
    first_step: int
    before_ns: int
    after_ns: int
    noise_ns: int
    mean_rise_ns: int
    lasted_ns: int
    parts: Mapping[str, PartRise]
    compiling: PartRise
    is_wait_for_core: bool = False
    is_in_every_step: bool = True

    @property
    def rise_ns(self) -> int:
        """By how much the step is longer at the end."""
        return self.after_ns - self.before_ns

    @property
    def growth(self) -> float:
        """How many times as long the step is at the end."""
        return self.after_ns / max(self.before_ns, 1)

    def leave_out(self, dur_ns: Int64Array) -> Int64Array:
        """The durations of the run's steps as they would be at the level before; those of rare parts stay."""
        if not self.is_in_every_step:
            return dur_ns
        factor = np.minimum(self.before_ns / np.maximum(levels_by_step(dur_ns), 1), 1)
        without: Int64Array = (dur_ns * factor).astype(np.int64)
        return without


def find_run_drift(steps: RunSteps) -> RunDrift | None:
    """The drift of a run, for equal work in each step; None where it has none, or one of less than `MIN_GROWTH`."""
    with_waits_ns = _with_waits_for_core(steps)
    for own_ns in (_without_waits_for_core(steps), with_waits_ns):
        dur_ns = even_out_work(own_ns, steps)
        drift = find_drift(dur_ns)
        if drift is not None and drift.rise >= MIN_GROWTH * drift.before:
            found = _describe(steps, drift, drift.before, drift.after)
            return replace(found, is_wait_for_core=own_ns is with_waits_ns and steps.queued_ns is not None)
    usual_ns = float(np.median(dur_ns))
    for name in _RARE_PARTS:
        values = getattr(steps, name)
        drift = None if values is None else find_drift(_spread(values))
        if drift is not None and drift.rise >= MIN_GROWTH * (usual_ns + drift.before):
            found = _describe(steps, drift, usual_ns + drift.before, usual_ns + drift.after)
            return replace(found, is_in_every_step=False)
    return None


def _spread(values: Int64Array) -> FloatArray:
    """What occurs in a few steps, each time spread evenly over the steps since the time before.

    Parts of the run then differ by what occurs, not by whether two or three times fall into them.
    """
    rows = np.flatnonzero(values)
    gaps = np.diff(rows, prepend=-1)
    per_step = np.repeat(values[rows] / gaps, gaps)
    return np.append(per_step, np.full(len(values) - len(per_step), per_step[-1] if len(per_step) else 0.0))


def _without_waits_for_core(steps: RunSteps) -> Int64Array:
    """The durations without the waits of the training thread for a core, where these were measured."""
    if steps.queued_ns is None:
        return steps.dur_ns
    away_ns = steps.dur_ns if steps.cpu_ns is None else np.maximum(steps.dur_ns - steps.cpu_ns, 0)
    own_ns: Int64Array = np.maximum(steps.dur_ns - np.minimum(steps.queued_ns, away_ns), 1)
    return own_ns


def _with_waits_for_core(steps: RunSteps) -> Int64Array:
    """The durations with all waits of the training thread for a core.

    The system takes a core most often where a thread calls it, as the recorder does right after a step: without it the
    wait would lie in one of the steps.
    """
    if steps.queued_ns is None or steps.cpu_ns is None:
        return steps.dur_ns
    with_waits_ns: Int64Array = np.maximum(steps.dur_ns, steps.cpu_ns + steps.queued_ns)
    return with_waits_ns


def _describe(steps: RunSteps, drift: Drift, before_ns: float, after_ns: float) -> RunDrift:
    ends = max(round(_END_SHARE * len(steps)), 1)
    before = slice(0, max(drift.began, ends))
    after = slice(drift.began if drift.kind == "jump" else len(steps) - ends, len(steps))

    def rise_of(values: Int64Array | FloatArray) -> PartRise:
        return PartRise(float(values[before].mean()), float(values[after].mean()))

    columns = {name: getattr(steps, name) for name in _PARTS}
    rise_ns = after_ns - before_ns
    return RunDrift(
        kind=drift.kind,
        began=drift.began,
        first_step=int(steps.number[drift.began]),
        before_ns=round(before_ns),
        after_ns=round(after_ns),
        noise_ns=round(drift.noise),
        mean_rise_ns=round(np.clip(rise_of(steps.dur_ns).rise, rise_ns / 2, rise_ns)),
        lasted_ns=int(steps.dur_ns[drift.began :].sum()),
        parts={name: rise_of(values) for name, values in columns.items() if values is not None},
        compiling=rise_of(steps.which_contain("compile").astype(np.float64)),
    )
