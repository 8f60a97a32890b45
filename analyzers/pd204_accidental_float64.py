"""PD204: kernels and ops that compute in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._cpu_evidence import report_work
from perfdoctor.analyzers._kernel_ranges import DurationRange, apply_remedy
from perfdoctor.analyzers._matrix_remedies import MIN_TIME_NS, Remedy
from perfdoctor.analyzers._pd204_cpu_ops import find_float64_work, takes_float64_tensor
from perfdoctor.rules import (
    BoolArray,
    Claim,
    Evidence,
    Finding,
    GpuQuery,
    Rank,
    RankAnalyzer,
    distinct_rows,
    match_op_names,
    nesting,
    occurring,
    read_advice,
    top_kernels,
    top_op,
)

# `optional<double>` is an argument of nan_to_num's kernel, whatever type it computes in.
_FLOAT64_NAME = r"(?<!optional)<double\b|lambda\(double\)|dgemm|f64f64|(?<![a-z0-9])[dz]884"
_MATRIX_CATEGORIES = ("gemm", "convolution", "attention")
_FLOAT64_BYTES_RATIO = 2.0


class AccidentalFloat64(RankAnalyzer):
    """The program computes in float64, which deep learning hardly ever needs."""

    rule = "PD204"
    name = "accidental-float64"
    needs = frozenset({"work"})
    # min_share: metrics and step counts in float64 took up to 0.5 % of the steps of real training traces, and nobody
    # would touch them. min_cpu_share: on a CPU what is in float64 by intent, such as sums of metrics, is computed in
    # the step itself; below a twentieth the saving is half of that, a low finding at most.
    defaults = {"min_share": 0.01, "min_cpu_share": 0.05}
    references = (
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions",
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step, on a CPU ops `min_cpu_share`."""
        if rank.device_kind == "cpu":
            yield from report_work(self, rank, find_float64_work(rank), self.settings["min_cpu_share"], by_table=True)
        else:
            yield from self._check_gpu(rank)

    def _check_gpu(self, rank: Rank) -> Iterator[Finding]:
        kernels = _find_float64_kernels(rank)
        time_ns = kernels.time_ns
        cost_ns = rank.per_step(time_ns)
        if time_ns < MIN_TIME_NS or not self.exceeds_min_share(rank, cost_ns):
            return
        matrix = kernels.of_category(*_MATRIX_CATEGORIES)
        first_op = _find_first_op(rank, kernels)
        after = _find_durations(rank, kernels, matrix)
        yield self.finding(
            rank,
            title=f"Kernels compute in float64: {rank.count_per_step(len(kernels)):,} {rank.per_unit}",
            cost_ns=cost_ns,
            saving=after.saving(cost_ns),
            advice=read_advice("float64 by the data"),
            claim=Claim(kernels.time, kernels=True),
            confidence=0.8,
            location=rank.places.line_of_ops(np.array([first_op])) if first_op >= 0 else None,
            evidence=(
                Evidence(
                    "in matrix products and convolutions",
                    rank.per_step(int(rank.trace.gpu.dur_ns[matrix.mask].sum())),
                    "ns",
                ),
                Evidence("launched by", top_op(rank, kernels.mask)),
                Evidence(
                    "first float64 op", rank.trace.text(int(rank.trace.ops.name[first_op])) if first_op >= 0 else None
                ),
                *top_kernels(rank, kernels.mask),
            ),
            edit=after.edit(kernels.rows),
        )


def _find_float64_kernels(rank: Rank) -> GpuQuery:
    """The kernels of the window that compute in float64: by the arguments of their op, else by their name."""
    kernels = rank.kernels.where(rank.in_window)
    named = kernels.named(_FLOAT64_NAME) | kernels.of_class(lambda k: k.operand == "fp64")
    is_recorded, is_float64 = _match_float64_arguments(rank)
    return named.where(~is_recorded) | kernels.where(is_recorded & is_float64)


def _match_float64_arguments(rank: Rank) -> tuple[BoolArray, BoolArray]:
    """For each GPU item whether its op has arguments recorded as float64, and whether one of them is a tensor.

    For example::

        op                 arguments                        recorded  tensor
        aten::index        double [4096, 4096]              True      True
        aten::mul          float [64, 64], double []        True      False   (a Python number)
        aten::add          float [64, 64], float [64, 64]   False     False

    Kernels of a compiled region share one op, whose arguments say nothing about each of them: only ATen's ops count.
    """
    trace = rank.trace
    gpu, ops = trace.gpu, trace.ops
    is_recorded, is_float64 = np.zeros(len(gpu), bool), np.zeros(len(gpu), bool)
    has_double = np.zeros(len(trace.strings) + 1, bool)  # the last is for ops without types
    has_double[[code for code in occurring(ops.types).tolist() if '"double"' in trace.strings[code]]] = True
    is_aten = match_op_names(trace, lambda name: name.startswith("aten::"))
    rows = np.flatnonzero(gpu.op >= 0)
    rows = rows[has_double[ops.types[gpu.op[rows]]] & is_aten[ops.name[gpu.op[rows]]]]
    op = gpu.op[rows]
    which, first = distinct_rows((ops.dims[op], ops.types[op]), len(trace.strings))
    answers = [takes_float64_tensor(trace.text(int(ops.dims[i])), trace.text(int(ops.types[i]))) for i in op[first]]
    is_recorded[rows] = np.array([answer is not None for answer in answers], bool)[which]
    is_float64[rows] = np.array([bool(answer) for answer in answers], bool)[which]
    return is_recorded, is_float64


def _find_durations(rank: Rank, kernels: GpuQuery, matrix: GpuQuery) -> DurationRange:
    """How long the kernels take in float32; `matrix` are those of matrix maths.

    Others move half the bytes: half of their time is expected, unless latency bounds them. Where float64 runs at a
    small part of the rate, maths may be what limits them; the ratio of the peaks is then the most that they gain.
    """
    device = rank.device
    fp64, fp32, tf32 = (device.peak_flops(t) if device else None for t in ("fp64", "fp32", "tf32"))
    now_ns = rank.trace.gpu.dur_ns.astype(np.float64)
    after_ns = np.full((3, len(now_ns)), np.nan)
    others, mask = (kernels - matrix).mask, matrix.mask
    shortest = np.where(rank.bounds.match_rows("latency"), 1.0, 1 / _FLOAT64_BYTES_RATIO)
    ratio = max(fp32 / fp64, _FLOAT64_BYTES_RATIO) if fp64 and fp32 else None
    for row, share in enumerate((1.0, shortest, 1 / ratio if ratio else 0.0)):
        after_ns[row, others] = (now_ns * np.asarray(share))[others]
    fastest = "tf32" if (tf32 or 0) > (fp32 or 0) else "fp32"
    peak = (tf32 if fastest == "tf32" else fp32) if device else None
    remedy = Remedy(
        peak_ratio=peak / fp64 if peak and fp64 else None, bytes_ratio=1 / _FLOAT64_BYTES_RATIO, peak_type=fastest
    )
    by_remedy = apply_remedy(rank, matrix, "gemm", remedy)
    after_ns[:, mask] = by_remedy.slowest_ns, by_remedy.expected_ns, by_remedy.fastest_ns
    known_ns = float(now_ns[others].sum()) + by_remedy.known_share * float(now_ns[mask].sum())
    rows = kernels.mask
    slowest_ns, expected_ns, fastest_ns = after_ns[:, rows]
    known_share = known_ns / max(float(now_ns[rows].sum()), 1)
    return DurationRange(now_ns[rows], slowest_ns, expected_ns, fastest_ns, known_share)


def _find_first_op(rank: Rank, kernels: GpuQuery) -> int:
    """The outermost op around the first op that launched any of the kernels: a row of `trace.ops`, or -1."""
    op = rank.trace.gpu.op[kernels.mask]
    op = op[op >= 0]
    return int(nesting.outermost(rank.trace.ops.parent, op.min(keepdims=True))[0]) if len(op) else -1
