"""Why a rank is late: its own finding, or its own line, that the other ranks do not have as much of."""

from __future__ import annotations

from statistics import median_low

from perfdoctor.analysis.communication.stragglers import LateRank
from perfdoctor.analysis.host.time_by_line import TimeAtLine
from perfdoctor.report.finding import Finding
from perfdoctor.report.rank_summary import Fleet

# A finding that the other ranks have, too, explains a delay only when it costs this rank so many times as much.
_MORE_THAN_OTHERS = 1.5
# A line explains a delay when it takes so much of it; two or three lines may share one.
_EXPLAINS = 0.3


def own_finding(fleet: Fleet, late: LateRank, rules: tuple[str, ...]) -> Finding | None:
    """The late rank's costliest finding that explains its phase, and that the others do not have as much of."""
    for finding in sorted(fleet.of(late.table).findings, key=lambda f: -f.cost_ns):
        if (
            rules
            and finding.rule.startswith(rules)
            and finding.cost_ns > _MORE_THAN_OTHERS * _usual_cost(fleet, late, finding)
        ):
            return finding
    return None


def _usual_cost(fleet: Fleet, late: LateRank, like: Finding) -> int:
    """What the same finding costs the other ranks, as their median; 0 for those that do not have it."""
    costs = [
        max((f.cost_ns for f in summary.findings if (f.rule, f.subject) == (like.rule, like.subject)), default=0)
        for summary in fleet.summaries
        if summary.rank != late.rank
    ]
    return median_low(costs) if costs else 0


def own_line(fleet: Fleet, late: LateRank, lateness_ns: int) -> TimeAtLine | None:
    """Where its CPU spends more time outside of ops than those of the others, enough of it to be late for that."""
    others = [{t.location: t.per_step_ns for t in s.host_time} for s in fleet.summaries if s.rank != late.rank]
    for line in fleet.of(late.table).host_time:
        more_ns = line.per_step_ns - median_low([of_rank.get(line.location, 0) for of_rank in others])
        if more_ns >= _EXPLAINS * lateness_ns:
            return TimeAtLine(line.location, more_ns)
    return None
