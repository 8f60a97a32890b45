"""Findings that several ranks share are told once, by the rank that pays most, with the ranks that they hold for.

Merging is associative and commutative: parts of a fleet merge in any order and grouping, on any machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from perfdoctor.report.finding import Evidence, Finding

Key: TypeAlias = tuple[str, str, str]
"""Rule, subject and location."""

RANKS = "ranks"
"""Label of the evidence that names the ranks that a finding holds for."""


@dataclass(frozen=True, slots=True)
class SharedFinding:
    """The findings with one rule, subject and location, over some ranks.

    Attributes:
        of_ranks: All of them while they are of one rank, else the costliest.
        ranks: The ranks that they hold for.
        low_ns: What each of the ranks saves at least; None where none says.
    """

    of_ranks: tuple[Finding, ...]
    ranks: frozenset[int]
    low_ns: int | None

    def findings(self) -> Iterator[Finding]:
        """The findings as the report has them."""
        if len(self.ranks) < 2:
            yield from self.of_ranks
            return
        costliest = self.of_ranks[0]
        saving = costliest.saving
        if saving.low_ns is not None and self.low_ns is not None:
            saving = replace(saving, low_ns=self.low_ns)
        evidence = (Evidence(RANKS, format_ranges(self.ranks)), Evidence("costliest rank", costliest.rank))
        yield replace(costliest, rank=None, saving=saving, evidence=(*costliest.evidence, *evidence))


def group_findings(findings: Iterable[Finding]) -> dict[Key, SharedFinding]:
    """Some findings by rule, subject and location."""
    groups: dict[Key, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.rule, finding.subject, str(finding.location)].append(finding)
    return {
        key: _share(
            tuple(group),
            frozenset(f.rank for f in group if f.rank is not None),
            min((f.saving.low_ns for f in group if f.saving.low_ns is not None), default=None),
        )
        for key, group in groups.items()
    }


def merge_groups(parts: Iterable[Mapping[Key, SharedFinding]]) -> dict[Key, SharedFinding]:
    """The grouped findings of several parts of a fleet as those of all of them together."""
    groups: dict[Key, list[SharedFinding]] = defaultdict(list)
    for part in parts:
        for key, shared in part.items():
            groups[key].append(shared)
    return {key: group[0] if len(group) == 1 else _merge(group) for key, group in groups.items()}


def _merge(group: list[SharedFinding]) -> SharedFinding:
    return _share(
        tuple(chain.from_iterable(shared.of_ranks for shared in group)),
        frozenset().union(*(shared.ranks for shared in group)),
        min((shared.low_ns for shared in group if shared.low_ns is not None), default=None),
    )


def _share(findings: tuple[Finding, ...], ranks: frozenset[int], low_ns: int | None) -> SharedFinding:
    return SharedFinding(findings if len(ranks) < 2 else (max(findings, key=_weight),), ranks, low_ns)


def _weight(finding: Finding) -> tuple[int, int, float, str]:
    """By cost; between equals the lowest rank speaks, and of that rank always the same finding."""
    return finding.cost_ns, -(finding.rank or 0), finding.saving.likely_ns, finding.title


def merge_ranks(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each rule, subject and location: the costliest rank speaks for all, and names the others."""
    return [finding for shared in group_findings(findings).values() for finding in shared.findings()]


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers in words that stay short for thousands: "0-3, 7"; two in a row are no range."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
