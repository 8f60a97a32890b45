"""Prices findings: what each fix saves next to all the others, so that no time is promised twice, and their order.

The findings of a rank are priced where its trace is (`price_findings`). Fixes with an edit are replayed, each on top of
those before it; the other fixes keep their bounds. `prioritize_fleet` then orders the findings of all ranks. Rules that
compare ranks know the cause of a wait, so time that both kinds of rules claim goes to them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfdoctor.report.finding import SEVERITIES, STEP_AFTER, STEP_BEFORE, Evidence, Finding
from perfdoctor.savings.fix_order import OrderedFix, order_fixes_greedily
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving import Saving
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals


@dataclass(slots=True)
class _Priced:
    """A finding as its rule made it, and its price so far."""

    finding: Finding
    saving: Saving
    order_key_ns: float | None
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, finding: Finding) -> _Priced:
        return cls(finding, finding.saving, finding.order_key_ns)

    @property
    def sort_key(self) -> tuple[float, int, int, str, str, str]:
        finding = self.finding
        key_ns = self.saving.likely_ns if self.order_key_ns is None else self.order_key_ns
        severity = SEVERITIES.index(finding.severity)
        return (-key_ns, -severity, -finding.cost_ns, finding.rule, finding.subject, finding.title)

    def cap(self, limit_ns: int) -> int:
        """Cap the saving at `limit_ns` per step; returns the most that it promises now."""
        self.saving = self.saving.cap(max(limit_ns, 0))
        return self.saving.high_ns or 0

    def build(self, rank: int | None = None, shareable: Intervals | None = None) -> Finding:
        """The finding with its price; a claim on `rank` is reduced to its time in `shareable`, unless that is None."""
        finding, claim = self.finding, self.finding.claim
        if shareable is not None and claim.rank == rank:
            shared = iv.intersect(claim.intervals, shareable)
            claim = replace(claim, intervals=shared, exclusive_ns=claim.total_ns - iv.total(shared))
        if finding.saving == self.saving and finding.edit is None and finding.scope is None and claim is finding.claim:
            return finding
        return replace(
            finding,
            saving=self.saving,
            order_key_ns=self.order_key_ns,
            evidence=(*finding.evidence, *self.evidence),
            claim=claim,
            edit=None,  # row numbers mean nothing without their trace
            scope=None,
        )


def price_findings(
    findings: Iterable[Finding],
    rank: int | None,
    ledger: Ledger,
    replay: Replay | None = None,
    shareable: Intervals | None = None,
) -> tuple[Finding, ...]:
    """The findings of one rank with what their fixes save, in order.

    Args:
        findings: What the rules found on the rank.
        rank: The number of the rank.
        ledger: The time of the rank that can still be promised.
        replay: The replay of the rank; None where there is none. Where the replay cannot be trusted, the evidence of
            each finding with an edit says why, and the saving stays the bound that the rule gave.
        shareable: The time that rules which compare ranks may claim as well. Of all other claimed time only the length
            remains. None leaves the intervals of all claims as they are.

    Returns:
        The findings, the largest saving first. Each promises at most its cost and the part of its claimed time that no
        finding before it has claimed; kernel time also at most what is left of the CPU's wait for the GPU. Together
        they promise no more than the step. A replayed saving takes the other fixes into account already: it is charged
        to the ledger but not limited by it.
    """
    priced = [_Priced.of(finding) for finding in findings]
    _apply_replay(priced, replay)
    return tuple(each.build(rank, shareable) for each in _cap_savings(priced, {rank: ledger}, ledger.step_ns))


def prioritize_fleet(
    rank_findings: Iterable[Finding], fleet_findings: Iterable[Finding], ledgers: Mapping[int | None, Ledger]
) -> tuple[Finding, ...]:
    """The findings of a whole fleet in order: those of single ranks and those about several ranks.

    Args:
        rank_findings: Findings of single ranks, priced by `price_findings` and merged by `merge_findings`.
        fleet_findings: Findings of rules that compare ranks. Time that both kinds claim goes to them first.
        ledgers: The ledger of each rank, as before any promise.

    Returns:
        All of them, the largest saving first; together they promise no more than the longest step of any rank.
    """
    of_ranks = [_Priced.of(finding) for finding in rank_findings]
    for each in of_ranks:
        claim = each.finding.claim
        if claim.rank in ledgers:
            ledgers[claim.rank].spend(claim, each.saving.high_ns or 0)
    step_ns = max((ledger.step_ns for ledger in ledgers.values()), default=0)
    of_fleet = _cap_savings([_Priced.of(finding) for finding in fleet_findings], ledgers, step_ns)
    for each in of_ranks:
        claim, ledger, limit_ns = each.finding.claim, ledgers.get(each.finding.claim.rank), each.finding.cost_ns
        if ledger is not None and ledger.overlaps(claim):
            limit_ns = min(limit_ns, ledger.limit_ns(claim, kernels=False))
        each.cap(limit_ns)
    everything = sorted([*of_fleet, *of_ranks], key=lambda each: each.sort_key)
    for each in everything:
        step_ns -= each.cap(step_ns)
    return tuple(each.build() for each in sorted(everything, key=lambda each: each.sort_key))


def _cap_savings(priced: Sequence[_Priced], ledgers: Mapping[int | None, Ledger], step_ns: int) -> list[_Priced]:
    """Cap the savings, the largest first, and charge the ledgers; returns the findings in their new order."""
    for each in sorted(priced, key=lambda each: each.sort_key):
        claim = each.finding.claim
        ledger = ledgers.get(claim.rank)
        limit_ns = min(each.finding.cost_ns, step_ns)
        if ledger is not None and each.saving.basis != "replayed":
            limit_ns = min(limit_ns, ledger.limit_ns(claim))
        promised_ns = each.cap(limit_ns)
        step_ns -= promised_ns
        if ledger is not None:
            ledger.charge(claim, promised_ns)
    return sorted(priced, key=lambda each: each.sort_key)


def _apply_replay(priced: Sequence[_Priced], replay: Replay | None) -> None:
    """Set saving, order and evidence of each finding with an edit by the replay of its fix."""
    edits = {number: each.finding.edit for number, each in enumerate(priced) if each.finding.edit is not None}
    if replay is None or not edits:
        return
    if replay.gates.reason is not None:
        for number in edits:
            priced[number].evidence = (Evidence("not replayed", replay.gates.reason),)
        return
    order_key_ns = float("inf")
    for position, fix in enumerate(order_fixes_greedily(replay, edits)):
        each = priced[fix.number]
        finding, high_ns = each.finding, fix.high_ns
        if not edits[fix.number].is_upper_bound:
            # For a wait that vanishes, the rule has an estimate of its own. Of two pairs of recordings before and after
            # the fix, the replay was nearer in one and the rule in the other (docs/measuring.md).
            high_ns = max(high_ns, finding.saving.expected_ns or 0)
        bound_ns = finding.saving.high_ns
        limit_ns = finding.cost_ns if bound_ns is None else min(bound_ns, finding.cost_ns)
        order_key_ns = min(order_key_ns, fix.expected_ns, limit_ns)
        each.order_key_ns = order_key_ns - position * 1e-6  # fixes with equal savings keep the order of the replay
        each.saving = Saving(fix.low_ns, fix.expected_ns, high_ns, "replayed").cap(limit_ns)
        each.evidence = _evidence_of_replay(fix, replay, priced)


def _evidence_of_replay(fix: OrderedFix, replay: Replay, priced: Sequence[_Priced]) -> tuple[Evidence, ...]:
    evidence = [Evidence(STEP_AFTER, fix.step_after_ns, "ns")]
    if not replay.includes_profiler:
        evidence.append(Evidence(STEP_BEFORE, replay.baseline_step_ns, "ns"))
    if fix.masked_by is not None:
        by = priced[fix.masked_by].finding.rule
        label = f"saves by itself, masked until {by} is fixed"
        evidence.append(Evidence(label, round(max(fix.alone_ns, 0)), "ns"))
    return tuple(evidence)
