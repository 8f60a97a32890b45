"""Debugging switches that were on: what the capture says of them, and what the trace shows of anomaly detection."""

from __future__ import annotations

import numpy as np

from perfdoctor.rules import (
    CapturedFacts,
    Intervals,
    Rank,
    SourceLocation,
    TorchFlags,
    Trace,
    captured_location,
    frozen_dataclass,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

ANOMALY, GRADCHECK, DETERMINISTIC = "anomaly detection", "gradcheck", "deterministic algorithms"
# Where a switch is on in fewer steps, it is no leftover: somebody looks at a step now and then.
_MIN_SHARE_OF_STEPS = 0.9


@frozen_dataclass
class Switch:
    """A switch that was on in nearly all steps.

    Attributes:
        step_ns: Time of its own in a step without the profiler, as measured in the program; None where it was not.
        location: The line that turned it on.
    """

    step_ns: int | None = None
    location: SourceLocation | None = None


def find_switch(rank: Rank, name: str) -> Switch | None:
    """A switch that was on in nearly all steps that were seen; None where it was not, and where nothing is known."""
    for each in rank.facts.debug_switches:
        is_on = each.steps and each.of_steps is not None and each.steps >= _MIN_SHARE_OF_STEPS * each.of_steps
        if each.switch == name and is_on:
            return Switch(each.step_ns, captured_location(each.location))
    return None


def flags_of_trace(facts: CapturedFacts) -> TorchFlags:
    """The flags of torch as the analysed window began."""
    return facts.flags_by_window.get("timing", TorchFlags())


def find_nan_checks(trace: Trace) -> Intervals:
    """When the autograd engine looks for NaN in gradients, as only anomaly detection lets it do.

    After the node itself, for each of the gradients that it returned::

        evaluate_function: AddmmBackward0 [ AddmmBackward0 [ aten::mm ]  aten::isnan  aten::any  aten::item ]
    """
    ops = trace.ops
    in_engine = (ops.parent >= 0) & np.append(trace.match_rows(ops, vocabulary.ENGINE_NODE), False)[ops.parent]
    starts = np.flatnonzero(in_engine & trace.match_rows(ops, r"^aten::isnan$"))
    ends = np.flatnonzero(in_engine & trace.match_rows(ops, r"^aten::(item|is_nonzero)$"))
    if not len(starts) or not len(ends):
        return iv.EMPTY
    starts, ends = (
        starts[np.argsort(ops.parent[starts], kind="stable")],
        ends[np.argsort(ops.parent[ends], kind="stable")],
    )
    if len(starts) != len(ends) or (ops.parent[starts] != ops.parent[ends]).any():
        return iv.union(ops.start_ns[starts], ops.end_ns[starts])
    return iv.union(ops.start_ns[starts], ops.end_ns[ends])


def find_new_nodes(trace: Trace) -> np.ndarray:
    """The forward ops that made a node of autograd's graph, rows of `trace.ops`.

    Of the ops with one number on a thread the innermost last one made the node; those around it only saw the number.
    """
    ops = trace.ops
    numbered = np.flatnonzero((ops.sequence >= 0) & ~trace.match_rows(ops, r"^autograd::engine|Backward\d*$"))
    order = numbered[np.lexsort((numbered, ops.sequence[numbered], ops.thread[numbered]))]
    if not len(order):
        return order
    key = np.stack((ops.thread[order], ops.sequence[order]))
    is_last = np.append((key[:, 1:] != key[:, :-1]).any(axis=0), True)
    return np.sort(order[is_last])
