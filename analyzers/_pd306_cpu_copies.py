"""PD306 on the CPU alone: copies that the program asks for by contiguous, clone, reshape, cat and repeat.

Not those that an op of torch makes for itself, as matmul does of a view with four dimensions, or the backward pass of
split: no line of the program says them.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._attention import find_attentions
from perfdoctor.analyzers._cpu_evidence import computing_ops, own_time_of
from perfdoctor.rules import NONE, BoolArray, Rank, nesting, optimizer_steps_of, traffic_kinds
from perfdoctor.rules import intervals as iv

# Ops that move numbers themselves; the others of COPY_OPS call one of them.
_MOVING = r"^aten::(copy_|cat|_cat|repeat_interleave|stack)$"
# What copies for a reason of its own: another type, a gradient that is kept, a bucket, a convolution's layout, the
# first result of pow and masked_fill.
_NEEDED = (
    r"^aten::(_?to|_to_copy|type_as|float|half|double|masked_fill|pow|\w*conv\w*|scaled_dot_product\w*|_scaled_dot\w*)$"
    r"|AccumulateGrad|c10d|reducer|all_?gather|reduce|flatten_dense"
)


def times_of_cpu_copies(rank: Rank) -> tuple[BoolArray, dict[str, int]]:
    """Which ops copy in the window, and their time by op, such as "reshape in CloneBackward0", in ns a step.

    The costliest stands first.
    """
    rows = _match_copies(rank)
    return rows, _times_by_op(rank, rows)


def _match_copies(rank: Rank) -> BoolArray:
    """For each op whether it copies a tensor for no other reason than its order or place."""
    trace, ops = rank.trace, rank.trace.ops
    rows = computing_ops(rank) & trace.match_rows(ops, _MOVING)
    rows &= optimizer_steps_of(trace).around(ops.start_ns, ops.thread) < 0
    attentions = find_attentions(rank)
    rows &= ~iv.contains(iv.union(attentions.start_ns, attentions.end_ns), ops.start_ns)
    copying = trace.match_rows(ops, traffic_kinds.COPY_OPS)
    forward, is_needed = rank.forward_ops, nesting.match_within(ops.parent, trace.match_rows(ops, _NEEDED))
    others = trace.match_rows(ops, "^aten::") & ~copying & ~trace.match_rows(ops, _MOVING)
    by_torch = nesting.match_within(ops.parent, others)
    by_program = nesting.match_within(ops.parent, copying & ~forward.in_backward) & ~by_torch
    is_backward_of_it = (forward.forward >= 0) & by_program[forward.forward]
    return rows & (by_program | is_backward_of_it) & ~is_needed


def _times_by_op(rank: Rank, rows: BoolArray) -> dict[str, int]:
    trace, ops, own_ns = rank.trace, rank.trace.ops, own_time_of(rank.trace)
    copying = trace.match_rows(ops, traffic_kinds.COPY_OPS)
    times: dict[str, int] = {}
    for row in np.flatnonzero(rows).tolist():
        outer = row
        while ops.parent[outer] != NONE and copying[ops.parent[outer]]:
            outer = int(ops.parent[outer])
        name = trace.strings[ops.name[outer]].removeprefix("aten::")
        if ops.parent[outer] != NONE:
            name += f" in {trace.strings[ops.name[ops.parent[outer]]].removeprefix('aten::')}"
        times[name] = times.get(name, 0) + int(own_ns[row])
    costliest = sorted(times, key=lambda name: (-times[name], name))
    return {name: rank.per_step(times[name]) for name in costliest}
