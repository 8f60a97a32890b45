"""Findings that several ranks share are told once, by the rank that pays most, with the ranks that they hold for.

Merging is associative and commutative: parts of a fleet merge in any order and grouping, on any machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeAlias

from perfdoctor.report.finding import Evidence, Finding

Key: TypeAlias = tuple[str, str, str]
"""Rule, subject and place."""

RANKS = "ranks"
"""Label of the evidence that names the ranks that a finding holds for."""


class Shared(NamedTuple):
    """One rule, subject and place, over some ranks.

    Attributes:
        told: All findings while they are of one rank, else the costliest.
        ranks: Those that it holds for.
        low_ns: What each of the ranks saves at least; None where none says.
    """

    told: tuple[Finding, ...]
    ranks: frozenset[int]
    low_ns: int | None

    def findings(self) -> Iterator[Finding]:
        """What the report says of it."""
        if len(self.ranks) < 2:
            yield from self.told
            return
        worst = self.told[0]
        saving = worst.saving
        if saving.low_ns is not None and self.low_ns is not None:
            saving = replace(saving, low_ns=self.low_ns)
        told = (Evidence(RANKS, in_ranges(self.ranks)), Evidence("costliest rank", worst.rank))
        yield replace(worst, rank=None, saving=saving, evidence=(*worst.evidence, *told))


def shared_among(findings: Iterable[Finding]) -> dict[Key, Shared]:
    """Some findings by what they are about."""
    groups: dict[Key, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.rule, finding.subject, str(finding.location)].append(finding)
    return {
        key: _collapsed(
            tuple(group),
            frozenset(f.rank for f in group if f.rank is not None),
            min((f.saving.low_ns for f in group if f.saving.low_ns is not None), default=None),
        )
        for key, group in groups.items()
    }


def joined(parts: Iterable[Mapping[Key, Shared]]) -> dict[Key, Shared]:
    """What several parts of a fleet share among them."""
    groups: dict[Key, list[Shared]] = defaultdict(list)
    for part in parts:
        for key, shared in part.items():
            groups[key].append(shared)
    return {key: group[0] if len(group) == 1 else _of_all(group) for key, group in groups.items()}


def _of_all(group: list[Shared]) -> Shared:
    return _collapsed(
        tuple(chain.from_iterable(shared.told for shared in group)),
        frozenset().union(*(shared.ranks for shared in group)),
        min((shared.low_ns for shared in group if shared.low_ns is not None), default=None),
    )


def _collapsed(told: tuple[Finding, ...], ranks: frozenset[int], low_ns: int | None) -> Shared:
    return Shared(told if len(ranks) < 2 else (max(told, key=_weight),), ranks, low_ns)


def _weight(finding: Finding) -> tuple[int, int, float, str]:
    """By cost; between equals the lowest rank speaks, and of that rank always the same finding."""
    return finding.cost_ns, -(finding.rank or 0), finding.expected_saving_ns, finding.title


def merge_ranks(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each rule, subject and place: the costliest rank speaks for all, and names the others."""
    return [finding for shared in shared_among(findings).values() for finding in shared.findings()]


def in_ranges(ranks: Iterable[int]) -> str:
    """Numbers in words that stay short for thousands: "0-3, 7"; two in a row are no range."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
