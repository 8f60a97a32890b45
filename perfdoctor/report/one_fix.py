"""One place with one fix is one finding with one worth, however many rules saw a part of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TypeAlias

from perfdoctor.report.finding import Action, Evidence, Finding
from perfdoctor.savings.ledger import Ledger
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.tables import intervals as iv

_Fix: TypeAlias = tuple[str, tuple[Action, ...]]


def join_by_fix(findings: Iterable[Finding], ledger: Ledger) -> list[Finding]:
    """The findings of a rank, those with one line and one fix as one, in the order of the first of each.

    The fix is the same where the rules give the same actions. What makes results wrong is never part of another.
    """
    groups: dict[_Fix | int, list[Finding]] = defaultdict(list)
    for number, finding in enumerate(findings):
        groups[_fix_of(finding) or number].append(finding)
    return [_join(group, ledger) for group in groups.values()]


def _fix_of(finding: Finding) -> _Fix | None:
    if finding.makes_results_wrong or finding.location is None or not finding.actions:
        return None
    return str(finding.location), finding.actions


def _join(group: Sequence[Finding], ledger: Ledger) -> Finding:
    """One finding for a group: the one with a line to change that costs most, with the cost and claim of all.

    What happens once adds nothing to what every step costs. Each other part is named in the evidence.
    """
    lead = max(group, key=lambda each: (each.comes_back, each.fix is not None, each.cost_ns))
    others = [each for each in group if each is not lead]
    if not others:
        return lead
    evidence = tuple(Evidence(f"part of it ({each.rule}): {each.title}", each.cost_ns, "ns") for each in others)
    lead = replace(lead, evidence=(*lead.evidence, *evidence))
    costly = [each for each in (lead, *others) if each.comes_back]
    if len(costly) < 2:
        return lead
    claim = Claim(
        iv.union_of(each.claim.intervals for each in costly),
        all(each.claim.kernels for each in costly),
        lead.claim.rank,
        sum(each.claim.unshared_ns for each in costly),
    )
    cost_ns = _cost_of_all(costly, claim, ledger)
    edits = [each.edit for each in costly if each.edit is not None]
    return replace(
        lead,
        cost_ns=cost_ns,
        share_of_step=min(cost_ns / ledger.step_ns, 1.0) if ledger.step_ns else None,
        saving=_join_savings([each.saving for each in costly], cost_ns),
        confidence=min(each.confidence for each in costly),
        claim=claim,
        edit=reduce(or_, edits) if edits else None,
    )


def _cost_of_all(costly: Sequence[Finding], claim: Claim, ledger: Ledger) -> int:
    """What all parts cost: time that two rules saw counts once, and what one measured is at least what it says."""
    claimed_ns = replace(ledger, claimed=iv.EMPTY).limit_ns(claim, kernels=False) if claim.total_ns else 0
    largest_ns = max(each.cost_ns for each in costly)
    return max(min(claimed_ns, sum(each.cost_ns for each in costly), ledger.step_ns), largest_ns)


def _join_savings(savings: Sequence[Saving], cost_ns: int) -> Saving:
    """What the fix saves of all that the rules found: no more than it costs."""
    known = [saving for saving in savings if saving.basis != "unknown"]
    if not known:
        return Saving()
    low_ns = max(saving.low_ns or 0 for saving in known)
    expected = [saving.expected_ns for saving in known]
    expected_ns = None if None in expected else sum(ns or 0 for ns in expected)
    high_ns = sum(saving.high_ns or saving.expected_ns or 0 for saving in known)
    return Saving(low_ns, expected_ns, max(high_ns, low_ns, expected_ns or 0), known[0].basis).cap(cost_ns)
