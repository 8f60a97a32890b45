"""Evaluations in each step: forward passes of a training that feed no gradient, again and again."""

from __future__ import annotations

import re

import numpy as np

from perfdoctor.analyzers._cpu_evidence import FoundWork, project
from perfdoctor.analyzers._module_calls import ModuleCalls, module_calls_of
from perfdoctor.rules import (
    NONE,
    BoolArray,
    Int64Array,
    Intervals,
    Rank,
    Saving,
    SourceLocation,
    advise,
    most_common_location,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Half as often is the least that anyone would change; ten times less often is what people choose.
MIN_SAVED, USUALLY_SAVED = 0.5, 0.9
# In nearly all steps: what is done now and then is PD003's to tell.
_NEARLY_ALL = 0.9


def find_evaluation(rank: Rank) -> FoundWork | None:
    """The evaluations in nearly every step of a training; None where nothing shows that there are any.

    A line that calls a model evaluates where no backward pass uses what it computes, and either its function says so,
    or the run has put a model to evaluation in each step: targets of a teacher and experience of an agent are part of
    the step.
    """
    for shown in (rank, rank.evidence):
        if shown is not None and shown.steps.count and shown.forward_ops.has_numbers:
            calls = module_calls_of(shown.trace)
            if calls.lines:
                return _find_in_window(rank, shown, calls)
    return None


def _find_in_window(rank: Rank, shown: Rank, calls: ModuleCalls) -> FoundWork | None:
    """The evaluations that a window shows, in the steps of the rank."""
    run, ops, forward = rank.run_steps, shown.trace.ops, shown.forward_ops
    makers = np.unique(forward.forward[forward.forward >= 0])
    with_gradient = {
        calls.lines[number] for number in np.unique(calls.around(shown.trace, makers)).tolist() if number >= 0
    }
    is_switched = run is not None and len(run) > 0 and bool(run.which_contain("evaluation").mean() >= _NEARLY_ALL)
    lines = {line for line in {*calls.lines} - with_gradient if line is not None and (is_switched or _evaluates(line))}
    step = shown.steps.at(calls.start_ns)
    is_chosen = np.array([line in lines for line in calls.lines], bool) & (step != NONE)
    if len(np.unique(step[is_chosen])) < _NEARLY_ALL * shown.steps.count:
        return None
    spans = _join_runs(calls.start_ns, calls.end_ns, is_chosen, step)
    inside = iv.contains(spans, ops.start_ns) & np.isin(ops.thread, calls.thread)
    marked = project(rank, shown, inside & ~forward.in_backward)
    location = most_common_location(line for line, chosen in zip(calls.lines, is_chosen, strict=True) if chosen)
    time, number = _time_of(rank, marked), shown.count_per_step(int(is_chosen.sum()))
    cost_ns = rank.per_step(iv.total(time))
    return FoundWork(
        f"Each step evaluates for {rank.share(cost_ns):.0%} of its time: {number:,} call{'s' * (number != 1)} of a "
        "model whose results no backward pass uses",
        advise("the step evaluates", rank.context),
        time,
        Saving(round(MIN_SAVED * cost_ns), round(USUALLY_SAVED * cost_ns), cost_ns, "bounded"),
        location,
        confidence=0.8,
        subject="evaluation",
    )


def _evaluates(line: SourceLocation) -> bool:
    return bool(line.function and re.search(vocabulary.EVALUATION_FUNCTION, line.function))


def _time_of(rank: Rank, marked: BoolArray) -> Intervals:
    """When some ops run with what lies between them, or on a GPU what they launched."""
    trace = rank.trace
    if rank.device_kind == "gpu":
        start_ns, end_ns, events = trace.gpu.start_ns, trace.gpu.end_ns, rank.ops.where(marked).kernels.mask
    else:
        outermost = np.flatnonzero(trace.ops.parent == NONE)
        start_ns, end_ns, events = trace.ops.start_ns[outermost], trace.ops.end_ns[outermost], marked[outermost]
    return iv.intersect(_join_runs(start_ns, end_ns, events, rank.steps.at(start_ns)), rank.window)


def _join_runs(start_ns: Int64Array, end_ns: Int64Array, is_marked: BoolArray, step: Int64Array) -> Intervals:
    """From the first to the last of the marked events of each step that follow each other without another one."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns, is_marked, step = start_ns[order], end_ns[order], is_marked[order], step[order]
    begins = np.append(True, (is_marked[1:] != is_marked[:-1]) | (step[1:] != step[:-1]))
    first = np.flatnonzero(begins & is_marked)
    run = np.cumsum(begins)[is_marked]
    last_ns = np.maximum.reduceat(end_ns[is_marked], np.flatnonzero(np.diff(run, prepend=-1))) if len(run) else run
    return iv.union(start_ns[first], last_ns)
