"""The order of the findings, and that no nanosecond is promised twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from perfdoctor.diagnosis.finding import SEVERITIES, Claim, Evidence, Finding
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import EMPTY, Intervals


@dataclass(slots=True)
class Ledger:
    """What can still be promised on one rank.

    Time not claimed yet, and the CPU's wait for the GPU that faster kernels can shorten.

    `steps` divides window time into time a step (1 without steps); `kernel_budget_ns`, for the window, is None when
    nothing bounds it.
    """

    window_ns: int
    steps: int = 1
    kernel_budget_ns: float | None = None
    claimed: Intervals = field(default_factory=lambda: EMPTY)

    def limit_ns(self, claim: Claim) -> int:
        """The most that a claim may still save, a step."""
        free = iv.total(iv.subtract(claim.intervals, self.claimed)) if len(claim.intervals) else self.window_ns
        if claim.kernels and self.kernel_budget_ns is not None:
            free = min(free, int(self.kernel_budget_ns))
        return int(free / self.steps)

    def charge(self, claim: Claim, saved_ns: int) -> None:
        """Take a promise of `saved_ns` a step off."""
        self.claimed = iv.union_of((self.claimed, claim.intervals))
        if claim.kernels and self.kernel_budget_ns is not None:
            self.kernel_budget_ns -= saved_ns * self.steps


def rank_findings(findings: Iterable[Finding], ledgers: Mapping[int | None, Ledger]) -> tuple[Finding, ...]:
    """Merge what several ranks share, cap every saving, and sort by what is left of it.

    The findings take their turn in the order of their worth; each may save at most its own cost, what of its claimed
    time no earlier one has claimed, for kernel time what is left of the CPU's wait for the GPU (gain.cpu_wait_ns),
    and together never more than the step.
    """
    turn = sorted(merge_ranks(findings), key=_order)
    step_ns = max((int(ledger.window_ns / ledger.steps) for ledger in ledgers.values()), default=0)
    ranked = []
    for finding in turn:
        limit = min(finding.cost_ns, step_ns)
        ledger = ledgers.get(finding.claim.rank)
        if ledger is not None:
            limit = min(limit, ledger.limit_ns(finding.claim))
        saving = finding.saving.capped(limit)
        promised = saving.high_ns or 0
        step_ns -= promised
        if ledger is not None:
            ledger.charge(finding.claim, promised)
        ranked.append(replace(finding, saving=saving))
    return tuple(sorted(ranked, key=_order))


def _order(finding: Finding) -> tuple[float, int, int, str, str, str]:
    severity = SEVERITIES.index(finding.severity)
    return (-finding.worth_ns, -severity, -finding.cost_ns, finding.rule, finding.subject, finding.title)


def merge_ranks(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each rule, subject and place: the costliest rank speaks for all, and names the others."""
    groups: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.rule, finding.subject, str(finding.location)].append(finding)
    merged: list[Finding] = []
    for group in groups.values():
        ranks = sorted({f.rank for f in group if f.rank is not None})
        merged += group if len(ranks) < 2 else [_merged(group, ranks)]
    return merged


def _merged(group: list[Finding], ranks: list[int]) -> Finding:
    worst = max(group, key=lambda f: (f.cost_ns, -(f.rank or 0)))
    lows = [f.saving.low_ns for f in group if f.saving.low_ns is not None]
    saving = worst.saving
    if lows and saving.low_ns is not None:
        saving = replace(saving, low_ns=min(lows))
    evidence = (*worst.evidence, Evidence("ranks", ", ".join(map(str, ranks))), Evidence("costliest rank", worst.rank))
    return replace(worst, rank=None, saving=saving, evidence=evidence)
