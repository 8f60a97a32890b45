"""Penalties on all weights that are part of the graph: PD210 finds them by recorded sizes."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._pd210_calls import Calls
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import Rank

# With decay in a fused SGD of 5 million weights nothing measurable remained; an optimizer op by op adds one pass over
# the weights to the five or more of the penalty.
_PENALTY = WorkKind(
    "penalty",
    "A penalty on {:,} weight tensors is part of the graph: each step goes over all of them, forwards and backwards",
    (0.0, 0.03, 0.25),
)
_SQUARES = frozenset({"pow", "square"})
_WEIGHTS = {"linear": 1, "conv1d": 1, "conv2d": 1, "conv3d": 1, "addmm": 2, "mm": 1}
# Fewer of the weights may be results that happen to have the size of one.
_MIN_WEIGHTS, _MIN_SHARE = 3, 0.5


def find_weight_penalty(shaped: Rank, calls: Calls) -> dict[WorkKind, Work]:
    """The squares, with a gradient, of tensors of the sizes of the layers' weights, as many as layers have.

    A sum that follows one goes with it.
    """
    layers = [calls[at] for at in calls.named(*_WEIGHTS)] if calls.named(*_SQUARES) else []
    weights = {size for call in layers for size in call.sizes[_WEIGHTS[call.name] :][:1]}
    squares = [at for at in calls.named(*_SQUARES) if calls[at].sizes[:1] and calls[at].sizes[0] in weights]
    rows = np.array([calls[at].row for at in squares], np.int64)
    has_gradient = np.isin(rows, shaped.forward_ops.forward)
    squared = {calls[at].sizes[0] for at, has in zip(squares, has_gradient.tolist(), strict=True) if has}
    if len(squared) < max(_MIN_WEIGHTS, _MIN_SHARE * len(weights)):
        return {}
    sums = [call.row for at in squares for call in calls[at + 1 : at + 2] if call.name == "sum"]
    number = shaped.count_per_step(int(has_gradient.sum()))
    return {_PENALTY: Work(np.concatenate((rows[has_gradient], np.array(sums, np.int64))), number)}
