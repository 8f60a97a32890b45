"""PD301 on the CPU alone: GELU written as its formula, op by op.

Only chains that PyTorch has one op for count here: without a roofline nothing says what a compiler makes of another.
Measured on a CPU with AVX-512 (AMD EPYC, 2.6 GHz, torch 2.13, one thread, CPU time) for 65,000 to 8 million elements,
functional.gelu took 0.11 to 0.47 of the time of the formula in the forward pass, and 0.19 to 0.57 with the backward
pass (0.3 in the middle), by tanh or by erf. SiLU and softplus gain less (0.2 to 0.87), and look like gates and
losses; functional.rms_norm gains nothing (0.75 to 1.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analyzers._cpu_evidence import own_time_of, time_of_ops
from perfdoctor.rules import (
    BoolArray,
    Int64Array,
    Intervals,
    Rank,
    Saving,
    SourceLocation,
    optimizer_steps_of,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# What remains with the fused function, at best, as expected, at worst.
_REMAINING = (0.15, 0.3, 0.57)
_POINTWISE = r"^aten::(mul|add|sub|div|neg|pow|square|tanh|erf|rsub|addcmul|mul_|add_|div_)$"
# Ops that compute nothing and may stand between the others.
_FREE = (
    r"^aten::(to|_to_copy|copy_|empty\w*|result_type|detach|view|alias|as_strided|lift_fresh|item|_local_scalar_dense)$"
)
_MIN_OPS = {"tanh": 6, "erf": 4}
_MAX_OPS = 12


class Formulas(NamedTuple):
    """Formulas that are computed op by op.

    Attributes:
        time: When their ops run, forward and backward.
        chains: How many there are in the window.
        ops: The names of the ops of the first one.
        saving: What the function saves of a step.
        location: The user's line.
    """

    time: Intervals
    chains: int
    ops: str
    saving: Saving
    location: SourceLocation | None


def find_formulas(rank: Rank) -> Formulas | None:
    """The formulas of GELU in the window; None without any."""
    chains = _find_chains(rank)
    if not chains:
        return None
    trace = rank.trace
    forward = np.zeros(len(trace.ops), bool)
    forward[np.concatenate(chains)] = True
    belongs = np.append(forward, False)[rank.forward_ops.forward] & iv.contains(rank.window, trace.ops.start_ns)
    time = time_of_ops(rank, forward | belongs)
    cost_ns = rank.per_step(iv.total(time))
    high, expected, low = (round(cost_ns * (1 - remaining)) for remaining in _REMAINING)
    return Formulas(
        time=time,
        chains=len(chains),
        ops=" > ".join(trace.strings[code].removeprefix("aten::") for code in trace.ops.name[chains[0]].tolist()),
        saving=Saving(low, expected, high, "bounded"),
        location=rank.places.line_of_ops(np.concatenate(chains)),
    )


def _find_chains(rank: Rank) -> list[Int64Array]:
    """Runs of pointwise ops of the forward pass with one tanh or erf among them: rows of `trace.ops` for each.

    For example, 0.5 * x * (1 + torch.tanh(c * (x + 0.044715 * torch.pow(x, 3)))) is the run mul, pow, mul, add, mul,
    tanh, add, mul.
    """
    trace, ops = rank.trace, rank.trace.ops
    outermost = _outermost_of_forward(rank)
    pointwise = trace.match_rows(ops, _POINTWISE)
    rows = np.flatnonzero(outermost & ~trace.match_rows(ops, _FREE))
    rows = rows[np.lexsort((ops.start_ns[rows], ops.thread[rows]))]
    if not len(rows):
        return []
    ends = ~pointwise[rows] | (np.diff(ops.thread[rows], prepend=ops.thread[rows[0]]) != 0)
    number = np.cumsum(ends)
    chosen = pointwise[rows]
    runs, number = rows[chosen], number[chosen]
    return [part for part in np.split(runs, np.flatnonzero(np.diff(number)) + 1) if _is_gelu(rank, part)]


def _outermost_of_forward(rank: Rank) -> BoolArray:
    """For each op whether the program itself calls it in the window: not autograd, no optimizer, no loader."""
    trace, ops = rank.trace, rank.trace.ops
    inside = iv.contains(iv.subtract(rank.window, rank.loader_waits.intervals), ops.start_ns)
    outside = optimizer_steps_of(trace).around(ops.start_ns, ops.thread) < 0
    result: BoolArray = inside & outside & (ops.parent < 0) & ~trace.match_rows(ops, vocabulary.BACKWARD_OP)
    return result


def _is_gelu(rank: Rank, run: Int64Array) -> bool:
    """Whether a run of pointwise ops is the formula of GELU, by its ops."""
    names = [rank.trace.strings[code].removeprefix("aten::") for code in rank.trace.ops.name[run].tolist()]
    curved = [name for name in names if name in _MIN_OPS]
    if len(curved) != 1 or not _MIN_OPS[curved[0]] <= len(names) <= _MAX_OPS:
        return False
    at = names.index(curved[0])
    before, after = names[:at], names[at + 1 :]
    # x * x * x takes two more products than the scaling before and in the tanh.
    is_cubic = "pow" in before or sum(name in ("mul", "mul_", "square") for name in before) > 3
    has_ends = any(name in ("add", "add_") for name in after) and any(
        name in ("mul", "mul_") for name in (*before, *after)
    )
    return has_ends and (curved[0] == "erf" or is_cubic) and bool(own_time_of(rank.trace)[run].sum() > 0)
