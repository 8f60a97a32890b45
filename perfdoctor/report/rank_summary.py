"""RankSummary: what the report and rules over ranks need of a rank, small enough to be sent between processes.

The trace of a rank takes hundreds of megabytes, its summary ten to two hundred kilobytes: the account, the findings,
and what rules that compare ranks need. The columns of a trace stay in the process that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from perfdoctor.analysis.communication.collectives import CollectiveTable
from perfdoctor.analysis.communication.match_collectives import MatchedCollectives, match_collectives
from perfdoctor.analysis.communication.stragglers import LateRank, find_late_rank, lateness_of
from perfdoctor.analysis.context.context import UNKNOWN_CONTEXT, Context
from perfdoctor.analysis.step_breakdown import StepBreakdown
from perfdoctor.analysis.timeline.account import Account, mean_per_step
from perfdoctor.analysis.timeline.timeline import Timeline
from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.places.place import Place
from perfdoctor.report.chart_data import RankCharts
from perfdoctor.report.finding import Finding
from perfdoctor.report.memory_summary import MemorySummary
from perfdoctor.report.pass_summary import PassSummary
from perfdoctor.report.report import (
    UNKNOWN_LIMIT,
    Limit,
    OnceOnly,
    Outcome,
    StepSummary,
    TraceSummary,
    UnexplainedSlice,
)
from perfdoctor.run_watch.hang import HangReading
from perfdoctor.run_watch.run_series import RunSeries
from perfdoctor.savings.edits import Edit, set_durations
from perfdoctor.savings.late_delay import delay_by_late_rank_ns
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.rows import GpuRows


@frozen_dataclass
class RankSummary:
    """One rank, as the report and rules that compare ranks see it.

    Attributes:
        trace: The file, rank number and device.
        steps: Number, source, median and variation of the steps; their intervals are in `account.steps`.
        timeline: GPU time over the whole trace.
        account: The window by where its time went. Its `parts` take the most memory and are left out unless the rank is
            the only one.
        available_data: Which of `REQUIREMENTS` the rank has.
        cpu_wait_ns: The most that faster kernels can save in the window, see `cpu_waits.cpu_wait_ns`.
        collectives: When the rank came to each collective; None where they were not examined.
        collective_items: The kernels of its collectives while its trace is there: for rules on an only rank; else None.
        places: The places of its step, the largest first.
        step_flops: FLOPs of each step by its input shapes, see `step_flops`; empty where unknown, or without
            collectives.
        half_precision_share: See `half_precision_share`; None without collectives.
        facts: What was captured beside the trace.
        findings: The findings on the rank, in order, with savings capped within the rank. Their claims have only the
            intervals in exposed communication, which rules over ranks may claim too.
        outcomes: What became of each rule on this rank.
        context: What program the rank runs.
        limit: How short its step can get.
        once: What happens once on it; None where nothing does.
        unexplained: The slices of its account that no finding on it claims.
        tables: Rows of `Report.tables`, by name.
        memory: The memory of each device, where it was recorded.
        passes: The passes of a serving engine, by kind; empty without one.
        breakdown: What its steps hold; None unless asked for, see `AnalysisOptions.breakdown`.
        charts: What the page draws; None unless asked for, see `AnalysisOptions.charts`.
    """

    trace: TraceSummary
    steps: StepSummary
    timeline: Timeline
    account: Account
    available_data: frozenset[str] = frozenset()
    cpu_wait_ns: int | None = None
    collectives: CollectiveTable | None = field(default=None, repr=False, compare=False)
    collective_items: GpuRows | None = field(default=None, repr=False, compare=False)
    places: tuple[Place, ...] = ()
    step_flops: Int64Array = field(default_factory=lambda: np.empty(0, np.int64), repr=False, compare=False)
    half_precision_share: float | None = None
    facts: CapturedFacts = field(default=NO_FACTS, repr=False)
    findings: tuple[Finding, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    context: Context = UNKNOWN_CONTEXT
    limit: Limit = UNKNOWN_LIMIT
    once: OnceOnly | None = None
    unexplained: tuple[UnexplainedSlice, ...] = ()
    tables: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    memory: tuple[MemorySummary, ...] = ()
    passes: tuple[PassSummary, ...] = ()
    run: RunSeries | None = None
    breakdown: StepBreakdown | None = field(default=None, repr=False, compare=False)
    charts: RankCharts | None = field(default=None, repr=False, compare=False)

    @property
    def rank(self) -> int | None:
        """The rank's number."""
        return self.trace.rank

    @property
    def window_ns(self) -> int:
        """Length of the analysed window."""
        return self.account.window_ns

    def per_step(self, window_ns: int) -> int:
        """Recorded time in the window as time per step, without the profiler; see `Rank.per_step`."""
        return round(mean_per_step(window_ns, self.steps.count, self.account.time_scale))

    @property
    def mean_step_ns(self) -> int:
        """The analysed window as time per step."""
        return self.per_step(self.window_ns)

    @property
    def usual_step_ns(self) -> int:
        """The median step where that is shorter than the mean one: without what a slow step adds."""
        return min(self.mean_step_ns, self.steps.median_ns or self.mean_step_ns)

    def share(self, per_step_ns: int) -> float | None:
        """An amount per step as a share (0 to 1) of the step; None when the window is empty."""
        whole = self.mean_step_ns
        return min(per_step_ns / whole, 1.0) if whole else None

    def recoverable_ns(self, wait_ns: int) -> int:
        """How much of its waiting for other ranks a rank gets back: not what its GPU would wait for its own CPU then.

        Where the CPU waits for the GPU, as for a loss, it gets that back. In ns over the window, as `wait_ns`.
        """
        if self.collectives is None or not self.collectives.on_gpu or self.cpu_wait_ns is None:
            return wait_ns
        starved_ns = self.account.detail.get("idle_launch", 0)
        return min(wait_ns, max(self.cpu_wait_ns, wait_ns - starved_ns))

    def shorten_collectives(
        self, time: Intervals, share: float, cause_share: float | None = None, *, is_upper_bound: bool = True
    ) -> Edit | None:
        """The edit that takes a share of some time from the collectives that run then; None without their trace.

        Args:
            time: The time.
            share: The share of it, 0 to 1.
            cause_share: The share that the whole cause takes, where a part of that stays whatever the fix does.
            is_upper_bound: Whether that is the best that the fix can do.
        """
        items = self.collective_items
        if items is None:
            return None
        dur_ns = items.table.dur_ns[items.index]
        less_ns = iv.overlap(items.table.start_ns[items.index], items.table.end_ns[items.index], time)
        cause = None if cause_share is None else set_durations(items, dur_ns - cause_share * less_ns)
        return replace(set_durations(items, dur_ns - share * less_ns, is_upper_bound=is_upper_bound), cause=cause)

    def renumber(self, rank: int, note: str) -> RankSummary:
        """The same rank with another number; `note` joins its warnings."""

        def renumber_finding(finding: Finding) -> Finding:
            if finding.rank != self.rank:
                return finding
            return replace(finding, rank=rank, claim=replace(finding.claim, rank=rank))

        return replace(
            self,
            trace=replace(self.trace, rank=rank, warnings=(*self.trace.warnings, note)),
            timeline=replace(self.timeline, rank=rank),
            places=tuple(replace(each, rank=rank) for each in self.places),
            account=replace(self.account, rank=rank),
            once=None if self.once is None else replace(self.once, rank=rank),
            unexplained=tuple(replace(each, rank=rank) for each in self.unexplained),
            collectives=None if self.collectives is None else self.collectives.renumber(rank),
            findings=tuple(map(renumber_finding, self.findings)),
            memory=tuple(replace(each, rank=rank) for each in self.memory),
            passes=tuple(replace(each, rank=rank) for each in self.passes),
            charts=None if self.charts is None else replace(self.charts, rank=rank),
        )


@frozen_dataclass
class Fleet:
    """All ranks of one job as summaries, sorted by rank: the input of a FleetAnalyzer.

    Attributes:
        hang: What its flight recorders show; None where none were read.
    """

    summaries: tuple[RankSummary, ...]
    hang: HangReading | None = None

    @cached_property
    def available_data(self) -> frozenset[str]:
        """The requirements that at least one rank meets, "ranks" when there are several, and "hang"."""
        of_the_job = {"ranks"} if len(self.summaries) > 1 else set()
        of_the_job |= {"hang"} if self.hang is not None else set()
        return frozenset().union(*(summary.available_data for summary in self.summaries), of_the_job)

    @cached_property
    def longest_step_ns(self) -> int:
        """The longest mean step of a rank; 0 without ranks."""
        return max((summary.mean_step_ns for summary in self.summaries), default=0)

    @cached_property
    def matched_collectives(self) -> MatchedCollectives | None:
        """The collectives of all ranks, matched with each other; None when no two ranks have one in common."""
        return match_collectives([s.collectives for s in self.summaries if s.collectives is not None])

    @cached_property
    def late_rank(self) -> LateRank | None:
        """The rank that makes the others wait most at collectives; None when nobody waits or nothing can be matched."""
        return None if self.matched_collectives is None else find_late_rank(self.matched_collectives)

    @cached_property
    def late_ns(self) -> dict[int | None, int]:
        """How much later than the second-latest each rank comes to the collectives of a step; see `LateRank`.

        A rank that is late at one collective is as late at the next: of the late rank it is what it delays the step by
        at most. Empty where nobody waits or nothing can be matched.
        """
        late = self.late_rank
        if late is None:
            return {}
        lateness = zip(late.matched.tables, lateness_of(late.matched).tolist(), strict=True)
        late_ns = {table.rank: self.summary_of(table).per_step(ns) for table, ns in lateness}
        if late.stands_out and not late.once:
            late_ns |= {
                rank: min(late_ns[rank], self.delay_ns) for rank in (late.matched.tables[i].rank for i in late.co_late)
            }
        return late_ns

    @cached_property
    def delay(self) -> Intervals:
        """The part of its waits that the longest waiter would not have if the late rank came when the next one does.

        The same share of each wait, on the waiter's clock, and no more than the CPU of each rank that is on time lets
        through. Empty where nobody waits.
        """
        late = self.late_rank
        if late is None:
            return iv.EMPTY
        waiting, delay_ns = late.wait_time(late.victim), delay_by_late_rank_ns(late)
        on_time = (self.summary_of(each) for i, each in enumerate(late.matched.tables) if i not in late.co_late)
        return iv.shorten(waiting, min(rank.recoverable_ns(delay_ns) for rank in on_time))

    @cached_property
    def delay_ns(self) -> int:
        """How much of a step `delay` is."""
        late = self.late_rank
        return 0 if late is None else self.summary_of(late.matched.tables[late.victim]).per_step(iv.total(self.delay))

    def summary_of(self, table: CollectiveTable) -> RankSummary:
        """The summary of the rank that a table of collectives belongs to."""
        return self._summary_by_table[id(table)]

    @cached_property
    def _summary_by_table(self) -> dict[int, RankSummary]:
        """By the id of a table its summary; tables are compared by identity."""
        return {id(summary.collectives): summary for summary in self.summaries if summary.collectives is not None}
