"""The order of the findings, and that no nanosecond is promised twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfdoctor.report.finding import SEVERITIES, Claim, Finding
from perfdoctor.savings.fix_order import order_fixes_greedily
from perfdoctor.savings.what_if import cpu_wait_ns
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import EMPTY, Intervals

if TYPE_CHECKING:
    from perfdoctor.rank import Rank


@dataclass(slots=True)
class Ledger:
    """What can still be promised on one rank: time not claimed yet, and the CPU's wait for the GPU.

    `steps` divides window time into time a step (1 without steps); `kernel_budget_ns`, for the window, is None when
    nothing bounds it.
    """

    window_ns: int
    steps: int = 1
    kernel_budget_ns: float | None = None
    claimed: Intervals = field(default_factory=lambda: EMPTY)

    def limit_ns(self, claim: Claim) -> int:
        """The most that a claim may still save, a step."""
        free = iv.total(iv.subtract(claim.intervals, self.claimed)) + claim.exclusive_ns
        if not claim.total_ns:
            free = self.window_ns
        if claim.kernels and self.kernel_budget_ns is not None:
            free = min(free, int(self.kernel_budget_ns))
        return int(free / self.steps)

    def charge(self, claim: Claim, saved_ns: int) -> None:
        """Take a promise of `saved_ns` a step off."""
        self.claimed = iv.union_of((self.claimed, claim.intervals))
        self.spend(claim, saved_ns)

    def spend(self, claim: Claim, saved_ns: int) -> None:
        """Take what a promise of `saved_ns` a step needs of the CPU's wait for the GPU off."""
        if claim.kernels and self.kernel_budget_ns is not None:
            self.kernel_budget_ns -= saved_ns * self.steps

    def touches(self, claim: Claim) -> bool:
        """Whether some of a claim's time was promised already."""
        return bool(len(iv.intersect(claim.intervals, self.claimed)))


def prioritize_rank(rank: Rank, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Replay the fixes of one rank one on top of the other, cap all savings, and sort; see `joint` and `promised`."""
    ledger = Ledger(rank.window_ns, max(rank.steps.count, 1), cpu_wait_ns(rank))
    return promised(order_fixes_greedily(rank, findings), {rank.trace.rank: ledger})


def prioritize_fleet(
    own: Iterable[Finding], fleet: Iterable[Finding], ledgers: Mapping[int | None, Ledger]
) -> tuple[Finding, ...]:
    """Sort the findings of a whole fleet, those that single ranks have told with those about several ranks.

    Args:
        own: findings that `prioritize_rank` has capped, those that ranks share told once.
        fleet: findings of rules that compare ranks. They know what a wait was for, so of time that both claim they are
            promised first.
        ledgers: by rank, as they were before any promise.

    Returns:
        All of them, the savings together never more than the step.
    """
    own = list(own)
    for finding in own:
        if finding.claim.rank in ledgers:
            ledgers[finding.claim.rank].spend(finding.claim, finding.saving.high_ns or 0)
    first = promised(fleet, ledgers)
    rest = [replace(f, saving=f.saving.capped(_left_ns(f, ledgers))) for f in own]
    return _within_step(sorted([*first, *rest], key=_order), ledgers)


def _left_ns(finding: Finding, ledgers: Mapping[int | None, Ledger]) -> int:
    """What a finding that was capped within its rank may still save, a step, beside the promises to the fleet."""
    ledger = ledgers.get(finding.claim.rank)
    if ledger is None or not ledger.touches(finding.claim):
        return finding.cost_ns
    return min(finding.cost_ns, ledger.limit_ns(replace(finding.claim, kernels=False)))


def promised(findings: Iterable[Finding], ledgers: Mapping[int | None, Ledger]) -> tuple[Finding, ...]:
    """Cap every saving, and sort by what is left of it.

    The findings take their turn in the order of their worth; each may save at most its own cost, what of its claimed
    time no earlier one has claimed, for kernel time what is left of the CPU's wait for the GPU (gain.cpu_wait_ns),
    and together never more than the step. What was replayed knows of the others already: it only takes from them.
    """
    step_ns = _step_ns(ledgers)
    capped = []
    for finding in sorted(findings, key=_order):
        limit = min(finding.cost_ns, step_ns)
        ledger = ledgers.get(finding.claim.rank)
        if ledger is not None and finding.saving.basis != "replayed":
            limit = min(limit, ledger.limit_ns(finding.claim))
        saving = finding.saving.capped(max(limit, 0))
        step_ns -= saving.high_ns or 0
        if ledger is not None:
            ledger.charge(finding.claim, saving.high_ns or 0)
        capped.append(replace(finding, saving=saving))
    return tuple(sorted(capped, key=_order))


def _within_step(findings: Iterable[Finding], ledgers: Mapping[int | None, Ledger]) -> tuple[Finding, ...]:
    """Cap savings in the order given so that they never exceed the step together; sorted by what is left."""
    left_ns = _step_ns(ledgers)
    capped = []
    for finding in findings:
        saving = finding.saving.capped(left_ns)
        left_ns -= saving.high_ns or 0
        capped.append(replace(finding, saving=saving))
    return tuple(sorted(capped, key=_order))


def _step_ns(ledgers: Mapping[int | None, Ledger]) -> int:
    """The longest step of any rank."""
    return max((int(ledger.window_ns / ledger.steps) for ledger in ledgers.values()), default=0)


def _order(finding: Finding) -> tuple[float, int, int, str, str, str]:
    severity = SEVERITIES.index(finding.severity)
    turn_ns = finding.expected_saving_ns if finding.order_key_ns is None else finding.order_key_ns
    return (-turn_ns, -severity, -finding.cost_ns, finding.rule, finding.subject, finding.title)
