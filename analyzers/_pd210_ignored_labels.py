"""A head that computes the logits of positions whose labels the loss ignores: PD210 finds it by recorded arguments."""

from __future__ import annotations

import math

import numpy as np

from perfdoctor.analyzers._cpu_evidence import arguments_of
from perfdoctor.analyzers._pd210_calls import Call, Calls
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import Rank

_IGNORED = WorkKind(
    "ignored labels",
    "The last layer and the loss compute {:,} positions, also those whose label the loss ignores",
    (0.0, None, 1.0),
)
# Of `cross_entropy_loss(input, target, weight, reduction, ignore_index, ...)`; the index that it has by itself.
_ARGUMENT = 4
# Logits of fewer classes cost little beside the network.
_MIN_CLASSES = 1_000


def find_ignored_labels(shaped: Rank, calls: Calls) -> dict[WorkKind, Work]:
    """The last layer and the loss of each step in which the program itself sets labels to what the loss ignores."""
    trace, most = shaped.trace, 0
    rows: list[int] = []
    places: list[int] = []
    step_of = shaped.steps.at(trace.ops.start_ns[calls.rows])
    for at in calls.named("cross_entropy_loss"):
        loss = calls[at]
        if not _has_many_classes(loss):
            continue
        (number, classes), arguments = loss.sizes[0], arguments_of(trace, loss.row)
        ignored = arguments[_ARGUMENT] if len(arguments) > _ARGUMENT else None
        first = at
        while first and step_of[first - 1] == step_of[at]:
            first -= 1
        before = calls[first:at]
        marks = any(
            call.name in ("masked_fill", "masked_fill_", "where")
            and math.prod(call.sizes[0]) == number
            and ignored in arguments_of(trace, call.row)
            for call in before
            if call.sizes
        )
        heads = [call for call in before if call.name == "linear" and call.sizes[1:2] and call.sizes[1][0] == classes]
        if ignored is not None and marks and heads and math.prod(heads[-1].sizes[0][:-1]) == number:
            rows += [heads[-1].row, loss.row]
            places.append(heads[-1].row)
            most = max(most, number)
    return {_IGNORED: Work(np.array(rows, np.int64), most, np.array(places, np.int64))} if rows else {}


def _has_many_classes(loss: Call) -> bool:
    return bool(loss.sizes) and len(loss.sizes[0]) == 2 and loss.sizes[0][1] >= _MIN_CLASSES
