"""PD204: kernels that compute in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import orjson

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.launching_ops import match_op_names
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.matrix_kernels import LEAST_TIME_NS, Remedy, saved_share
from perfdoctor.rules.top_kernels import top_kernels, top_op
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct_rows, occurring
from perfdoctor.trace.tables.model import KERNEL
from perfdoctor.trace.tables.rows import GpuRows

# `optional<double>` is an argument of nan_to_num's kernel, whatever type it computes in.
_NAME = r"(?<!optional)<double\b|lambda\(double\)|dgemm|f64f64|(?<![a-z0-9])[dz]884"
_MATRIX = ("gemm", "convolution", "attention")
_FLOAT64_BYTES_RATIO = 2.0


class AccidentalFloat64(RankAnalyzer):
    """Kernels compute in float64, which deep learning hardly ever needs.

    What it finds:
        Kernels whose name says that they compute in double precision, and kernels of ops that were given float64
        tensors.

    Why it costs time:
        float64 moves twice the bytes of float32, and maths in it runs at half the rate on data-centre GPUs, at a
        64th on GeForce; Tensor Cores do not help, or far less. One float64 tensor (from numpy, whose default it is,
        or from torch.tensor of a Python list in such a default) turns every result that it meets into float64.

    How it is measured:
        Time of such kernels. Where types are recorded an argument counts if it is a float64 tensor of more than one
        element: Python numbers are recorded as double, too. The saving is bounded by the roofline in float32, else by
        the ratio of bytes or of peaks, whichever is larger.

    How to fix:
        Find where the float64 tensor comes from: torch.from_numpy of a numpy array, torch.float64 as default type,
        .double(); make it float32 there.

    When it is wrong:
        Where float64 is meant: physics, statistics over long sums, solvers.

    Needs:
        Kernels; shapes and types for kernels whose name does not tell, stacks to say where.

    References:
        CUDA C++ Programming Guide, "Arithmetic Instructions" (rates by type); PyTorch, "Tensor Attributes" (type
        promotion).
    """

    rule: ClassVar[str] = "PD204"
    name: ClassVar[str] = "accidental-float64"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share: metrics and step counts in float64 took up to 0.5 % of the steps of real training traces, and nobody
    # would touch them.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions",
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step."""
        rows = _float64(rank)
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        if iv.total(time) < LEAST_TIME_NS or not self.exceeds_min_share(rank, cost):
            return
        matrix = rows & rank.kernel_classes.match_rows(lambda k: k.category in _MATRIX)
        first = _first_op(rank, rows)
        saved = _saved_share(rank, rows, matrix)
        yield self.finding(
            rank,
            title=f"Kernels compute in float64: {rank.per_step(int(rows.sum())):,} a {rank.unit_name}",
            cost_ns=cost,
            saving=Saving(0, None, round(cost * saved), "bounded"),
            advice="Find the tensor that brings float64 in (numpy's default type, .double()) and make it float32 "
            "there: every result that it meets becomes float64, too.",
            fix="x = torch.from_numpy(array).float()        # or array.astype(np.float32)",
            claim=Claim(time, kernels=True),
            confidence=0.8,
            location=_place(rank, first),
            evidence=(
                Evidence("in matrix products and convolutions", rank.per_step(int(_dur(rank, matrix))), "ns"),
                Evidence("launched by", top_op(rank, rows)),
                Evidence("first float64 op", rank.trace.text(int(rank.trace.ops.name[first])) if first >= 0 else None),
                *top_kernels(rank, rows),
            ),
            edit=scale_durations(GpuRows(rank.trace.gpu, rows), saved),
        )


def _dur(rank: Rank, rows: BoolArray) -> int:
    return int(rank.trace.gpu.dur_ns[rows].sum())


def _float64(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a kernel of the window that computes in float64."""
    trace = rank.trace
    named = rank.kernel_classes.match_rows(lambda k: k.operand == "fp64") | trace.match_rows(trace.gpu, _NAME)
    told, given = _types_of_ops(rank)
    # Kernels of a compiled region share one op, whose arguments say nothing about each of them.
    kernels = (trace.gpu.kind == KERNEL) & rank.in_window
    result: BoolArray = kernels & np.where(told, given, named)
    return result


def _types_of_ops(rank: Rank) -> tuple[BoolArray, BoolArray]:
    """For each GPU item whether the arguments of its op settle the matter, and whether they are float64."""
    trace = rank.trace
    gpu, ops = trace.gpu, trace.ops
    told, given = np.zeros(len(gpu), bool), np.zeros(len(gpu), bool)
    naming = np.zeros(len(trace.strings) + 1, bool)  # its last is for ops without types
    types = occurring(ops.types).tolist()
    naming[[code for code in types if '"double"' in trace.strings[code]]] = True
    aten = match_op_names(trace, lambda name: name.startswith("aten::"))
    rows = np.flatnonzero(gpu.op >= 0)
    rows = rows[naming[ops.types[gpu.op[rows]]] & aten[ops.name[gpu.op[rows]]]]
    at = gpu.op[rows]
    which, first = distinct_rows((ops.dims[at], ops.types[at]), len(trace.strings))
    answers = [_float64_tensors(trace.text(int(ops.dims[i])), trace.text(int(ops.types[i]))) for i in at[first]]
    told[rows] = np.array([answer is not None for answer in answers], bool)[which]
    given[rows] = np.array([bool(answer) for answer in answers], bool)[which]
    return told, given


def _float64_tensors(dims: str | None, types: str | None) -> bool | None:
    """Whether one of the arguments is a float64 tensor of more than one element; None where none is named float64."""
    try:
        sizes, kinds = orjson.loads(dims or "null"), orjson.loads(types or "null")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(sizes, list) or not isinstance(kinds, list) or len(sizes) != len(kinds):
        return None
    named = [size for size, kind in zip(sizes, kinds, strict=True) if kind == "double"]
    return any(_elements(size) > 1 for size in named) if named else None


def _elements(size: Any) -> int:
    whole = isinstance(size, list) and all(type(n) is int for n in size)
    return math.prod(size) if whole else 0


def _saved_share(rank: Rank, rows: BoolArray, matrix: BoolArray) -> float:
    """Which share of their time float32 could save at most."""
    device = rank.device
    fp64, fp32 = (device.peak_flops(t) if device else None for t in ("fp64", "fp32"))
    vector = max(fp32 / fp64, _FLOAT64_BYTES_RATIO) if fp64 and fp32 else None
    fastest = max((device.peak_flops("tf32") or 0, fp32 or 0)) if device else 0
    products = Remedy(
        peak_ratio=fastest / fp64 if fp64 and fastest else None,
        flops_per_s=device.attainable_flops("tf32" if device.peak_flops("tf32") else "fp32") if device else None,
        bytes_ratio=1 / _FLOAT64_BYTES_RATIO,
    )
    # What moves data has a roofline, too, but maths at a 64th of the rate may be its limit: the ratio stays.
    whole = _dur(rank, rows)
    saved = saved_share(rank, rows & ~matrix, Remedy(peak_ratio=vector)) * _dur(rank, rows & ~matrix)
    saved += saved_share(rank, matrix, products) * _dur(rank, matrix)
    return saved / max(whole, 1)


def _first_op(rank: Rank, rows: BoolArray) -> int:
    """The first outermost op of the window that launched one of them, or -1."""
    launched = rank.trace.gpu.op[rows]
    launched = launched[launched >= 0]
    return int(nesting.outermost(rank.trace.ops.parent, launched.min(keepdims=True))[0]) if len(launched) else -1


def _place(rank: Rank, op: int) -> SourceLocation | None:
    """Where in the user's code an op was called."""
    ops = rank.trace.ops
    return rank.locations.at(ops.thread[[op]], ops.start_ns[[op]])[0] if op >= 0 else None
