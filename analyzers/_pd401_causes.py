"""Why a rank is late: a finding or a line of the user's code that costs this rank more than it costs the others."""

from __future__ import annotations

from statistics import median_low

from perfdoctor.analysis.host.time_by_line import TimeAtLine
from perfdoctor.rules import Finding, Fleet, LateRank

# A finding that the other ranks have too explains the lateness only when it costs the late rank so many times as much.
_MIN_COST_RATIO = 1.5
# A line explains the lateness when it takes at least this share of it: two or three lines may cause it together.
_MIN_LATENESS_SHARE = 0.3


def find_explaining_finding(fleet: Fleet, late: LateRank, rules: tuple[str, ...]) -> Finding | None:
    """The late rank's costliest finding of some rules that costs it more than the other ranks.

    Args:
        fleet: All ranks.
        late: The late rank.
        rules: Ids of rules, or the beginnings of ids.
    """
    for finding in sorted(fleet.summary_of(late.table).findings, key=lambda f: -f.cost_ns):
        if (
            rules
            and finding.rule.startswith(rules)
            and finding.cost_ns > _MIN_COST_RATIO * _median_cost_of_others(fleet, late, finding)
        ):
            return finding
    return None


def _median_cost_of_others(fleet: Fleet, late: LateRank, like: Finding) -> int:
    """The median of what the same finding costs the other ranks, in ns; a rank without it counts as 0."""
    costs = [
        max((f.cost_ns for f in summary.findings if (f.rule, f.subject) == (like.rule, like.subject)), default=0)
        for summary in fleet.summaries
        if summary.rank != late.rank
    ]
    return median_low(costs) if costs else 0


def find_explaining_line(fleet: Fleet, late: LateRank, lateness_ns: int) -> TimeAtLine | None:
    """The line in which the late rank's CPU spends more time outside of ops than the CPUs of the other ranks.

    Returns:
        The line, and how much more time it takes per step; None where no line takes enough of `lateness_ns`.
    """
    others = [{t.location: t.per_step_ns for t in s.host_time} for s in fleet.summaries if s.rank != late.rank]
    for line in fleet.summary_of(late.table).host_time:
        excess_ns = line.per_step_ns - median_low([times.get(line.location, 0) for times in others])
        if excess_ns >= _MIN_LATENESS_SHARE * lateness_ns:
            return TimeAtLine(line.location, excess_ns)
    return None
