"""PD301 on the CPU alone: GELU written as its formula, op by op, and passes over tensors that no cache holds.

Of formulas only chains that PyTorch has one op for count: without a roofline nothing says what a compiler makes of
another. Measured on a CPU with AVX-512 (AMD EPYC, 2.6 GHz, torch 2.13, one thread, CPU time) for 65,000 to 8 million
elements, functional.gelu took 0.11 to 0.47 of the time of the formula in the forward pass, and 0.19 to 0.57 with the
backward pass (0.3 in the middle), by tanh or by erf. SiLU and softplus gain less (0.2 to 0.87), and look like gates and
losses; functional.rms_norm gains nothing (0.75 to 1.2).

A model that runs on some rows at a time saves passes. Measured on a CPU with AVX2 (AMD EPYC, 32 MB of shared cache,
torch 2.13, one thread, CPU time), forward passes over all rows against passes over 2,048 or 8,192 rows at a time:
layers of 20, 64, 256 and 1,024 features with relu took 0.16, 0.34, 0.51 and 0.72 of the time, ten element-wise ops
0.27. That is 0.73 to 0.84 of the time of the element-wise ops and copies. Two convolutions with relu gained nothing
(1.1 to 1.2).
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._cpu_evidence import (
    FoundWork,
    name_longest,
    own_time_of,
    project,
    rank_with_shapes,
    time_of_ops,
)
from perfdoctor.rules import (
    BoolArray,
    Evidence,
    Int64Array,
    Rank,
    RecordedInputs,
    Saving,
    UnusableInputsError,
    advise,
    distinct_rows,
    format_bytes,
    optimizer_steps_of,
    read_advice,
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
# Ops whose arithmetic takes no time beside reading and writing.
_PASS = (
    r"^aten::(copy|add|sub|rsub|mul|div|neg|abs|relu|clamp|clamp_min|clamp_max|threshold|leaky_relu|hardtanh|where|maximum"
    r"|minimum|square)_?$"
)
_CONVOLUTION = r"conv"
_MAX_CONVOLUTION_SHARE = 0.1
# As large as the caches of large servers; smaller tensors may still be in one when the next op reads them.
_MIN_BYTES = 64e6
# Fewer rows are no table of independent ones: sequences, images, heads.
_MIN_ROWS = 8192
_MIN_PASSES, _MIN_SHARE = 3, 0.2
# The most that went of the time of these ops.
_MAX_SAVED = 0.85
# What a chunk of rows holds in one tensor: a core's own cache.
_CHUNK_BYTES = 1 << 20


def find_formulas(rank: Rank) -> FoundWork | None:
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
    names = " > ".join(trace.strings[code].removeprefix("aten::") for code in trace.ops.name[chains[0]].tolist())
    return FoundWork(
        f"GELU is computed op by op: {_format_count(rank, len(chains))}",
        advise("GELU as its formula on the CPU", rank.context),
        time,
        Saving(low, expected, high, "bounded"),
        rank.places.line_of_ops(np.concatenate(chains)),
        (Evidence("costliest chain", names),),
        confidence=0.8,
        worth_ns=expected,
    )


def _format_count(rank: Rank, chains: int) -> str:
    count = rank.count_per_step(chains)
    return f"{'once' if count == 1 else f'{count:,} times'} {rank.per_unit}"


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


def find_large_passes(rank: Rank) -> FoundWork | None:
    """The passes over large tensors of a program that runs forward only on the CPU; None without enough of them."""
    shaped = rank_with_shapes(rank)
    if shaped is None or rank.context.phase not in ("inference", "evaluation"):
        return None
    trace, ops = shaped.trace, shaped.trace.ops
    rows = np.flatnonzero(trace.match_rows(ops, _PASS) & (ops.dims >= 0) & (ops.types >= 0))
    which, first = distinct_rows((ops.dims[rows], ops.types[rows]), len(trace.strings))
    texts = ((trace.text(int(ops.dims[row])), trace.text(int(ops.types[row]))) for row in rows[first])
    sizes = np.array([_rows_and_bytes(*each) for each in texts], np.int64).reshape(-1, 2)
    is_large = (sizes[:, 0] >= _MIN_ROWS) & (sizes[:, 1] >= _MIN_BYTES)
    large = rows[is_large[which]]
    marks = np.zeros(len(ops), bool)
    marks[large] = True
    marks = project(rank, shaped, marks)
    marks &= ~np.append(marks, False)[rank.trace.ops.parent]
    number, time = int(marks.sum()), time_of_ops(rank, marks)
    convolving = time_of_ops(rank, rank.trace.match_rows(rank.trace.ops, _CONVOLUTION))
    if number < _MIN_PASSES or iv.total(time) < _MIN_SHARE * rank.window_ns:
        return None
    if iv.total(convolving) > _MAX_CONVOLUTION_SHARE * rank.window_ns:
        return None
    count, size_bytes = sizes[(np.bincount(which, ops.dur_ns[rows]) * is_large).argmax()].tolist()
    chunk_rows = int(2 ** np.clip(np.round(np.log2(_CHUNK_BYTES * count / size_bytes)), 8, 16))
    longest = name_longest(rank.trace, np.flatnonzero(marks)).removeprefix("aten::")
    high_ns = rank.per_step(round(_MAX_SAVED * iv.total(time)))
    return FoundWork(
        f"Tensors of {format_bytes(size_bytes)} pass through memory op by op, most in {longest}: "
        f"{_format_count(rank, number)}",
        read_advice("large passes", rows=chunk_rows),
        time,
        Saving(0, None, high_ns, "bounded"),
        rank.places.line_of_ops(marks),
        (Evidence("tensor with most time", size_bytes, "bytes"),),
        subject="large passes",
        worth_ns=high_ns,
    )


def _rows_and_bytes(dims: str | None, types: str | None) -> tuple[int, int]:
    """Rows and bytes of the first argument of an op; 0 where it is no tensor of rows."""
    try:
        tensor = RecordedInputs.parse(dims or "", types or "", None, None).tensor(0)
    except UnusableInputsError:
        return 0, 0
    return (tensor.sizes[0], tensor.bytes) if tensor.sizes else (0, 0)
