"""Ranks in a tree: summaries merge to parts, parts to larger parts, in any order and grouping, with one result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from perfdoctor.report.merge_findings import Key, SharedFinding, group_findings, merge_groups
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.report import Outcome
from perfdoctor.savings.saving import Claim

# Of a rank's own findings a rule over ranks names the worst only.
_KEPT_FINDINGS = 3
_FAN_IN = 64


@dataclass(frozen=True, slots=True)
class Part:
    """Some ranks of a fleet.

    Attributes:
        summaries: The ranks, sorted; of its own findings each keeps the worst, without evidence and claims.
        shared: Their findings, those that several ranks share once.
        outcomes: What became of each rule on them.
    """

    summaries: tuple[RankSummary, ...] = ()
    shared: Mapping[Key, SharedFinding] = field(default_factory=dict)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)


def from_rank(summary: RankSummary) -> Part:
    """The part that holds one rank."""
    worst = tuple(replace(f, claim=Claim(), evidence=(), fix=None) for f in summary.findings[:_KEPT_FINDINGS])
    return Part(
        (replace(summary, findings=worst, outcomes=()),),
        group_findings(summary.findings),
        {outcome.rule: outcome for outcome in summary.outcomes},
    )


def reduce_parts(parts: Iterable[Part]) -> Part:
    """All ranks of some parts. Associative and commutative; memory is that of the result and of `_FAN_IN` parts."""
    unread = iter(parts)
    merged: list[Part] = []
    while batch := list(islice(unread, _FAN_IN)):
        merged.append(_merge(batch))
    while len(merged) > 1:
        merged = [_merge(merged[i : i + _FAN_IN]) for i in range(0, len(merged), _FAN_IN)]
    return merged[0] if merged else Part()


def _merge(parts: list[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    summaries = sorted(chain.from_iterable(part.summaries for part in parts), key=_order)
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in chain.from_iterable(part.outcomes.values() for part in parts):
        outcomes[outcome.rule].append(outcome)
    return Part(
        tuple(summaries),
        merge_groups(part.shared for part in parts),
        {rule: _merge_outcomes(of_parts) for rule, of_parts in outcomes.items()},
    )


def _order(summary: RankSummary) -> tuple[float, str]:
    return (float("inf") if summary.rank is None else summary.rank), summary.trace.path


def _merge_outcomes(outcomes: list[Outcome]) -> Outcome:
    """A failure on any rank is one, and a rule has run where it ran on any; the reason is the first in the alphabet."""

    def with_status(status: str) -> Iterator[Outcome]:
        return (outcome for outcome in outcomes if outcome.status == status)

    first = next(chain(with_status("failed"), with_status("ran"), with_status("skipped")))
    whys = sorted(outcome.why for outcome in with_status(first.status) if outcome.why is not None)
    return replace(first, why=whys[0] if whys else None, seconds=round(sum(o.seconds for o in outcomes), 6))
