"""PD402: collectives that run while nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.diagnosis.analyzer import Analyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.matrix import top_kernels
from perfdoctor.diagnosis.run import RankRun, Run
from perfdoctor.diagnosis.stragglers import STANDS_OUT
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Intervals

# Less overlap than this rounds to none.
_HARDLY_ANY = 0.005


class ExposedCommunication(Analyzer):
    """Collectives run while no computation does: the step waits for the network.

    What it finds:
        Time in which a collective kernel runs and no other kernel.

    Why it costs time:
        Gradients can be reduced while backward still computes others; a collective that nothing overlaps lengthens
        the step by all of its time.

    How it is measured:
        The account's communication: collectives outside computation, in the window; the overlap share is what
        computation covered. A
        collective kernel also waits for the last rank to arrive: with the traces of all ranks, the
        wait for a rank that PD401 names is not counted here.

    How to fix:
        DistributedDataParallel overlaps by itself: smaller first buckets (bucket_cap_mb), static_graph,
        gradient_as_bucket_view; FSDP: prefetch; fewer bytes: bf16 gradient compression; no all-reduce in
        micro-batches (no_sync).

    When it is wrong:
        Where the wait is for a slow rank no overlap helps: make the ranks even first.

    Needs:
        Kernels.

    References:
        PyTorch Distributed: Experiences on Accelerating Data Parallel Training (VLDB 2020), sections 3.2.3 and 4.
    """

    rule: ClassVar[str] = "PD402"
    name: ClassVar[str] = "exposed-communication"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # 3 %: some of the last bucket is always exposed, there is no backward left to hide it.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.03})
    references: ClassVar[tuple[str, ...]] = (
        "https://arxiv.org/abs/2006.15704",
        "https://docs.pytorch.org/docs/stable/notes/ddp.html",
    )

    def analyze(self, run: Run) -> Iterator[Finding]:
        """A finding for each rank on which exposed communication reaches `min_share` of the step."""
        late = run.late_rank
        named = late is not None and late.blame >= STANDS_OUT
        for rank in run.ranks:
            if self.needs <= rank.evidence:
                waiting = late.waiting(late.ranks.index(rank)) if late is not None and named else iv.EMPTY
                yield from self._judged(rank, waiting)

    def _judged(self, rank: RankRun, waiting: Intervals) -> Iterator[Finding]:
        """The finding of one rank, without the time that it only waited for a straggler."""
        exposed = iv.subtract(rank.account.parts["communication"], waiting)
        cost = rank.per_step(iv.total(exposed))
        if (rank.share(cost) or 0) < self.settings["min_share"]:
            return
        gpu = rank.trace.gpu
        rows = rank.kernels_where(lambda k: k.category == "communication") & iv.contains(rank.window, gpu.start_ns)
        running = iv.total(rank.within_window(rows))
        overlap = 1 - iv.total(rank.account.parts["communication"]) / running if running else 0.0
        waited = (Evidence("waiting for the late rank, not counted here", rank.per_step(iv.total(waiting)), "ns"),)
        much = "none" if overlap < _HARDLY_ANY else f"only {overlap:.0%}"
        yield self.finding(
            rank,
            title=f"Communication is exposed: {much} of it overlaps with computation",
            cost_ns=cost,
            saving=Saving(0, None, min(cost, self._could_hide(rank)), "bounded"),
            advice="Overlap collectives with backward, or send less: bucket sizes, no_sync, compression.",
            fix="DistributedDataParallel(model, bucket_cap_mb=..., gradient_as_bucket_view=True, static_graph=True)",
            claim=Claim(exposed),
            confidence=0.8,
            evidence=(
                Evidence(
                    "collectives per step", round(int(np.count_nonzero(rows)) / max(rank.steps.count, 1), 1), "count"
                ),
                Evidence("communication per step", rank.per_step(running), "ns"),
                Evidence("overlapped", round(100 * overlap, 1), "%"),
                *(waited if len(waiting) else ()),
                *top_kernels(rank, rows),
            ),
        )

    @staticmethod
    def _could_hide(rank: RankRun) -> int:
        """Computation that a step has to hide communication behind."""
        parts = rank.account.detail
        return rank.per_step(parts["compute"] + parts["bandwidth"])
