"""PD306: tensors are copied into another order or place, and nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.kernels.traffic_kinds import COPY, COPY_OPS
from perfdoctor.analysis.launching_ops import find_outermost_ops
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.top_kernels import top_kernels
from perfdoctor.savings.edits import remove_items
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.rows import GpuRows

_SHOWN = 3


class RedundantCopies(RankAnalyzer):
    """Tensors are copied by contiguous, clone, reshape, cat or repeat.

    What it finds:
        Kernels and device-to-device copies launched by those ops: transposed tensors made contiguous, concatenations,
        repetitions.

    Why it costs time:
        A copy reads and writes a whole tensor and computes nothing; one that transposes reaches a half or less of the
        memory bandwidth.

    How it is measured:
        Time of such kernels, by the op that asked for the copy and the op around it. Left out: casts, copies beside
        convolutions (PD302) and in the optimizer (PD303), packing for collectives and buckets, generated code.

    How to fix:
        Keep one order of dimensions from end to end: scaled_dot_product_attention, matmul and einsum take transposed
        views; expand in place of repeat; write parts into one preallocated tensor in place of cat; torch.compile.

    When it is wrong:
        Some copies are needed, and some pay: a product that reads a strided tensor many times is faster on a
        contiguous one.

    Needs:
        Kernels and their launches by ops; stacks for the place.

    References:
        PyTorch, "Tensor Views"; PyTorch, "torch.Tensor.contiguous".
    """

    rule: ClassVar[str] = "PD306"
    name: ClassVar[str] = "redundant-copies"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    # min_share: on real traces programs that need their copies (concatenated features, windows of attention) spend up
    # to 4.6 % on them; those with copies to get rid of 7.9 to 14 %.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.05})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/tensor_view.html",
        "https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when copies take at least `min_share` of the step."""
        rows = rank.traffic.match_rows(COPY) & ~rank.traffic.is_compiled
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        if not cost or not self.exceeds_min_share(rank, cost):
            return
        chains = _by_chain(rank, np.flatnonzero(rows))
        asked = chains[0][0]
        yield self.finding(
            rank,
            title=f"{rank.per_step(int(rows.sum())):,} copies of tensors a {rank.unit_name}, most of their time "
            f"in {asked}",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=_advice(asked),
            claim=Claim(time, kernels=True),
            confidence=0.6,
            location=rank.locations.of_items(chains[0][2]),
            evidence=(
                *(Evidence(text, rank.per_step(ns), "ns") for text, ns, _ in chains[:_SHOWN]),
                *top_kernels(rank, rows),
            ),
            edit=remove_items(rank.trace, GpuRows(rank.trace.gpu, rows)),
        )


def _by_chain(rank: Rank, rows: Int64Array) -> list[tuple[str, int, Int64Array]]:
    """What asked for the copies: "contiguous in layer_norm", its time in the window, its rows; costliest first."""
    trace, ops = rank.trace, rank.trace.ops
    asked, around = find_outermost_ops(
        trace, trace.gpu.op[rows], lambda name: name == "aten::copy_" or bool(COPY_OPS.search(name))
    )
    asked = np.where(asked >= 0, asked, trace.gpu.op[rows])
    copiers, callers = ops.name[asked], np.where((around >= 0) & (around != asked), ops.name[around], -1)
    which, first = distinct_rows((copiers, callers), len(trace.strings))
    spent = np.bincount(which, weights=trace.gpu.dur_ns[rows]).astype(np.int64).tolist()
    found = []
    for i, (copier, caller) in enumerate(zip(copiers[first].tolist(), callers[first].tolist(), strict=True)):
        text = trace.strings[copier].removeprefix("aten::")
        if caller >= 0:
            text += f" in {trace.strings[caller].removeprefix('aten::')}"
        found.append((text, spent[i], rows[which == i]))
    return sorted(found, key=lambda each: (-each[1], each[0]))


def _advice(asked: str) -> str:
    first = asked.partition(" ")[0]
    if first in ("cat", "_cat", "stack", "concat"):
        return "Write the parts into one preallocated tensor, or let torch.compile fuse the parts into it."
    if first in ("repeat", "repeat_interleave", "tile"):
        return "Use expand, which copies nothing, or let the op broadcast."
    return "Keep one order of dimensions from end to end: most ops take transposed views as they are."
