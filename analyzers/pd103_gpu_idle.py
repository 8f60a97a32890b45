"""PD103: the GPU idles and nothing explains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.trace import intervals as iv


class GpuIdle(RankAnalyzer):
    """The GPU had nothing to do, and the trace does not say why.

    What it finds:
        Idle GPU time that is left when the DataLoader, syncs, the allocator, communication and late launches have
        been given theirs.

    Why it costs time:
        The GPU could have worked.

    How it is measured:
        The account's idle_unexplained: gaps between GPU items in which the next item had been launched long before,
        or about which the
        trace has no CPU event at all.

    How to fix:
        Record again with CPU activities and Python stacks, so that the gaps get a cause; look at the longest gap in
        the exported trace.

    When it is wrong:
        In a trace that was recorded without CPU events all idle time is unexplained; that is the trace's fault, and
        the confidence says so.

    Needs:
        Kernels.

    References:
        HolisticTraceAnalysis, idle time breakdown ("other").
    """

    rule: ClassVar[str] = "PD103"
    name: ClassVar[str] = "gpu-idle"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.05})
    references: ClassVar[tuple[str, ...]] = (
        "https://hta.readthedocs.io/en/latest/source/features/idle_time_breakdown.html",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding when unexplained idle time reaches `min_share` of the step."""
        idle = rank.account.parts["idle_unexplained"]
        cost = rank.per_step(iv.total(idle))
        share = rank.share(cost) or 0
        if share < self.settings["min_share"]:
            return
        lengths = idle[:, 1] - idle[:, 0]
        longest = int(np.argmax(lengths))
        seen = "cpu" in rank.evidence
        whole = "step" if rank.steps.count else "trace"
        yield self.finding(
            rank,
            title=f"The GPU idles for {share:.0%} of the {whole}, and nothing in the trace explains it",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=(
                "Open the exported trace at the longest gap and see what the CPU did; Python stacks name the line."
                if seen
                else "Record CPU activities too (ProfilerActivity.CPU): without them no gap has a cause."
            ),
            fix=None if seen else "perfdoctor run train.py",
            claim=Claim(idle),
            confidence=0.7 if seen else 0.4,
            evidence=(
                Evidence("gaps", len(idle), "count"),
                Evidence("longest gap", int(lengths[longest]), "ns"),
                Evidence(
                    "longest gap begins, after the trace's start", int(idle[longest, 0]) - rank.trace.extent_ns[0], "ns"
                ),
            ),
        )
