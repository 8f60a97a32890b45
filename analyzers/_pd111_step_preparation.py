"""Work on the batch that the step does itself: ops before the model, through which no gradient goes."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._cpu_evidence import FoundWork, project, rank_with_stacks, time_of_ops
from perfdoctor.analyzers._loader_texts import format_ms
from perfdoctor.rules import NONE, BoolArray, Evidence, Rank, optimizer_steps_of, vocabulary
from perfdoctor.rules import intervals as iv

# Random numbers are new in each step, and what moves or clears tensors prepares nothing.
_NO_PREPARATION = (
    r"^aten::(rand\w*|normal_?|uniform_|bernoulli_?|to|_to_copy|copy_|zero_|zeros\w*|fill_|item|is_nonzero|lift_fresh|"
    r"detach_?|empty\w*|arange)$"
)
_MIN_STEPS = 2
_NEVER_NS = np.iinfo(np.int64).max


def find_preparation(rank: Rank) -> FoundWork | None:
    """The work on the batch of a program on the CPU that trains; None without any, and where no stacks tell modules."""
    shown = rank_with_stacks(rank)
    if shown is None or rank.device_kind != "cpu" or min(rank.steps.count, shown.steps.count) < _MIN_STEPS:
        return None
    marks = _match_preparation(shown)
    if not marks.any():
        return None
    rows = project(rank, shown, marks)
    time = time_of_ops(rank, rows)
    step = f"{format_ms(rank.per_step(iv.total(time)))} of {format_ms(rank.mean_step_ns)}"
    return FoundWork(
        f"The step prepares its batch itself: {step} before the model, of which no gradient is computed",
        "Prepare data once, before the loop, where it is the same in each epoch; else in the data set, so that other "
        "processes do it meanwhile, where cores are free.",
        time,
        location=shown.places.line_of_ops(marks),
        evidence=(Evidence("ops of it per {unit}", rank.count_per_step(int(rows.sum())), "count"),),
        confidence=0.6,
        subject="in the loop",
    )


def _match_preparation(rank: Rank) -> BoolArray:
    """For each op whether it is called in a step before the first whose gradient is computed, outside of modules.

    Where the steps of a trace begin between a forward pass and its backward pass, what comes before that ends is none.
    """
    trace, ops, forward = rank.trace, rank.trace.ops, rank.forward_ops
    with_gradient = forward.forward[forward.forward >= 0]
    step = rank.steps.at(ops.start_ns)
    first_ns = np.full(rank.steps.count + 1, _NEVER_NS)  # of each step, and of what lies in none
    np.minimum.at(first_ns, step[with_gradient], ops.start_ns[with_gradient])
    first_ns[NONE] = _NEVER_NS
    backward = np.flatnonzero(forward.in_backward & (ops.start_ns < first_ns[step]))
    backward_ns = np.zeros_like(first_ns)
    np.maximum.at(backward_ns, step[backward], ops.end_ns[backward])
    frames = trace.frames
    modules = trace.match_rows(frames, vocabulary.MODULE_FRAME)
    # Before means ended before: a `linear` that is called outside of modules begins before the `addmm` that it runs.
    result: BoolArray = (ops.parent == NONE) & (ops.end_ns <= first_ns[step]) & (first_ns[step] < _NEVER_NS)
    result &= ops.start_ns >= backward_ns[step]
    result &= np.isin(ops.thread, ops.thread[with_gradient])
    result &= ~iv.contains(iv.union(frames.start_ns[modules], frames.end_ns[modules]), ops.start_ns)
    result &= ~iv.contains(rank.loader_waits.intervals, ops.start_ns)
    result &= optimizer_steps_of(trace).around(ops.start_ns, ops.thread) < 0
    return result & ~trace.match_rows(ops, _NO_PREPARATION)
