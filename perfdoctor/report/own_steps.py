"""How long the steps of ranks take without their waits for the late rank; the longest is the step after fixes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from perfdoctor.report.finding import Finding
from perfdoctor.report.merge_findings import ranks_with
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.trace.tables import intervals as iv


def steps_without_waits(fleet: Fleet, findings: Sequence[Finding]) -> dict[int | None, int]:
    """By number of a rank its mean step without its waits for the late rank, in ns: of the ranks that can be longest.

    Those are one of each set of ranks with the same findings: fixes shorten the steps of all of a set by the same, so
    that the longest one of them stays the longest.
    """
    late = fleet.late_rank

    def min_wait_ns(summary: RankSummary) -> int:
        if late is None or summary.collectives is None:
            return 0
        return summary.recoverable_ns(late.min_own_wait_ns_of(summary.collectives))

    def wait_ns(summary: RankSummary) -> int:
        if late is None or summary.collectives is None:
            return 0
        return summary.recoverable_ns(iv.total(late.wait_time_of(summary.collectives)))

    having = [ranks_with(finding) for finding in findings]
    sets: dict[tuple[bool, ...], list[RankSummary]] = defaultdict(list)
    for summary in fleet.summaries:
        rank = summary.rank
        sets[tuple(ranks is None or rank is None or rank in ranks for ranks in having)].append(summary)
    return dict(_find_longest(some, min_wait_ns, wait_ns) for some in sets.values())


def _find_longest(
    summaries: Sequence[RankSummary], min_wait_ns: Callable[[RankSummary], int], wait_ns: Callable[[RankSummary], int]
) -> tuple[int | None, int]:
    """The rank with the longest own step, and that step: exact waits, which are slow, only where it can be longest."""
    longest: tuple[int | None, int] = None, -1
    upper_bounds = [(each.per_step(each.window_ns - min_wait_ns(each)), each) for each in summaries]
    for max_ns, summary in sorted(upper_bounds, key=lambda each: -each[0]):
        if max_ns <= longest[1]:
            break
        own_ns = summary.per_step(summary.window_ns - wait_ns(summary))
        if own_ns > longest[1]:
            longest = summary.rank, own_ns
    return longest
