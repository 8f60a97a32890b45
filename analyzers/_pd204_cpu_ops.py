"""PD204 on the CPU alone: ops that compute in float64, what they take in float32, and who asked for float64.

The shares were measured on a CPU with AVX-512 (AMD EPYC, 2.6 GHz, torch 2.13, one thread, CPU time): float32 over
float64. Products of 64 to 1,024 a side, batched ones and products with a vector 0.33 to 0.46; convolutions, which
oneDNN does not compute in float64, 0.13 to 0.51, of few channels up to 0.9, in three dimensions 0.08; copies,
additions, relu and sums of 16,384 to 8 million elements 0.25 to 0.68; exp, tanh, sigmoid, gelu and softmax 0.18 to
0.54; layer norms 0.55 to 1.0, dropout 0.7 to 1.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from perfdoctor.analyzers._cpu_evidence import (
    FoundWork,
    computing_ops,
    own_time_of,
    project,
    rank_with_shapes,
    time_of_ops,
)
from perfdoctor.rules import (
    BoolArray,
    Evidence,
    Rank,
    Saving,
    SourceLocation,
    captured_location,
    distinct_rows,
    occurring,
    optimizer_steps_of,
    read_advice,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# The share of an op's time (0 to 1) that remains in float32: at best, as expected, at worst.
_MATRIX = (0.25, 0.42, 0.55)
_CONVOLUTION = (0.13, 0.33, 0.6)
_OTHER = (0.25, 0.5, 0.7)
_SLOW_TO_GAIN = (0.5, 0.85, 1.0)
_CONVOLUTION_OP = r"^aten::\w*conv\w*$"
_MATRIX_OP = rf"^aten::(addmm|mm|bmm|baddbmm|addbmm|addmv|mv|dot)$|{_CONVOLUTION_OP}"
_SLOW_TO_GAIN_OP = r"norm|dropout|bernoulli|random|sort|topk|index|embedding|gather|scatter"
# Solvers, spectra and second derivatives are where float64 is meant.
_MEANT_OP = r"^aten::_?(linalg_|fft_|cholesky|lu_|triangular_solve|svd|eigh?$|inverse|det|logdet|lstsq|special_)"
_MAX_SHARE_MEANT = 0.1
# From this share of the weights on the model counts as one in float64.
_MIN_SHARE_OF_WEIGHTS = 0.9


def find_float64_work(rank: Rank) -> FoundWork | None:
    """The ops in float64 of a program on the CPU; None without any, where inputs are unknown, or float64 is meant."""
    shaped = rank_with_shapes(rank)
    if shaped is None or _is_meant(rank):
        return None
    marks = _match_float64(shaped)
    has_float64_weights = _share_of_float64_weights(shaped) >= _MIN_SHARE_OF_WEIGHTS
    if has_float64_weights:
        marks |= _match_optimizers(shaped)
    rows = project(rank, shaped, marks) & computing_ops(rank)
    if not rows.any():
        return None
    matrix = rows & rank.trace.match_rows(rank.trace.ops, _MATRIX_OP)
    forward = np.flatnonzero(marks & computing_ops(shaped) & ~_in_backward(shaped))
    source, location = _find_source(rank, has_float64_weights=has_float64_weights)
    return FoundWork(
        f"Ops compute in float64: {rank.count_per_step(int(rows.sum())):,} {rank.per_unit}",
        read_advice(f"float64 by the {source}"),
        time_of_ops(rank, rows),
        _saving(rank, rows, matrix),
        location or shaped.places.line_of_ops(forward[:1]),
        (
            Evidence("in matrix products and convolutions", rank.per_step(iv.total(time_of_ops(rank, matrix))), "ns"),
            Evidence(
                "first float64 op", shaped.trace.text(int(shaped.trace.ops.name[forward[0]])) if len(forward) else None
            ),
            Evidence("float64 comes from", source),
        ),
        confidence=0.8,
    )


def _is_meant(rank: Rank) -> bool:
    """Whether the program is of a kind that needs float64: it solves, or LBFGS searches along lines."""
    trace = rank.trace
    if any(each.class_ == "LBFGS" for each in rank.facts.optimizers):
        return True
    if trace.match_rows(trace.ranges, f"{vocabulary.OPTIMIZER_STEP}LBFGS").any():
        return True
    meant = trace.match_rows(trace.ops, _MEANT_OP)
    return iv.total(time_of_ops(rank, meant)) > _MAX_SHARE_MEANT * rank.window_ns


def _match_float64(shaped: Rank) -> BoolArray:
    """For each op whether it computes on a tensor of float64 with more than one element.

    A cast to another type is no such op: where the rest computes in float32 it is all that is left to do.
    """
    trace, ops = shaped.trace, shaped.trace.ops
    rows = np.flatnonzero((ops.dims >= 0) & (ops.types >= 0))
    has_double = np.zeros(len(trace.strings), bool)
    codes = occurring(ops.types[rows]).tolist()
    has_double[[code for code in codes if '"double"' in trace.strings[code]]] = True
    rows = rows[has_double[ops.types[rows]]]
    found = np.zeros(len(ops), bool)
    which, first = distinct_rows((ops.name[rows], ops.dims[rows], ops.types[rows]), len(trace.strings))
    texts = zip(*(column[rows[first]].tolist() for column in (ops.name, ops.dims, ops.types)), strict=True)
    answers = [_takes_float64(*(trace.strings[code] for code in codes)) for codes in texts]
    found[rows] = np.array(answers, bool)[which]
    return found


def _takes_float64(name: str, dims: str, types: str) -> bool:
    is_cast = name == "aten::copy_" and not re.match(r'\["double"', types)
    return not is_cast and bool(takes_float64_tensor(dims, types))


def takes_float64_tensor(dims: str | None, types: str | None) -> bool | None:
    """Whether a recorded argument is a float64 tensor of more than one element; None where none is of type double."""
    try:
        sizes, type_names = orjson.loads(dims or "null"), orjson.loads(types or "null")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(sizes, list) or not isinstance(type_names, list) or len(sizes) != len(type_names):
        return None
    doubles = [size for size, name in zip(sizes, type_names, strict=True) if name == "double"]
    return any(_count_elements(size) > 1 for size in doubles) if doubles else None


def _count_elements(size: Any) -> int:
    """The number of elements of a tensor by its recorded size; 0 where that is no list of whole numbers."""
    is_size = isinstance(size, list) and all(type(n) is int for n in size)
    return math.prod(size) if is_size else 0


def _share_of_float64_weights(shaped: Rank) -> float:
    """The share of the gradients that are float64, by number; 0 without any."""
    trace, ops = shaped.trace, shaped.trace.ops
    gradients = trace.match_rows(ops, r"^torch::autograd::AccumulateGrad$") & (ops.types >= 0)
    types = [trace.strings[code] for code in ops.types[gradients].tolist()]
    return sum('"double"' in each for each in types) / len(types) if types else 0.0


def _match_optimizers(shaped: Rank) -> BoolArray:
    """For each op whether an optimizer calls it: lists of tensors are recorded without their types."""
    ops = shaped.trace.ops
    around = optimizer_steps_of(shaped.trace).around(ops.start_ns, ops.thread)
    result: BoolArray = around >= 0
    return result


def _in_backward(shaped: Rank) -> BoolArray:
    """For each op whether autograd runs it, or an optimizer."""
    trace, ops = shaped.trace, shaped.trace.ops
    backward = trace.match_rows(ops, vocabulary.BACKWARD_OP)
    for _ in range(64):  # ops nest a few deep
        inside = backward | ((ops.parent >= 0) & backward[ops.parent])
        if (inside == backward).all():
            break
        backward = inside
    return backward | _match_optimizers(shaped)


def _find_source(rank: Rank, *, has_float64_weights: bool) -> tuple[str, SourceLocation | None]:
    """Who asks for float64, and the line that does, as captured."""
    lines: Mapping[object, SourceLocation | None] = {
        each.call: captured_location(each.location) for each in reversed(rank.facts.float64_sources)
    }
    if rank.facts.flags.default_dtype == "torch.float64" or "set_default_dtype" in lines:
        return "default type", lines.get("set_default_dtype")
    if has_float64_weights:
        return "model", lines.get("Module.double") or lines.get("Module.to")
    return "data", None


def _saving(rank: Rank, rows: BoolArray, matrix: BoolArray) -> Saving:
    """What float32 saves: each kind of op keeps a share of its own time."""
    own_ns, trace = own_time_of(rank.trace), rank.trace
    slow = rows & ~matrix & trace.match_rows(trace.ops, _SLOW_TO_GAIN_OP)
    convolution = matrix & trace.match_rows(trace.ops, _CONVOLUTION_OP)
    groups = (convolution, matrix & ~convolution, slow, rows & ~matrix & ~slow)
    times = [int(own_ns[each].sum()) for each in groups]
    kinds = (_CONVOLUTION, _MATRIX, _SLOW_TO_GAIN, _OTHER)
    high, expected, low = (
        rank.per_step(round(sum(ns * (1 - remaining[i]) for ns, remaining in zip(times, kinds, strict=True))))
        for i in range(3)
    )
    return Saving(low, expected, high, "bounded")
