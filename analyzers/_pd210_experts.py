"""Experts that all compute all tokens, where a gate uses a few of each: PD210 finds them by recorded sizes."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from perfdoctor.analyzers._cpu_evidence import arguments_of
from perfdoctor.analyzers._pd210_calls import Calls
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import Rank

_EXPERTS = WorkKind(
    "experts", "{:,} experts compute all tokens, and the gate uses a few of them for each", (0.0, 0.0, 0.0)
)
# Measured by CPU time with one thread, forward and backward pass (torch 2.13; 4 to 16 experts of two layers, 256 to
# 2,048 tokens of 64 to 256 numbers): what remains is the share that is used, and so much of all for gathering.
_GATHERING = (0.06, 0.1, 0.21)
# From the choice of the gate to the first expert, and from one layer of the experts to the next.
_MAX_DISTANCE = 12
_MIN_EXPERTS, _MAX_USED = 4, 0.5


def find_dense_experts(shaped: Rank, calls: Calls) -> dict[WorkKind, Work]:
    """The linear layers of such experts: as many with one size of weight as the gate has choices, behind its topk."""
    rows: list[int] = []
    most, share = 0, 0.0
    step_of = shaped.steps.at(shaped.trace.ops.start_ns[calls.rows])
    for at in calls.named("topk"):
        gate = calls[at]
        if not gate.sizes:
            continue
        (*tokens, experts), arguments = gate.sizes[0] or (0,), arguments_of(shaped.trace, gate.row)
        used = arguments[1] if len(arguments) > 1 else None
        if experts < _MIN_EXPERTS or used is None or used > _MAX_USED * experts:
            continue
        layers, last = defaultdict(list), at
        for position in range(at + 1, len(calls)):
            call = calls[position]
            if call.name == "topk" or position - last > _MAX_DISTANCE or step_of[position] != step_of[at]:
                break
            if call.name == "linear" and math.prod(call.sizes[0][:-1]) == math.prod(tokens):
                layers[call.sizes[1]].append(call.row)
                last = position
        found = [row for each in layers.values() if len(each) == experts for row in each]
        if found:
            rows += found
            most, share = max(most, experts), max(share, used / experts)
    remaining = (share + _GATHERING[0], share + _GATHERING[1], share + _GATHERING[2])
    return {_EXPERTS: Work(np.array(rows, np.int64), most, None, remaining)} if rows else {}
