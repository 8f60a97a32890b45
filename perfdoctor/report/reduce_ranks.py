"""Ranks in a tree: summaries merge to parts, parts to larger parts, in any order and grouping, with one result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

from perfdoctor.report.finding import Claim
from perfdoctor.report.merge_findings import Key, Shared, joined, shared_among
from perfdoctor.report.rank_summary import RankSummary
from perfdoctor.report.report import Outcome

# Of a rank's own findings a rule over ranks names the worst only.
_KEPT_FINDINGS = 3
_FAN_IN = 64


class Part(NamedTuple):
    """Some ranks of a fleet.

    Attributes:
        summaries: The ranks, sorted; of its own findings each keeps the worst, without evidence and claims.
        shared: Their findings, those that several ranks share once.
        outcomes: What became of each rule on them.
    """

    summaries: tuple[RankSummary, ...]
    shared: Mapping[Key, Shared]
    outcomes: Mapping[str, Outcome]


def leaf(summary: RankSummary) -> Part:
    """One rank."""
    kept = tuple(replace(f, claim=Claim(), evidence=(), fix=None) for f in summary.findings[:_KEPT_FINDINGS])
    return Part(
        (replace(summary, findings=kept, outcomes=()),),
        shared_among(summary.findings),
        {outcome.rule: outcome for outcome in summary.outcomes},
    )


def merged(parts: Iterable[Part]) -> Part:
    """All ranks of some parts. Associative and commutative; memory is that of the result and of `_FAN_IN` parts."""
    waiting = iter(parts)
    done: list[Part] = []
    while batch := list(islice(waiting, _FAN_IN)):
        done.append(_joined(batch))
    while len(done) > 1:
        done = [_joined(done[i : i + _FAN_IN]) for i in range(0, len(done), _FAN_IN)]
    return done[0] if done else Part((), {}, {})


def _joined(parts: list[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    summaries = sorted(chain.from_iterable(part.summaries for part in parts), key=_order)
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in chain.from_iterable(part.outcomes.values() for part in parts):
        outcomes[outcome.rule].append(outcome)
    return Part(
        tuple(summaries),
        joined(part.shared for part in parts),
        {rule: _together(became) for rule, became in outcomes.items()},
    )


def _order(summary: RankSummary) -> tuple[float, str]:
    return (float("inf") if summary.rank is None else summary.rank), summary.trace.path


def _together(became: list[Outcome]) -> Outcome:
    """A failure on any rank is one, and a rule has run where it ran on any; the reason is the first in the alphabet."""

    def of(status: str) -> Iterator[Outcome]:
        return (outcome for outcome in became if outcome.status == status)

    first = next(chain(of("failed"), of("ran"), of("skipped")))
    whys = sorted(outcome.why for outcome in of(first.status) if outcome.why is not None)
    return replace(first, why=whys[0] if whys else None, seconds=round(sum(o.seconds for o in became), 6))
