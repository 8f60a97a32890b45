"""PD107: the GPU idles while memory is allocated and freed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.edits import remove_calls
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.rows import CallRows


class AllocatorChurn(RankAnalyzer):
    """The GPU idles while the driver allocates and frees memory, in the middle of the steps.

    What it finds:
        cudaMalloc, cudaFree and their like within the analysed steps, with the GPU idle meanwhile.

    Why it costs time:
        PyTorch keeps freed memory and gives it out again without asking the driver. When it has to ask, the call
        takes 0.1 to 70 ms, and cudaFree waits until the GPU is through.

    How it is measured:
        The account's idle_allocator: gaps between GPU items during such calls.

    How to fix:
        Warm up with the largest input, pad inputs to few sizes, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, use
        less memory than the device has; never call torch.cuda.empty_cache() in the loop. On ROCm a new convolution
        shape makes MIOpen allocate workspace while it searches: warm up, or set MIOPEN_FIND_MODE.

    When it is wrong:
        The first steps of a program allocate; that does not recur. Record later steps.

    Needs:
        Kernels and runtime calls.

    References:
        PyTorch CUDA semantics, "Memory management"; PyTorch Performance Tuning Guide, "Preallocate memory in case of
        variable input length".
    """

    rule: ClassVar[str] = "PD107"
    name: ClassVar[str] = "allocator-churn"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.03})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
        "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when the allocator's share of the step reaches `min_share`."""
        idle = rank.account.parts["idle_allocator"]
        cost = rank.per_step(iv.total(idle))
        if not self.exceeds_min_share(rank, cost):
            return
        trace, calls = rank.trace, rank.trace.calls
        during = iv.overlap(calls.start_ns, calls.end_ns, idle) > 0
        rows = np.flatnonzero(trace.match_rows(calls, vocabulary.ALLOCATOR_CALL) & during)
        worst = rows[np.argmax(calls.dur_ns[rows])]
        top = nesting.outermost(trace.ops.parent, calls.op[[worst]])[0] if len(trace.ops) else -1
        calls_made = "one call" if len(rows) == 1 else f"{len(rows)} calls"
        yield self.finding(
            rank,
            title=f"The GPU idles while memory is allocated and freed: {calls_made} to the driver",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice="Allocate once: warm up with the largest input, keep input sizes few, leave memory free.",
            fix="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
            claim=Claim(idle),
            edit=remove_calls(CallRows(rank.trace.calls, rows)),
            confidence=0.8 if rank.steps.count else 0.5,
            location=rank.locations.of_calls(rows.astype(np.int32)),
            evidence=(
                Evidence("calls per step", round(len(rows) / max(rank.steps.count, 1), 1), "count"),
                Evidence("longest call", int(calls.dur_ns[worst]), "ns"),
                Evidence("longest call is", trace.text(int(calls.name[worst]))),
                Evidence("made by", trace.text(int(trace.ops.name[top])) if top >= 0 else None),
            ),
        )
