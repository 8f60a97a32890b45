"""PD801: between two passes of a serving engine the GPU waits for the engine's own work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._engine_gaps import can_hide_cpu_work, find_engine_gaps
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, activity_kinds, advise, remove_waits
from perfdoctor.rules import intervals as iv


class SchedulerGap(RankAnalyzer):
    """A serving engine schedules the next pass only when the GPU is through with the last one."""

    rule = "PD801"
    name = "scheduler-gap"
    needs = frozenset({"kernels", "launches"})
    # min_share: of the time of a pass; a healthy decoding server of the shared recordings has 0.3 % of it.
    defaults = {"min_share": 0.02}
    references = (
        "https://docs.vllm.ai/en/stable/configuration/optimization/",
        "https://docs.sglang.io/advanced_features/server_arguments.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when the engine's work takes at least `min_share` of the time, and the GPU none."""
        gaps = find_engine_gaps(rank)
        if gaps is None:
            return
        cost_ns = rank.per_step(iv.total(gaps.time))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        is_hidden_by_option = len(gaps.waits.index) > 0 and not rank.context.schedules_ahead
        edit = replace(remove_waits(gaps.waits), is_upper_bound=not can_hide_cpu_work(rank, gaps.waits))
        yield self.finding(
            rank,
            title=f"Between two passes the GPU waits while the engine {gaps.describe(rank)}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise(f"pause: {activity_kinds.BATCH_SCHEDULING}", rank.context),
            claim=Claim(gaps.time),
            edit=edit if is_hidden_by_option else None,
            confidence=0.8,
            evidence=(
                Evidence("passes", len(rank.engine_passes or ()), "count"),
                *(
                    Evidence(f"GPU idle in {work} per {{unit}}", rank.per_step(iv.total(idle)), "ns")
                    for work, idle in gaps.idle.items()
                    if len(idle)
                ),
            ),
        )
