"""PD306: tensors are copied into another order or place, and nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._cpu_evidence import FoundWork, report_work, time_of_ops
from perfdoctor.analyzers._pd306_cpu_copies import times_of_cpu_copies
from perfdoctor.rules import (
    NONE,
    Advice,
    Claim,
    Evidence,
    Finding,
    Int64Array,
    Rank,
    RankAnalyzer,
    Saving,
    Trace,
    advise,
    distinct_rows,
    find_outermost_ops,
    intervals,
    remove_items,
    top_kernels,
    traffic_kinds,
)

_MAX_OPS_SHOWN = 3


class RedundantCopies(RankAnalyzer):
    """Tensors are copied by contiguous, clone, reshape, cat or repeat."""

    rule = "PD306"
    name = "redundant-copies"
    needs = frozenset({"work_items", "work_launches"})
    # min_share: on real traces programs that need their copies (concatenated features, windows of attention) spend up
    # to 4.6 % on them; those with copies to get rid of 7.9 to 14 %.
    defaults = {"min_share": 0.05}
    references = (
        "https://docs.pytorch.org/docs/stable/tensor_view.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when copies take at least `min_share` of the step."""
        yield from self._check_cpu(rank) if rank.device_kind == "cpu" else self._check_gpu(rank)

    def _check_cpu(self, rank: Rank) -> Iterator[Finding]:
        rows, times_ns = times_of_cpu_copies(rank)
        if not times_ns:
            return
        costliest, number = next(iter(times_ns)), rank.count_per_step(int(rows.sum()))
        work = FoundWork(
            f"{number:,} copies of tensors {rank.per_unit}, most of their time in {costliest}",
            _advise(rank, costliest),
            time_of_ops(rank, rows),
            location=rank.places.line_of_ops(rows),
            evidence=tuple(Evidence(name, ns, "ns") for name, ns in list(times_ns.items())[:_MAX_OPS_SHOWN]),
            confidence=0.6,
        )
        yield from report_work(self, rank, work)

    def _check_gpu(self, rank: Rank) -> Iterator[Finding]:
        copies = (rank.kernels | rank.copies).where(
            rank.traffic.match_rows(traffic_kinds.COPY) & ~rank.traffic.is_compiled
        )
        time = copies.time
        cost_ns = rank.per_step(intervals.total(time))
        if not cost_ns or not self.exceeds_min_share(rank, cost_ns):
            return
        copying_ops = _group_by_copying_op(rank.trace, copies.rows.index)
        costliest, _, costliest_rows = copying_ops[0]
        yield self.finding(
            rank,
            title=f"{rank.count_per_step(len(copies)):,} copies of tensors {rank.per_unit}, most of their time "
            f"in {costliest}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=_advise(rank, costliest),
            claim=Claim(time, kernels=True),
            confidence=0.6,
            location=rank.places.line_of_items(costliest_rows),
            evidence=(
                *(Evidence(name, rank.per_step(ns), "ns") for name, ns, _ in copying_ops[:_MAX_OPS_SHOWN]),
                *top_kernels(rank, copies.mask),
            ),
            edit=remove_items(rank.trace, copies.rows),
        )


def _group_by_copying_op(trace: Trace, rows: Int64Array) -> list[tuple[str, int, Int64Array]]:
    """The ops that launched some copies (rows of `Trace.gpu`), costliest first.

    For each its name, as in "contiguous in layer_norm", the sum of the durations of its copies, and their rows.
    """
    ops, op = trace.ops, trace.gpu.op[rows]
    copying, around = find_outermost_ops(
        trace, op, lambda name: name == "aten::copy_" or bool(traffic_kinds.COPY_OPS.search(name))
    )
    copying = np.where(copying >= 0, copying, op)
    copier, caller = ops.name[copying], np.where((around >= 0) & (around != copying), ops.name[around], NONE)
    kind, first = distinct_rows((copier, caller), len(trace.strings))
    time_ns = np.bincount(kind, weights=trace.gpu.dur_ns[rows]).astype(np.int64).tolist()
    found = []
    for number, row in enumerate(first.tolist()):
        name = trace.strings[copier[row]].removeprefix("aten::")
        if caller[row] >= 0:
            name += f" in {trace.strings[caller[row]].removeprefix('aten::')}"
        found.append((name, time_ns[number], rows[kind == number]))
    return sorted(found, key=lambda each: (-each[1], each[0]))


def _advise(rank: Rank, copying_op: str) -> Advice:
    name = copying_op.partition(" ")[0]
    if name in ("cat", "_cat", "stack", "concat"):
        return advise("copies by concatenation", rank.context)
    if name in ("repeat", "repeat_interleave", "tile"):
        return advise("copies by repetition", rank.context)
    return advise("copies into another order", rank.context)
