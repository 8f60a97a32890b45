"""Merges the findings that several ranks share: the costliest one is reported, with the ranks that have it.

Merging is associative and commutative: parts of a fleet merge in any order and grouping, on any machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import RANKS, Evidence, Finding, FindingKey
from perfdoctor.units import format_ranges


@frozen_dataclass
class SharedFinding:
    """The findings of some ranks with one rule, subject and location.

    Attributes:
        findings: All findings while there is one rank, else only the costliest.
        ranks: The ranks that have such a finding.
        low_ns: The lowest of their `saving.low_ns`; None where no finding has one.
    """

    findings: tuple[Finding, ...]
    ranks: frozenset[int]
    low_ns: int | None

    def merge(self) -> Iterator[Finding]:
        """The findings for the report: those of a single rank as they are, those of several ranks as one."""
        if len(self.ranks) < 2:
            yield from self.findings
            return
        costliest = self.findings[0]
        saving = costliest.saving
        if saving.low_ns is not None and self.low_ns is not None:
            saving = replace(saving, low_ns=self.low_ns)
        evidence = (Evidence("ranks", format_ranges(self.ranks), id=RANKS), Evidence("costliest rank", costliest.rank))
        yield replace(costliest, rank=None, saving=saving, evidence=(*costliest.evidence, *evidence))


def group_findings(findings: Iterable[Finding]) -> dict[FindingKey, SharedFinding]:
    """The findings by rule, subject and location."""
    groups: dict[FindingKey, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.key].append(finding)
    return {
        key: _make_shared(
            tuple(group),
            frozenset(f.rank for f in group if f.rank is not None),
            min((f.saving.low_ns for f in group if f.saving.low_ns is not None), default=None),
        )
        for key, group in groups.items()
    }


def merge_groups(parts: Iterable[Mapping[FindingKey, SharedFinding]]) -> dict[FindingKey, SharedFinding]:
    """The groups of several parts of a fleet, merged by key."""
    groups: dict[FindingKey, list[SharedFinding]] = defaultdict(list)
    for part in parts:
        for key, shared in part.items():
            groups[key].append(shared)
    return {key: group[0] if len(group) == 1 else _merge(group) for key, group in groups.items()}


def _merge(group: list[SharedFinding]) -> SharedFinding:
    return _make_shared(
        tuple(chain.from_iterable(shared.findings for shared in group)),
        frozenset().union(*(shared.ranks for shared in group)),
        min((shared.low_ns for shared in group if shared.low_ns is not None), default=None),
    )


def _make_shared(findings: tuple[Finding, ...], ranks: frozenset[int], low_ns: int | None) -> SharedFinding:
    return SharedFinding(findings if len(ranks) < 2 else (max(findings, key=_cost_order),), ranks, low_ns)


def _cost_order(finding: Finding) -> tuple[int, int, float, list[str]]:
    """Sort key: the cost, then the lowest rank, then what makes the choice within that rank unique."""
    return (
        finding.cost_ns,
        -(finding.rank or 0),
        finding.saving.likely_ns,
        [str(each.value) for each in finding.evidence],
    )


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, where those that several ranks share become the costliest one with a list of these ranks."""
    return [finding for shared in group_findings(findings).values() for finding in shared.merge()]


def ranks_with(finding: Finding) -> frozenset[int] | None:
    """The ranks that have a finding; None where it is about all of them."""
    if finding.rank is not None:
        return frozenset((finding.rank,))
    listed = finding.find_evidence(RANKS)
    return _parse_ranges(listed) if isinstance(listed, str) else None


def _parse_ranges(text: str) -> frozenset[int]:
    """The numbers of `format_ranges`."""
    runs = [part.split("-") for part in text.split(", ")]
    return frozenset(chain.from_iterable(range(int(run[0]), int(run[-1]) + 1) for run in runs))
