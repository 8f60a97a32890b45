"""Which places of the account hold the time of each finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.places.account_by_place import PlaceAccount
from perfdoctor.places.place import Place
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


def with_findings(places: Iterable[Place], findings: Sequence[Finding]) -> tuple[Place, ...]:
    """The places of all ranks, each with the positions of the findings whose time lies there.

    A finding without claimed time, as one that compares ranks, belongs to the place at its location.
    """
    numbers: dict[object, list[int]] = defaultdict(list)
    for number, finding in enumerate(findings):
        for key in finding.places or filter(None, (_line_of(finding.location),)):
            numbers[key].append(number)

    def are_at(place: Place) -> tuple[int, ...]:
        keys = (place.name, _line_of(place.location))
        found = {number for key in keys if key is not None for number in numbers.get(key, ())}
        return tuple(sorted(each for each in found if findings[each].rank in (None, place.rank)))

    return tuple(replace(place, findings=are_at(place)) for place in places)


def _line_of(location: SourceLocation | None) -> tuple[str, int | None] | None:
    return None if location is None else (location.file, location.line)
