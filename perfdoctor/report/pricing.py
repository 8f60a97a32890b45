"""Prices findings: what each cause costs, what each fix saves alone and next to all the others, severity and order.

The findings of a rank are priced where its trace is (`price_findings`). Causes with an edit are replayed: alone for
what they cost, and each fix on top of those before it, so that no time is promised twice; the others keep their bounds.
`prioritize_fleet` then orders the findings of all ranks. Rules that compare ranks know the cause of a wait, so time
that both kinds of rules claim goes to them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfdoctor.report.finding import SEVERITIES, STEP_AFTER, Evidence, Finding, FindingKey, Severity, severity_of
from perfdoctor.report.merge_findings import ranks_with
from perfdoctor.savings.fix_order import MASKED_SHARE, MIN_COVERED_SHARE, OrderedFix, SavingRange, order_fixes_greedily
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving import Saving, SavingAlone, worth_ns
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals


@dataclass(slots=True)
class _Priced:
    """A finding as its rule made it, and its price so far.

    Attributes:
        finding: The finding.
        saving: What its fix saves in its turn, and alone.
        order_key_ns: What it is ordered by instead of its saving.
        cost_ns: What its cause costs.
        step_ns: The step that cost and saving are of.
        covered_by: The finding after whose fix next to nothing is left for this one.
        evidence: What the replay adds.
    """

    finding: Finding
    saving: Saving
    order_key_ns: float | None
    cost_ns: int
    step_ns: float
    covered_by: _Priced | None = None
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, finding: Finding, ledger: Ledger | None, step_ns: float) -> _Priced:
        """The finding before its pricing; what its fix saves alone is what its rule says, where nothing else does."""
        saving = finding.saving.cap(finding.cost_ns)
        if saving.alone == SavingAlone():
            # Whatever other fixes do, faster kernels save at most the time that the CPU waits for them.
            alone = saving if ledger is None else saving.cap(ledger.limit_ns(finding.claim))
            saving = replace(saving, alone=SavingAlone(alone.low_ns, alone.expected_ns, alone.high_ns))
        return cls(finding, saving, finding.order_key_ns, finding.cost_ns, step_ns)

    @property
    def sort_key(self) -> tuple[bool, float, int, int, str, str, str]:
        finding = self.finding
        key_ns = self.worth_ns if self.order_key_ns is None else self.order_key_ns
        severity = SEVERITIES.index(self.severity)
        return (
            not finding.makes_results_wrong,
            -key_ns,
            -severity,
            -self.cost_ns,
            finding.rule,
            finding.subject,
            finding.title,
        )

    @property
    def worth_ns(self) -> float:
        """What the fix is worth in its turn."""
        return worth_ns(self.saving, self.finding.confidence)

    @property
    def severity(self) -> Severity:
        """The severity by what the fix is worth alone, and at most what the rule allows.

        Where not even a bound is known the cost is one. A finding that costs nothing keeps the severity that its rule
        gave: it is about the recording. One about wrong results is always what its rule says.
        """
        finding, alone = self.finding, self.saving.alone
        if finding.makes_results_wrong:
            return finding.severity
        bounded = replace(alone, high_ns=self.cost_ns) if alone.high_ns is None else alone
        alone_ns = worth_ns(bounded, finding.confidence)
        if not self.cost_ns and not alone_ns and finding.saving.basis != "replayed":
            return finding.severity
        return min(
            finding.severity, severity_of(alone_ns / self.step_ns if self.step_ns else None), key=SEVERITIES.index
        )

    @property
    def saves_nothing(self) -> bool:
        """Whether the fix is known to save nothing, alone and in its turn: then it is not offered."""
        return all(
            each.expected_ns == 0 or (each.expected_ns is None and each.high_ns == 0)
            for each in (self.saving, self.saving.alone)
        )

    def cap(self, limit_ns: int) -> int:
        """Cap the saving at `limit_ns` per step; returns the most that it promises now."""
        self.saving = self.saving.cap(max(limit_ns, 0))
        return self.saving.high_ns or 0

    def note_coverage(self, others: Iterable[_Priced]) -> None:
        """Find out which fix has claimed most of the time of this one, if next to nothing is left for it."""
        if self.finding.makes_results_wrong:
            return
        alone_ns, claim = self.saving.alone.likely_ns, self.finding.claim
        if alone_ns < MIN_COVERED_SHARE * self.step_ns or self.saving.likely_ns >= MASKED_SHARE * alone_ns:
            return
        shared_ns, latest = 0, None
        for other in others:
            if other.finding.claim.rank == claim.rank:
                overlap_ns = iv.total(iv.intersect(other.finding.claim.intervals, claim.intervals))
                if overlap_ns > shared_ns:
                    shared_ns, latest = overlap_ns, other
        self.covered_by = latest or self.covered_by

    def find_overlap(self, others: Iterable[_Priced]) -> _Priced | None:
        """The fix that frees nearly all of the same time, as both alone would save more than the whole step."""
        alone_ns = self.saving.alone.high_ns or 0
        other = max(others, key=lambda other: other.saving.alone.high_ns or 0, default=None)
        overlap_ns = 0.0 if other is None else (other.saving.alone.high_ns or 0) + alone_ns - self.step_ns
        return other if overlap_ns > (1 - MASKED_SHARE) * alone_ns else None

    def build(self, rank: int | None = None, shareable: Intervals | None = None) -> Finding:
        """The finding with its price; a claim on `rank` is reduced to its time in `shareable`, unless that is None."""
        finding, claim = self.finding, self.finding.claim
        if shareable is not None and claim.rank == rank:
            shared = iv.intersect(claim.intervals, shareable)
            claim = replace(claim, intervals=shared, exclusive_ns=claim.total_ns - iv.total(shared))
        share = finding.share_of_step
        if self.cost_ns != finding.cost_ns:
            share = min(self.cost_ns / self.step_ns, 1.0) if self.step_ns else None
        return replace(
            finding,
            severity=self.severity,
            cost_ns=self.cost_ns,
            share_of_step=share,
            saving=self.saving,
            order_key_ns=self.order_key_ns,
            evidence=(*finding.evidence, *self.evidence),
            fix=None if self.saves_nothing else finding.fix,
            claim=claim,
            covering_key=finding.covering_key if self.covered_by is None else self.covered_by.finding.key,
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
    """The findings of one rank with what their causes cost, what their fixes save, and their severity; in order.

    Args:
        findings: What the rules found on the rank.
        rank: The number of the rank.
        ledger: The time of the rank that can still be promised.
        replay: The replay of the rank; None where there is none. Where the replay cannot be trusted, the evidence of
            each finding with an edit says why, and cost and saving stay those that the rule gave.
        shareable: The time that rules which compare ranks may claim as well. Of all other claimed time only the length
            remains. None leaves the intervals of all claims as they are.

    Returns:
        The findings, the largest saving first. Each promises at most its cost and, unless it was replayed, the part of
        its claimed time that no finding before it has claimed; kernel time also at most what is left of the CPU's wait
        for the GPU. Together they promise no more than the step. A replayed saving takes the other fixes into account
        already: it is charged to the ledger but not limited by it.
    """
    priced = [_Priced.of(finding, ledger, ledger.step_ns) for finding in findings]
    _apply_replay(priced, replay)
    ordered = _cap_savings(priced, {rank: ledger}, ledger.step_ns)
    step_ns = ledger.step_ns if replay is None else replay.baseline_step_ns
    return _finish([each.build(rank, shareable) for each in ordered], step_ns, {rank: step_ns})


def prioritize_fleet(
    rank_findings: Iterable[Finding],
    fleet_findings: Iterable[Finding],
    ledgers: Mapping[int | None, Ledger],
    own_steps_ns: Mapping[int | None, int] | None = None,
) -> tuple[Finding, ...]:
    """The findings of a whole fleet in order: those of single ranks and those about several ranks.

    Args:
        rank_findings: Findings of single ranks, priced by `price_findings` and merged by `merge_findings`.
        fleet_findings: Findings of rules that compare ranks. Time that both kinds claim goes to them first.
        ledgers: The ledger of each rank, as before any promise.
        own_steps_ns: For each rank its mean step without its waits for the late rank; None where there are no waits.

    Returns:
        All of them, the largest saving first; together they promise no more than the longest step of any rank.
    """
    step_ns = max((ledger.step_ns for ledger in ledgers.values()), default=0)
    own_steps_ns = own_steps_ns or {rank: ledger.step_ns for rank, ledger in ledgers.items()}

    def start_pricing(finding: Finding) -> _Priced:
        ledger = ledgers.get(finding.claim.rank)
        of_rank_ns = step_ns if ledger is None else ledger.step_ns
        return _Priced.of(finding, ledger, of_rank_ns)

    of_ranks = [start_pricing(finding) for finding in rank_findings]
    of_fleet = [start_pricing(finding) for finding in fleet_findings]
    for each in of_ranks:
        claim = each.finding.claim
        if claim.rank in ledgers:
            ledgers[claim.rank].spend(claim, each.saving.high_ns or 0)
    of_fleet = _cap_savings(of_fleet, ledgers, step_ns)
    for each in of_ranks:
        claim, ledger, limit_ns = each.finding.claim, ledgers.get(each.finding.claim.rank), each.cost_ns
        if ledger is not None and ledger.overlaps(claim):
            limit_ns = min(limit_ns, ledger.limit_ns(claim, kernels=False))
            each.cap(limit_ns)
            each.note_coverage(of_fleet)
        each.cap(limit_ns)
        told_in = next((other for other in of_fleet if _tells(other.finding, each.finding)), None)
        if told_in is not None:
            each.cap(0)
            each.covered_by = told_in
    everything = sorted([*of_fleet, *of_ranks], key=lambda each: each.sort_key)
    overlaps = [each.find_overlap(everything[:position]) for position, each in enumerate(everything)]
    left_ns = step_ns
    for other, each in sorted(zip(overlaps, everything, strict=True), key=lambda pair: pair[0] is not None):
        left_ns -= each.cap(left_ns)
        if other is not None and each.saving.likely_ns < MASKED_SHARE * each.saving.alone.likely_ns:
            each.covered_by = each.covered_by or other
    ordered = sorted(everything, key=lambda each: each.sort_key)
    return _finish([each.build() for each in ordered], step_ns, own_steps_ns)


def _tells(of_fleet: Finding, of_rank: Finding) -> bool:
    """Whether a finding about several ranks tells one on the rank that it is about."""
    return of_rank.rank is not None and of_fleet.rank == of_rank.rank and of_rank.key in of_fleet.covers


def step_after_fixes_ns(
    findings: Sequence[Finding], mean_step_ns: int, step_ns: int, own_steps_ns: Mapping[int | None, int]
) -> int | None:
    """How long a step takes after all fixes, as expected; None where no fix has an expected saving.

    Args:
        findings: The findings of a report, priced.
        mean_step_ns: The mean step of the rank whose step is longest: what savings are of.
        step_ns: The step that users know, such as the median: the same share of it is saved.
        own_steps_ns: For each rank its mean step without its waits for the late rank.
    """
    if not mean_step_ns or all(finding.saving.expected_ns is None for finding in findings):
        return None
    steps = _StepsOfRanks(own_steps_ns, mean_step_ns)
    for finding in findings:
        steps.apply(finding)
    return round(step_ns * steps.longest_share)


class _StepsOfRanks:
    """How long the step of each rank takes after some fixes: the longest is the step of all.

    The time by which a rank is late is its own time, so its own fixes save of the same time as making it as fast as
    the others. Waits for it are no rank's own time. They shrink with its step.
    """

    def __init__(self, own_steps_ns: Mapping[int | None, int], before_ns: int) -> None:
        """Start with no fix.

        Args:
            own_steps_ns: For each rank its mean step without its waits for the late rank.
            before_ns: The step that savings are of.
        """
        longest_ns = max(own_steps_ns.values(), default=0)
        self._own_share = {rank: ns / longest_ns if longest_ns else 1.0 for rank, ns in own_steps_ns.items()}
        self._before_ns = before_ns
        self._by_own_fixes_ns = dict.fromkeys(own_steps_ns, 0)
        self._by_being_on_time_ns = dict.fromkeys(own_steps_ns, 0)

    def apply(self, finding: Finding) -> None:
        """Shorten the steps of the ranks that have the finding by its expected saving."""
        is_late = finding.rank is not None and finding.claim.rank not in (None, finding.rank)
        saved_ns = self._by_being_on_time_ns if is_late else self._by_own_fixes_ns
        ranks = ranks_with(finding)
        for rank in saved_ns:
            if ranks is None or rank is None or rank in ranks:
                saved_ns[rank] += finding.saving.expected_ns or 0

    @property
    def longest_share(self) -> float:
        """The longest step now, as a share (0 to 1) of the step before any fix."""
        left = (
            share - max(self._by_own_fixes_ns[rank], self._by_being_on_time_ns[rank]) / max(self._before_ns, 1)
            for rank, share in self._own_share.items()
        )
        return max(max(left, default=1.0), 0.0)


def _finish(findings: Sequence[Finding], before_ns: int, own_steps_ns: Mapping[int | None, int]) -> tuple[Finding, ...]:
    """Ordered findings with what depends on their order: which covers which, and the step after each fix."""
    steps = _StepsOfRanks(own_steps_ns, before_ns)
    first_position: dict[FindingKey, int] = {}
    finished = []
    for position, finding in enumerate(findings):
        steps.apply(finding)
        evidence = tuple(each for each in finding.evidence if each.label != STEP_AFTER)
        if finding.saving.basis == "replayed" and finding.saving.expected_ns is not None:
            evidence = (*evidence, Evidence(STEP_AFTER, round(before_ns * steps.longest_share), "ns"))
        covered_by = None if finding.covering_key is None else first_position.get(finding.covering_key)
        severity = finding.severity if covered_by is None else min(finding.severity, "low", key=SEVERITIES.index)
        finished.append(replace(finding, evidence=evidence, covered_by=covered_by, severity=severity))
        first_position.setdefault(finding.key, position)
    return tuple(finished)


def _cap_savings(priced: Sequence[_Priced], ledgers: Mapping[int | None, Ledger], step_ns: int) -> list[_Priced]:
    """Cap the savings, the largest first, and charge the ledgers; returns the findings in their new order."""
    charged: list[_Priced] = []
    for each in sorted(priced, key=lambda each: each.sort_key):
        claim = each.finding.claim
        ledger = ledgers.get(claim.rank)
        limit_ns = min(each.cost_ns, step_ns)
        if ledger is not None and each.saving.basis != "replayed":
            each.cap(ledger.limit_ns(claim))
            each.note_coverage(charged)
        promised_ns = each.cap(limit_ns)
        step_ns -= promised_ns
        if ledger is not None:
            ledger.charge(claim, promised_ns)
        charged.append(each)
    return sorted(priced, key=lambda each: each.sort_key)


def _apply_replay(priced: Sequence[_Priced], replay: Replay | None) -> None:
    """Set cost, saving, order and evidence of each finding with an edit by the replay of its fix."""
    edits = {number: each.finding.edit for number, each in enumerate(priced) if each.finding.edit is not None}
    if replay is None or not edits:
        return
    if replay.gates.reason is not None:
        for number in edits:
            priced[number].evidence = _evidence_without_replay(priced[number].finding, replay.gates.reason)
        return
    order_key_ns = float("inf")
    confidence = {number: priced[number].finding.confidence for number in edits}
    for position, fix in enumerate(order_fixes_greedily(replay, edits, confidence)):
        each = priced[fix.number]
        each.step_ns = replay.baseline_step_ns
        # A cause that another one masks costs nothing alone: it costs what its fix saves after the other.
        each.cost_ns = fix.cost_ns if fix.masked_by is None else max(fix.cost_ns, fix.in_turn.high_ns)
        each.cost_ns = max(each.cost_ns, _estimate_of_rule_ns(each.finding))
        # The rule's own bound is time right behind the cause. What else the cause drains comes back, too.
        limit_ns = each.cost_ns
        alone, in_turn = (_saving_of_range(each, saved).cap(limit_ns) for saved in (fix.alone, fix.in_turn))
        each.saving = replace(in_turn, alone=SavingAlone(alone.low_ns, alone.expected_ns, alone.high_ns))
        order_key_ns = min(order_key_ns, each.worth_ns)
        each.order_key_ns = order_key_ns - position * 1e-6  # fixes with equal savings keep the order of the replay
        each.covered_by = None if fix.covered_by is None else priced[fix.covered_by]
        each.evidence = _evidence_of_replay(fix, priced)


def _saving_of_range(each: _Priced, saved: SavingRange) -> Saving:
    """A range of a replay as a saving. Of a fix of which only a bound is known nothing in between is expected."""
    finding, edit = each.finding, each.finding.edit
    if edit is not None and edit.is_upper_bound and edit.at_least is None:
        return Saving(saved.low_ns, None, saved.high_ns, "replayed")
    high_ns = max(saved.high_ns, _estimate_of_rule_ns(finding))
    return Saving(saved.low_ns, saved.expected_ns, high_ns, "replayed")


def _estimate_of_rule_ns(finding: Finding) -> int:
    """What a rule itself expects of the end of a wait, as idle time that it measured; 0 where it says nothing of that.

    In two of three pairs of recordings before and after the end of such a wait the truth lay between the replay and the
    rule, in the third under both (benchmarks/README.md). Of kernels the rule does not know whether the CPU waits for
    them.
    """
    edit = finding.edit
    if edit is None or edit.is_upper_bound or finding.claim.kernels:
        return 0
    return finding.saving.expected_ns or 0


def _evidence_of_replay(fix: OrderedFix, priced: Sequence[_Priced]) -> tuple[Evidence, ...]:
    evidence = []
    if fix.masked_by is not None:
        by = priced[fix.masked_by].finding.rule
        evidence.append(Evidence(f"saves by itself, masked until {by} is fixed", fix.alone.expected_ns, "ns"))
    return tuple(evidence)


def _evidence_without_replay(finding: Finding, reason: str) -> tuple[Evidence, ...]:
    """Why a fix was not replayed; and that time other than that of kernels is the least that its cause costs."""
    not_replayed = Evidence("not replayed", reason)
    if finding.claim.kernels:
        return (not_replayed,)
    return (not_replayed, Evidence("the cost", "at least: what the recording shows, without what else it delays"))
