"""PD520: a backward pass makes gradients that no optimizer uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._module_calls import lines_of_module_calls
from perfdoctor.rules import (
    CALLED_AT,
    Claim,
    Evidence,
    Finding,
    Intervals,
    Rank,
    RankAnalyzer,
    Saving,
    SourceLocation,
    Trace,
    UnusedGradients,
    captured_location,
    find_locations,
    forward_ops_of,
    read_advice,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# The gradient of the weights is one of the two products of a linear layer's or convolution's backward pass, and both
# have the same number of operations. The other one goes on to the layer before.
_SHARE_OF_WEIGHTS = 0.5
_DETACH = "gradients to detach"
_AUTOGRAD = "https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad"


class VainWork(NamedTuple):
    """What a backward pass does for gradients that are dropped.

    Attributes:
        share: Of the time of all backward passes, 0 to 1.
        call: The line that calls the module; None where it was not noted.
        is_last: Whether no gradient goes on from there, so that the pass could have ended before.
    """

    share: float
    call: SourceLocation | None
    is_last: bool


class UnusedGradientsMade(RankAnalyzer):
    """A backward pass makes gradients that are cleared before their optimizer steps, or that no optimizer has."""

    rule = "PD520"
    name = "unused-gradients"
    needs = frozenset({"cpu"})
    # min_share: of the step; where a medium finding begins, as detaching may need a change of the program's structure.
    defaults = {"min_share": 0.03}
    references = (_AUTOGRAD,)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each set of parameters whose gradients are dropped."""
        trace = rank.evidence_trace or rank.trace
        backward = rank.phases["backward"]
        for unused in rank.facts.unused_gradients:
            work = _measure(trace, unused)
            # The end of each pass: gradients of what was computed first are made last.
            length_ns = (backward[:, 1] - backward[:, 0]) * (1.0 if work is None else work.share)
            vain = iv.union(backward[:, 1] - length_ns.astype(np.int64), backward[:, 1])
            if len(vain) and self.exceeds_min_share(rank, rank.per_step(iv.total(vain))):
                yield self._report(rank, unused, work, vain)

    def _report(self, rank: Rank, unused: UnusedGradients, work: VainWork | None, vain: Intervals) -> Finding:
        cost_ns = rank.per_step(iv.total(vain))
        call = None if work is None else work.call
        place = captured_location(unused.passes[0]) if unused.passes else None
        at = f" at {place.short}" if place else ""
        optimizers = rank.facts.optimizers
        created = captured_location(optimizers[0].created) if len(optimizers) == 1 else None
        if work is None:
            what = f"The backward pass{at} makes gradients of {unused.tensors or 0:,} tensors that nobody uses"
            advice = "gradients to freeze but some" if unused.optimizer is None else _DETACH
        elif work.is_last:
            what = f"The backward pass{at} goes on through the module{_called(call)}, whose gradients nobody uses"
            advice = "gradients of no optimizer" if unused.optimizer is None else _DETACH
        else:
            what = f"The backward pass{at} makes gradients of the weights of the module{_called(call)}, unused"
            advice = "gradients to freeze" if unused.optimizer is None else "gradients to freeze meanwhile"
        return self.finding(
            rank,
            title=what,
            cost_ns=cost_ns,
            # What is not asked for is not computed.
            saving=Saving(0, None, cost_ns, "bounded")
            if work is None
            else Saving(cost_ns // 2, cost_ns, cost_ns, "bounded"),
            advice=read_advice(advice),
            claim=Claim(vain, kernels=rank.device_kind == "gpu"),
            confidence=0.5 if work is None else 0.8,
            location=(created if work is None and unused.optimizer is None else None) or place,
            evidence=(
                Evidence("parameters of these tensors", unused.parameters, "count"),
                Evidence("cleared before their optimizer stepped", unused.times, "count"),
                Evidence("of the backward passes", None if work is None else round(100 * work.share, 1), "%"),
                Evidence("calls of modules that make them", len(unused.calls), "count"),
                Evidence("the module is called at", None if call is None else str(call), id=CALLED_AT),
            ),
            subject=str(place),
        )


def _called(call: SourceLocation | None) -> str:
    return f" called at {call.short}" if call is not None else ""


def _measure(trace: Trace, unused: UnusedGradients) -> VainWork | None:
    """The work for gradients that are dropped; None where the trace does not show which it is."""
    ops, ranges = trace.ops, trace.ranges
    forward = forward_ops_of(trace)
    backward = np.flatnonzero(trace.match_rows(ranges, vocabulary.BACKWARD_RANGE))
    lines = find_locations(trace, ranges.thread[backward], ranges.start_ns[backward])
    at = {str(captured_location(line)) for line in unused.passes}
    wanted = backward[[str(line) in at for line in lines]]
    passes, whole = (iv.union(ranges.start_ns[rows], ranges.end_ns[rows]) for rows in (wanted, backward))
    nodes = np.flatnonzero((forward.node == np.arange(len(ops))) & (forward.forward >= 0))
    nodes = nodes[iv.contains(passes, ops.start_ns[nodes])]
    calls = {str(captured_location(call)): call for call in unused.calls}
    made_in = [calls.get(str(line)) for line in lines_of_module_calls(trace, forward.forward[nodes])]
    vain_calls = [call for call in made_in if call is not None]
    if not vain_calls:
        return None
    goes_on = any(call.input_has_graph for call in vain_calls)
    rows = nodes[[call is not None for call in made_in]]
    vain = iv.union(ops.start_ns[rows], ops.end_ns[rows])
    share = min(_work_in(trace, vain) / max(_work_in(trace, whole), 1), 1.0)
    call = captured_location(vain_calls[0])
    return VainWork(share * _SHARE_OF_WEIGHTS if goes_on else share, call, not goes_on)


def _work_in(trace: Trace, time: Intervals) -> int:
    """The time of the kernels that were launched in some time; without a GPU that time itself."""
    if not len(trace.gpu):
        return iv.total(time)
    call = trace.gpu.call
    launched_ns = np.append(trace.calls.start_ns, -1)[call]
    return int(trace.gpu.dur_ns[(call >= 0) & iv.contains(time, launched_ns)].sum())
