"""Which places of the account hold the time of each finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.places.account_by_place import PlaceAccount
from perfdoctor.places.place import OUTSIDE, Place
from perfdoctor.report.finding import Finding

# Small places that hold the last of the time that a finding claims are not what it is about.
_MOST_OF_CLAIM = 0.98


def locate_findings(findings: Iterable[Finding], places: PlaceAccount) -> list[Finding]:
    """The findings on a rank, each with the places that hold the time it claims; without a claim it has none."""
    return [_locate(finding, places) if len(finding.claim.intervals) else finding for finding in findings]


def _locate(finding: Finding, places: PlaceAccount) -> Finding:
    times = places.places_of(places.timed.pieces.within(finding.claim.intervals))
    left_ns, found = sum(ns for _, ns in times) * _MOST_OF_CLAIM, []
    for place, ns in times:
        if left_ns <= 0:
            break
        found.append(place)
        left_ns -= ns
    return replace(finding, places=tuple(found))


def with_findings(places: Sequence[Place], findings: Sequence[Finding]) -> tuple[Place, ...]:
    """The places of all ranks, each with the positions of the findings whose time lies there.

    A finding without places, as one that compares ranks, belongs to the place at its location, and without one to those
    that wait for other ranks: no other time may be claimed over ranks. What has no row of its own is in the last one.
    """
    lines = {(place.rank, _line_of(place.location)): place.name for place in places if place.location is not None}
    shown = {(place.rank, place.name) for place in places}
    of_rank: dict[int | None, list[int]] = defaultdict(list)  # thousands of ranks have findings of their own
    for number, finding in enumerate(findings):
        is_of_all = finding.rank is None or not (finding.places or finding.location)
        of_rank[None if is_of_all else finding.rank].append(number)
    waiting = {(p.rank, p.name) for p in places if 2 * (p.ns - p.working_ns) > p.ns}

    def is_at(finding: Finding, place: Place) -> bool:
        if not finding.places and not finding.location:
            return (place.rank, place.name) in waiting
        if not finding.places:
            return place.name == lines.get((place.rank, _line_of(finding.location)))
        rest = place.name == OUTSIDE and any((place.rank, each) not in shown for each in finding.places)
        return rest or place.name in finding.places

    def findings_at(place: Place) -> tuple[int, ...]:
        of_place = of_rank[None] if place.rank is None else sorted(of_rank[None] + of_rank[place.rank])
        return tuple(number for number in of_place if is_at(findings[number], place))

    return tuple(replace(place, findings=findings_at(place)) for place in places)


def _line_of(location: SourceLocation | None) -> tuple[str, int | None] | None:
    return None if location is None else (location.file, location.line)
