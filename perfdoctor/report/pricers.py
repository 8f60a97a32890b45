"""Two ways to price the fixes of a rank behind one interface: replays of its trace, and a ledger of claimed time.

A replay says what a step takes after any set of fixes, so that what a fix saves in its turn is the difference of two
replays. A ledger knows only which time each fix would free, and promises none of it twice. It prices where no replay is
trusted, what comes without an edit, and several ranks at once, whose traces are not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import SEVERITIES, Evidence, Finding, Severity, end_of_severity, severity_of
from perfdoctor.savings.edits import busiest_ns, remove_cause
from perfdoctor.savings.fix_order import MASKED_SHARE, MIN_COVERED_SHARE, SavingRange, order_fixes_greedily
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving import Saving, SavingAlone, worth_ns
from perfdoctor.savings.saving_bounds import SavingBounds
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

_WORTH_A_CHANGE: frozenset[Severity] = frozenset({"medium", "high"})

# Of a finding with a price from a table, what was measured on so much of its time is about the same work.
_MOST_OF_CLAIM = 0.75


@dataclass(slots=True)
class Priced:
    """A finding as its rule made it, and its price so far.

    Attributes:
        finding: The finding.
        saving: What its fix saves in its turn, and alone.
        order_key_ns: What it is ordered by instead of its saving.
        cost_ns: What its cause costs.
        step_ns: The step that cost and saving are of.
        bound_ns: The most that the fix can save: the time of what it takes away, see `SavingBounds`; None where that is
            not known.
        cost_bound_ns: The same of the whole cause.
        covered_by: The finding after whose fix next to nothing is left for this one.
        evidence: What the replay adds.
        cause: The finding that it is a symptom of, or that was measured where it has a table: it stands below that and
            is covered by it.
    """

    finding: Finding
    saving: Saving
    order_key_ns: float | None
    cost_ns: int
    step_ns: float
    bound_ns: int | None = None
    cost_bound_ns: int | None = None
    covered_by: Priced | None = None
    evidence: tuple[Evidence, ...] = ()
    cause: Priced | None = None

    @classmethod
    def of(cls, finding: Finding, ledger: Ledger | None, step_ns: float, bounds: SavingBounds | None = None) -> Priced:
        """The finding before its pricing; what its fix saves alone is what its rule says, where nothing else does.

        What was neither measured nor replayed may save nothing, whatever its rule says.
        """
        bound_ns = cost_bound_ns = None
        if bounds is not None:
            edit = finding.edit
            bound_ns = bounds.of_fix(edit, finding.claim)
            cost_bound_ns = None if edit is None else bounds.of_fix(remove_cause(edit), finding.claim)
        limit_ns = min(finding.cost_ns, _shortenable_ns([finding], step_ns))
        saving = finding.saving.cap(limit_ns if bound_ns is None else min(limit_ns, bound_ns))
        if saving.basis == "bounded":
            saving = replace(saving, low_ns=0)
        if saving.alone == SavingAlone():
            # Whatever other fixes do, faster kernels save at most the time that the CPU waits for them.
            alone = saving if ledger is None else saving.cap(ledger.limit_ns(finding.claim))
            saving = replace(saving, alone=SavingAlone(alone.low_ns, alone.expected_ns, alone.high_ns))
        return cls(finding, saving, finding.order_key_ns, finding.cost_ns, step_ns, bound_ns, cost_bound_ns)

    @property
    def key_ns(self) -> float:
        """What it is ordered by: its worth, where the order says nothing else.

        Of a range without an expected figure that is the middle, and the cost is its end where no bound is known: what
        binds is not to stand behind a small fix whose worth is known better. It stays below what is more severe.
        """
        if self.cause is not None:
            return min(self._own_key_ns, math.nextafter(self.cause.key_ns, -math.inf))
        return self._own_key_ns

    @property
    def _own_key_ns(self) -> float:
        if self.order_key_ns is not None:
            return self.order_key_ns
        saving = self.saving
        if self.severity == "info" or not self.step_ns:
            return self.worth_ns
        if saving.expected_ns is not None:
            # What its rule lets be low at most stands behind what is known better, and takes no time from it.
            most_ns = math.nextafter(end_of_severity(self.finding.severity) * self.step_ns, 0)
            return min(self.worth_ns, most_ns)
        is_worth_it = self.severity in _WORTH_A_CHANGE
        if is_worth_it and saving.high_ns is None:
            saving = replace(saving, high_ns=self.cost_ns, basis="bounded")
        own_ns = worth_ns(saving, self.finding.confidence)
        # A rule may say that a finding is low at most, whatever it costs.
        most = min(severity_of(own_ns / self.step_ns), self.finding.severity, key=SEVERITIES.index)
        limit_ns = math.nextafter(end_of_severity(most) * self.step_ns, 0)
        return min(max(own_ns, saving.likely_ns) if is_worth_it else own_ns, limit_ns)

    @property
    def sort_key(self) -> tuple[bool, float, int, float, int, str, str, str]:
        """What findings are ordered by: wrong results first, then the worth; unique within a report."""
        finding = self.finding
        severity = SEVERITIES.index(self.severity)
        return (
            not finding.makes_results_wrong,
            -self.key_ns,
            -severity,
            -self.saving.likely_ns,
            -self.cost_ns,
            finding.rule,
            finding.subject,
            str(finding.location),
        )

    @property
    def worth_ns(self) -> float:
        """What the fix is worth in its turn."""
        return worth_ns(self.saving, self.finding.confidence)

    @property
    def severity(self) -> Severity:
        """The severity by what the fix is worth alone, and at most medium where that was not measured or replayed.

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
        worth = severity_of(alone_ns / self.step_ns if self.step_ns else None)
        most: Severity = "high" if self.saving.basis in ("measured", "replayed") else "medium"
        return min(finding.severity, most, worth, key=SEVERITIES.index)

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

    def note_coverage(self, others: Iterable[Priced]) -> None:
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

    def find_overlap(self, others: Iterable[Priced]) -> Priced | None:
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
            claim = replace(claim, intervals=shared, unshared_ns=claim.total_ns - iv.total(shared))
        share = finding.share_of_step
        if self.cost_ns != finding.cost_ns:
            share = min(self.cost_ns / self.step_ns, 1.0) if self.step_ns else None
        covering = self.covered_by or self.cause
        return replace(
            finding,
            severity=self.severity,
            cost_ns=self.cost_ns,
            share_of_step=share,
            saving=self.saving,
            order_key_ns=self.order_key_ns,
            evidence=(*finding.evidence, *self.evidence),
            fix=None if self.saves_nothing else finding.fix,
            actions=() if self.saves_nothing else finding.actions,
            claim=claim,
            covering_key=finding.covering_key if covering is None else covering.finding.key,
            edit=None,  # row numbers mean nothing without their trace
            scope=None,
        )


def link_causes(fixes: Sequence[Priced]) -> None:
    """Let each finding know the one that it stands below.

    A symptom: the cause at its line, of several the one that costs most. A cause happens in each step and has something
    to change; the lines of two ranks are different places. One whose price is from a table: what was measured here on
    nearly all of its time.
    """
    lasting = (each for each in fixes if each.finding.comes_back and each.finding.severity != "info")
    causes = [each for each in lasting if not each.finding.is_symptom]
    for each in fixes:
        if each.finding.is_symptom and each.finding.location is not None:
            place = each.finding.rank, str(each.finding.location)
            at_line = [other for other in causes if (other.finding.rank, str(other.finding.location)) == place]
            each.cause = max(at_line, key=lambda other: (other.cost_ns, other.finding.key), default=None)
        elif each.finding.has_table_price:
            measured = (other for other in fixes if other.saving.basis == "measured" and _is_within(each, other))
            each.cause = max(measured, key=lambda other: (other.saving.likely_ns, other.finding.key), default=None)


def _is_within(inner: Priced, outer: Priced) -> bool:
    """Whether one finding's time is nearly all within that of another one."""
    claim, other = inner.finding.claim, outer.finding.claim
    shared_ns = iv.total(iv.intersect(claim.intervals, other.intervals)) if claim.rank == other.rank else 0
    return shared_ns > _MOST_OF_CLAIM * iv.total(claim.intervals)


class Pricer(Protocol):
    """Says what fixes save, alone and one after the other."""

    @property
    def step_ns(self) -> int:
        """How long a step takes before any fix."""

    def price(self, fixes: Sequence[Priced]) -> list[Priced]:
        """Set what the cause of each costs, and what its fix saves alone and in its turn; in order, the best first."""


@frozen_dataclass
class LedgerPricer:
    """Prices by claimed time: each fix gets what no better one has claimed, all together no more than the step.

    Attributes:
        ledgers: By the number of a rank what can still be promised of its time; charged with each promise.
        step_ns: The step that all fixes together shorten.
        reason: Why no replay is trusted, for the evidence of findings that have an edit; None where none was asked for.
    """

    ledgers: Mapping[int | None, Ledger]
    step_ns: int
    reason: str | None = None

    def price(self, fixes: Sequence[Priced]) -> list[Priced]:
        """Cap each saving by its cost, by what is left of its claimed time, and by what is left of the step.

        What was replayed takes the other fixes into account already: it is charged, and capped by cost and step alone.
        """
        charged: list[Priced] = []
        step_ns = self.step_ns
        for each in sorted(fixes, key=lambda each: each.sort_key):
            claim = each.finding.claim
            ledger = self.ledgers.get(claim.rank)
            if each.finding.edit is not None and self.reason is not None:
                each.evidence = _evidence_without_replay(each.finding, self.reason)
            limit_ns = min(each.cost_ns, step_ns)
            if ledger is not None and each.saving.basis != "replayed":
                each.cap(min(ledger.limit_ns(claim), _shortenable_ns([f.finding for f in (*charged, each)], step_ns)))
                each.note_coverage(charged)
            promised_ns = each.cap(limit_ns)
            step_ns -= promised_ns
            if ledger is not None:
                ledger.claim_time(claim, promised_ns)
            charged.append(each)
        _put_before_blocked(fixes)
        return sorted(fixes, key=lambda each: each.sort_key)


def _put_before_blocked(fixes: Iterable[Priced]) -> None:
    """Let fixes that take away what blocks another one come before it: they are worth what that saves, too."""
    with_edits = [(each, each.finding.edit) for each in fixes if each.finding.edit is not None]
    for blocked, edit in with_edits:
        for each, other in with_edits:
            if each is not blocked and each.key_ns <= blocked.key_ns and other.unblocks(edit):
                each.order_key_ns = math.nextafter(blocked.key_ns, math.inf)
                saves = Evidence(
                    f"until it is fixed {blocked.finding.rule} cannot be, which saves", blocked.saving.expected_ns, "ns"
                )
                each.evidence = (*each.evidence, saves)


@frozen_dataclass
class ReplayPricer:
    """Prices by replays of the trace with edits; what has no edit gets what these leave of its claimed time.

    Attributes:
        replay: The replay of the rank, whose gates are open.
        rest: Prices what has no edit.
    """

    replay: Replay
    rest: LedgerPricer

    @property
    def step_ns(self) -> int:
        """How long a step takes before any fix."""
        return self.replay.baseline_step_ns

    def price(self, fixes: Sequence[Priced]) -> list[Priced]:
        """Set cost, saving, order and evidence of each finding with an edit by the replay of its fix."""
        edits = {number: each.finding.edit for number, each in enumerate(fixes) if each.finding.edit is not None}
        confidence = {number: fixes[number].finding.confidence for number in edits}
        ordered = order_fixes_greedily(self.replay, edits, confidence)
        for fix in ordered:
            each = fixes[fix.number]
            each.step_ns = self.step_ns
            # A cause that another one masks costs nothing alone: it costs what its fix saves after the other.
            each.cost_ns = fix.cost_ns if fix.masked_by is None else max(fix.cost_ns, fix.in_turn.high_ns)
            # The rule's own bound is time right behind the cause. What else the cause drains comes back, too.
            each.cost_ns = max(each.cost_ns, _estimate_of_rule_ns(each.finding))
            if each.cost_bound_ns is not None:
                each.cost_ns = min(each.cost_ns, each.cost_bound_ns)
            limit_ns = each.cost_ns if each.bound_ns is None else min(each.cost_ns, each.bound_ns)
            alone, in_turn = (_saving_of_range(each, saved).cap(limit_ns) for saved in (fix.alone, fix.in_turn))
            in_turn = in_turn.cap(fix.limit_ns)
            each.saving = replace(in_turn, alone=SavingAlone(alone.low_ns, alone.expected_ns, alone.high_ns))
            each.covered_by = None if fix.covered_by is None else fixes[fix.covered_by]
            if fix.masked_by is not None:
                by = fixes[fix.masked_by].finding.rule
                label = f"saves by itself, masked until {by} is fixed"
                each.evidence = (Evidence(label, fix.alone.expected_ns, "ns"),)
        order_key_ns = float("inf")
        for position, fix in enumerate(ordered):
            if fix.needed_by is None:  # else it stands before a fix that saves more, which its own worth does not limit
                order_key_ns = min(order_key_ns, fixes[fix.number].worth_ns)
                # Fixes with equal savings keep the order of the replay.
                fixes[fix.number].order_key_ns = order_key_ns - position * 1e-6
        return self.rest.price(fixes)


def _saving_of_range(each: Priced, saved: SavingRange) -> Saving:
    """A range of a replay as a saving. With only an upper bound, no middle value is expected."""
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
    if not edit.removed_cpu_time and not len(edit.unblocked_calls):
        return 0
    return finding.saving.expected_ns or 0


def _shortenable_ns(findings: Iterable[Finding], step_ns: float) -> int:
    """What is left of a step but for the time of the busiest resource that the fixes of some findings move work to."""
    busy_ns = busiest_ns((finding.edit, 1.0) for finding in findings if finding.edit is not None)
    return max(int(step_ns - busy_ns), 0)


def _evidence_without_replay(finding: Finding, reason: str) -> tuple[Evidence, ...]:
    """Why a fix was not replayed; and that time other than that of kernels is the least that its cause costs."""
    not_replayed = Evidence("not replayed", reason)
    if finding.claim.kernels:
        return (not_replayed,)
    return (not_replayed, Evidence("the cost", "at least: what the recording shows, without what else it delays"))
