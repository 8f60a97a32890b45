"""From what rules found to what the report promises: each fix priced beside all others, once, and put in order.

The findings of a rank are priced where its trace is (`price_findings`): fixes with an edit by a replay, one on top of
the other, the others by their bounds. Over several ranks (`prioritize_fleet`) rules that compare ranks know what a wait
was for, so of time that both claim they are promised first.
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
    """A finding as its rule made it, with what pricing has found out about it so far."""

    finding: Finding
    saving: Saving
    order_key_ns: float | None
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, finding: Finding) -> _Priced:
        return cls(finding, finding.saving, finding.order_key_ns)

    @property
    def order(self) -> tuple[float, int, int, str, str, str]:
        finding = self.finding
        key_ns = self.saving.likely_ns if self.order_key_ns is None else self.order_key_ns
        severity = SEVERITIES.index(finding.severity)
        return (-key_ns, -severity, -finding.cost_ns, finding.rule, finding.subject, finding.title)

    def cap(self, most_ns: int) -> int:
        """Promise no more than so much a step; what is promised at most."""
        self.saving = self.saving.cap(max(most_ns, 0))
        return self.saving.high_ns or 0

    def build(self, rank: int | None = None, shareable: Intervals | None = None) -> Finding:
        """The finding with its price; of a claim on the rank only the time in `shareable`, where that is given."""
        finding, claim = self.finding, self.finding.claim
        if shareable is not None and claim.rank == rank:
            kept = iv.intersect(claim.intervals, shareable)
            claim = replace(claim, intervals=kept, exclusive_ns=claim.total_ns - iv.total(kept))
        if finding.saving == self.saving and finding.edit is None and finding.scope is None and claim is finding.claim:
            return finding
        return replace(
            finding,
            saving=self.saving,
            order_key_ns=self.order_key_ns,
            evidence=(*finding.evidence, *self.evidence),
            claim=claim,
            edit=None,  # rows of a trace mean nothing without the trace
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
        rank: Its number.
        ledger: What can be promised on it.
        replay: Its replay; None where there is none. Where it cannot be trusted the evidence of each finding with an
            edit says why, and the saving stays the bound that it was.
        shareable: The time that rules which compare ranks may claim as well; claims forget where the rest of theirs
            lies. None keeps all of it.

    Returns:
        The findings, the largest saving first. Each promises at most its cost, what of its claimed time no finding
        before it has claimed, and for kernel time what is left of the CPU's wait for the GPU; all together promise no
        more than the step. What was replayed knows of the others already: it only takes from them.
    """
    priced = [_Priced.of(finding) for finding in findings]
    _apply_replay(priced, replay)
    return tuple(each.build(rank, shareable) for each in _promise(priced, {rank: ledger}, ledger.step_ns))


def prioritize_fleet(
    of_ranks: Iterable[Finding], of_fleet: Iterable[Finding], ledgers: Mapping[int | None, Ledger]
) -> tuple[Finding, ...]:
    """The findings of a whole fleet in order: those that single ranks have priced, and those about several ranks.

    Args:
        of_ranks: Findings that `price_findings` has priced, those that ranks share told once.
        of_fleet: Findings of rules that compare ranks. Of time that both claim they are promised first.
        ledgers: By rank, as they were before any promise.

    Returns:
        All of them, the largest saving first; together they promise no more than the longest step of any rank.
    """
    own = [_Priced.of(finding) for finding in of_ranks]
    for each in own:
        claim = each.finding.claim
        if claim.rank in ledgers:
            ledgers[claim.rank].spend(claim, each.saving.high_ns or 0)
    step_ns = max((ledger.step_ns for ledger in ledgers.values()), default=0)
    promised = _promise([_Priced.of(finding) for finding in of_fleet], ledgers, step_ns)
    for each in own:
        claim, ledger, limit_ns = each.finding.claim, ledgers.get(each.finding.claim.rank), each.finding.cost_ns
        if ledger is not None and ledger.overlaps(claim):
            limit_ns = min(limit_ns, ledger.limit_ns(claim, kernels=False))
        each.cap(limit_ns)
    everything = sorted([*promised, *own], key=lambda each: each.order)
    for each in everything:
        step_ns -= each.cap(step_ns)
    return tuple(each.build() for each in sorted(everything, key=lambda each: each.order))


def _promise(priced: Sequence[_Priced], ledgers: Mapping[int | None, Ledger], step_ns: int) -> list[_Priced]:
    """Cap the savings in the order of what they are worth, and charge the ledgers; the order after that."""
    for each in sorted(priced, key=lambda each: each.order):
        claim = each.finding.claim
        ledger = ledgers.get(claim.rank)
        limit_ns = min(each.finding.cost_ns, step_ns)
        if ledger is not None and each.saving.basis != "replayed":
            limit_ns = min(limit_ns, ledger.limit_ns(claim))
        promised_ns = each.cap(limit_ns)
        step_ns -= promised_ns
        if ledger is not None:
            ledger.charge(claim, promised_ns)
    return sorted(priced, key=lambda each: each.order)


def _apply_replay(priced: Sequence[_Priced], replay: Replay | None) -> None:
    """Give each finding with an edit what the replay says of its fix."""
    edits = {number: each.finding.edit for number, each in enumerate(priced) if each.finding.edit is not None}
    if replay is None or not edits:
        return
    if replay.gates.reason is not None:
        for number in edits:
            priced[number].evidence = (Evidence("not replayed", replay.gates.reason),)
        return
    order_key_ns = float("inf")
    for turn, fix in enumerate(order_fixes_greedily(replay, edits)):
        each = priced[fix.number]
        finding, high_ns = each.finding, fix.high_ns
        if not edits[fix.number].is_upper_bound:
            # Of a wait that vanishes the rule, too, knows what it is worth: of two pairs of recordings before and after
            # the fix, the replay came nearer in one and the rule in the other (docs/measuring.md).
            high_ns = max(high_ns, finding.saving.expected_ns or 0)
        bound_ns = finding.saving.high_ns
        most_ns = finding.cost_ns if bound_ns is None else min(bound_ns, finding.cost_ns)
        order_key_ns = min(order_key_ns, fix.expected_ns, most_ns)
        each.order_key_ns = order_key_ns - turn * 1e-6  # fixes that save alike keep the order of their turns
        each.saving = Saving(fix.low_ns, fix.expected_ns, high_ns, "replayed").cap(most_ns)
        each.evidence = _evidence_of_turn(fix, replay, priced)


def _evidence_of_turn(fix: OrderedFix, replay: Replay, priced: Sequence[_Priced]) -> tuple[Evidence, ...]:
    evidence = [Evidence(STEP_AFTER, fix.step_after_ns, "ns")]
    if not replay.includes_profiler:
        evidence.append(Evidence(STEP_BEFORE, replay.baseline_step_ns, "ns"))
    if fix.masked_by is not None:
        by = priced[fix.masked_by].finding.rule
        label = f"saves by itself, masked until {by} is fixed"
        evidence.append(Evidence(label, round(max(fix.alone_ns, 0)), "ns"))
    return tuple(evidence)
