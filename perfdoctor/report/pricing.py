"""Prices findings: what each cause costs, what each fix saves alone and next to all the others, severity and order.

The findings of a rank are priced where its trace is (`price_findings`), by a pricer. `prioritize_fleet` then orders the
findings of all ranks. Rules that compare ranks know the cause of a wait, so time that both kinds of rules claim goes to
them first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfdoctor.report.finding import SEVERITIES, STEP_AFTER, Evidence, Finding, FindingKey
from perfdoctor.report.merge_findings import ranks_with
from perfdoctor.report.one_fix import join_by_fix
from perfdoctor.report.pricers import LedgerPricer, Priced, Pricer, ReplayPricer, link_causes
from perfdoctor.savings.fix_order import MASKED_SHARE
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving_bounds import SavingBounds
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace.tables.intervals import Intervals


def price_findings(
    findings: Iterable[Finding],
    rank: int | None,
    ledger: Ledger,
    replay: Replay | None = None,
    shareable: Intervals | None = None,
    bounds: SavingBounds | None = None,
) -> tuple[Finding, ...]:
    """The findings of one rank with what their causes cost, what their fixes save, and their severity; in order.

    Args:
        findings: What the rules found on the rank. Those of one line and one fix become one.
        rank: The number of the rank.
        ledger: The time of the rank that can still be promised.
        replay: The replay of the rank; None where there is none. Where the replay cannot be trusted, the evidence of
            each finding with an edit says why, and cost and saving stay those that the rule gave.
        shareable: The time that rules which compare ranks may claim as well. Of all other claimed time only the length
            remains. None leaves the intervals of all claims as they are.
        bounds: What bounds each saving whoever says it; None where that is not known.

    Returns:
        The findings, the largest saving first. Each promises at most its cost, the time of what its fix takes away
        and, unless it was replayed, the part of its claimed time that no finding before it has claimed; kernel time
        also at most what is left of the CPU's wait for the GPU. Together they promise no more than the step. A replayed
        saving takes the other fixes into account already: it is charged to the ledger but not limited by it.
    """
    untrusted = None if replay is None else replay.gates.reason
    by_ledger = LedgerPricer({rank: ledger}, ledger.step_ns, untrusted)
    pricer: Pricer = by_ledger
    if replay is not None and untrusted is None:
        pricer = ReplayPricer(replay, by_ledger)
    joined = join_by_fix(findings, ledger)
    fixes = [Priced.of(finding, ledger, ledger.step_ns, bounds) for finding in joined]
    link_causes(fixes)
    ordered = pricer.price(fixes)
    own_steps_ns = {rank: pricer.step_ns}
    return _finish([each.build(rank, shareable) for each in ordered], pricer.step_ns, own_steps_ns)


def doubt_prices(findings: Iterable[Finding], core_share: float) -> tuple[Finding, ...]:
    """Priced findings of a recording whose times are partly those of other programs.

    Args:
        findings: What `price_findings` returned.
        core_share: The share (0 to 1) of the time for which the program's thread had the core that it asked for.

    Returns:
        The findings in their order. Each saves at least that share of what was found, and at most the inverse of it,
        within its cost. None is worth more than a medium one, except for wrong results and memory, which are no matter
        of time.
    """

    def widen(low_ns: int | None, high_ns: int | None, cost_ns: int) -> tuple[int | None, int | None]:
        wider_ns = None if high_ns is None else max(min(round(high_ns / core_share), cost_ns), high_ns)
        return None if low_ns is None else round(low_ns * core_share), wider_ns

    def doubt(finding: Finding) -> Finding:
        if finding.makes_results_wrong or not finding.cost_ns:
            return finding
        saving, alone = finding.saving, finding.saving.alone
        low_ns, high_ns = widen(saving.low_ns, saving.high_ns, finding.cost_ns)
        low_alone_ns, high_alone_ns = widen(alone.low_ns, alone.high_ns, finding.cost_ns)
        alone = replace(alone, low_ns=low_alone_ns, high_ns=high_alone_ns)
        severity = min(finding.severity, "medium", key=SEVERITIES.index)
        saving = replace(saving, low_ns=low_ns, high_ns=high_ns, alone=alone)
        return replace(finding, severity=severity, saving=saving)

    return tuple(map(doubt, findings))


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

    def start_pricing(finding: Finding) -> Priced:
        ledger = ledgers.get(finding.claim.rank)
        of_rank_ns = step_ns if ledger is None else ledger.step_ns
        return Priced.of(finding, ledger, of_rank_ns)

    of_ranks = [start_pricing(finding) for finding in rank_findings]
    of_fleet = [start_pricing(finding) for finding in fleet_findings]
    link_causes([*of_ranks, *of_fleet])
    for each in of_ranks:
        claim = each.finding.claim
        if claim.rank in ledgers:
            ledgers[claim.rank].reduce_kernel_budget(claim, each.saving.high_ns or 0)
    of_fleet = LedgerPricer(ledgers, step_ns).price(of_fleet)
    for each in of_ranks:
        claim, ledger, limit_ns = each.finding.claim, ledgers.get(each.finding.claim.rank), each.cost_ns
        if ledger is not None and ledger.overlaps(claim):
            limit_ns = min(limit_ns, ledger.limit_ns(claim, kernels=False))
            each.cap(limit_ns)
            each.note_coverage(of_fleet)
        each.cap(limit_ns)
        reported_in = next((other for other in of_fleet if _already_reports(other.finding, each.finding)), None)
        if reported_in is not None:
            each.cap(0)
            each.covered_by = reported_in
    everything = sorted([*of_fleet, *of_ranks], key=lambda each: each.sort_key)
    overlaps = [each.find_overlap(everything[:position]) for position, each in enumerate(everything)]
    left_ns = step_ns
    for other, each in sorted(zip(overlaps, everything, strict=True), key=lambda pair: pair[0] is not None):
        left_ns -= each.cap(left_ns)
        if other is not None and each.saving.likely_ns < MASKED_SHARE * each.saving.alone.likely_ns:
            each.covered_by = each.covered_by or other
    ordered = sorted(everything, key=lambda each: each.sort_key)
    return _finish([each.build() for each in ordered], step_ns, own_steps_ns)


def _already_reports(of_fleet: Finding, of_rank: Finding) -> bool:
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
    if not mean_step_ns or not any(finding.saving.expected_ns for finding in findings):
        return None
    steps = _StepsOfRanks(own_steps_ns, mean_step_ns)
    for finding in findings:
        steps.apply(finding)
    return round(step_ns * steps.longest_share)


class _StepsOfRanks:
    """How long the step of each rank takes after some fixes: the longest is the step of all.

    The time by which a rank is late is its own time, so its own fixes save of the same time as making it as fast as
    the others. Waits for it are not own time of any rank. They shrink with its step.
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
        evidence = tuple(each for each in finding.evidence if each.id != STEP_AFTER)
        if finding.saving.basis == "replayed" and finding.saving.expected_ns is not None:
            after_ns = round(before_ns * steps.longest_share)
            evidence = (*evidence, Evidence("step after this fix and those above", after_ns, "ns", STEP_AFTER))
        covered_by = None if finding.covering_key is None else first_position.get(finding.covering_key)
        severity = finding.severity if covered_by is None else min(finding.severity, "low", key=SEVERITIES.index)
        finished.append(replace(finding, evidence=evidence, covered_by=covered_by, severity=severity))
        first_position.setdefault(finding.key, position)
    return tuple(finished)
