"""Why a rank is late: a finding or a line of the user's code that costs this rank more than it costs the others.

PD401 tells of ranks that fall behind inside the step, PD409 of those that enter it late.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from perfdoctor.analyzers._cpu_cores_of_ranks import does_equal_work
from perfdoctor.analyzers._late_starts import start_apart, starts_late
from perfdoctor.rules import Finding, Fleet, LateRank, phases

# A finding that the other ranks have too explains the lateness only when it costs the late rank so many times as much.
_MIN_COST_RATIO = 1.5
# Phases that take CPU time. A rank without a GPU that is longer in them than the others has more to do, or lacks a
# core.
_WORKING = frozenset({"forward", "backward", "optimizer", "compute", "launch", "communication"})
# What these say on a rank is reported inside the finding that the others wait for it: its CPU is busy, no more.
_REPORTED_INSIDE = ("PD103", "PD104")


def enters_late(fleet: Fleet, late: LateRank, lateness_ns: int) -> bool:
    """Whether the rank is late already when it begins its pass, so that PD409 tells of it, and not PD401.

    A rank that is late because its last backward pass or its optimizer took longer falls behind inside the step. Where
    only forward passes were recorded, nothing is known of what a rank does between them.
    """
    phase = late.find_excess_phase()
    if any(each.context.is_forward_only for each in fleet.summaries):
        return False
    if late.once or not starts_late(late) or (phase is not None and phase[0] in (phases.BACKWARD, phases.OPTIMIZER)):
        return False
    return not lacks_core(fleet, late, lateness_ns)


def enter_apart(late: LateRank) -> bool:
    """Whether ranks take turns at coming last because they enter their passes apart: that is reported by PD409, too."""
    return not late.once and start_apart(late)


def lacks_core(fleet: Fleet, late: LateRank, lateness_ns: int) -> bool:
    """Whether the rank is late with no more work than the others, on a machine whose cores are busy."""
    phase = late.find_excess_phase()
    if phase is not None and phase[0] not in _WORKING:
        return False
    return does_equal_work(fleet.summaries, late, lateness_ns)


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


def find_told_inside(fleet: Fleet, late: LateRank) -> Iterable[Finding]:
    """The late rank's findings that say no more than that its CPU is busy, where they cost it more than the others."""
    for finding in fleet.summary_of(late.table).findings:
        excess = finding.cost_ns > _MIN_COST_RATIO * _median_cost_of_others(fleet, late, finding)
        if finding.rule in _REPORTED_INSIDE and excess:
            yield finding
