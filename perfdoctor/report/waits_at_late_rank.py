"""Waits for a late rank belong to the place that makes it late, on whichever rank they pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low
from typing import NamedTuple

from perfdoctor.analysis.communication.stragglers import LateRank
from perfdoctor.places.place import WAITS_FOR_RANKS, Place, PlaceName, Within
from perfdoctor.places.placed_window import apportion
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.trace.tables import intervals as iv

# Of more ranks the waits are slow to compute: their lower bounds tell as much.
_MANY_RANKS = 64
# Two or three places may make a rank late together; what takes less of its lateness makes it late with others.
_MIN_SHARE_OF_LATENESS = 0.3


class LongerPlace(NamedTuple):
    """A line of the user's code that takes a rank longer than the others, and by how much, in ns a step."""

    name: PlaceName
    more_ns: int


def find_longer_place(fleet: Fleet, late: LateRank, lateness_ns: int) -> LongerPlace | None:
    """The line that takes the late rank longest against the median of the other ranks, waits for ranks left out.

    None where no line takes enough of `lateness_ns`.
    """

    def working(summary: RankSummary) -> dict[PlaceName, int]:
        return {each.name: each.working_ns for each in summary.places if each.kind == "line"}

    others = [working(summary) for summary in fleet.summaries if summary.rank != late.rank]
    longer = [
        LongerPlace(name, ns - median_low([each.get(name, 0) for each in others]))
        for name, ns in working(fleet.summary_of(late.table)).items()
    ]
    longest = max(longer, key=lambda place: place.more_ns, default=None)
    return longest if longest is not None and longest.more_ns >= _MIN_SHARE_OF_LATENESS * lateness_ns else None


def places_of_ranks(fleet: Fleet) -> tuple[Place, ...]:
    """The places of all ranks, with the waits for a late rank at the line that makes it late."""
    late = fleet.late_rank
    longer = None
    if late is not None and late.stands_out and not late.once:
        victim = fleet.summary_of(late.matched.tables[late.victim])
        longer = find_longer_place(fleet, late, victim.per_step(late.total_lateness_ns))
    if late is None or longer is None:
        return tuple(place for summary in fleet.summaries for place in summary.places)
    waits = _waits_ns(fleet, late)
    return tuple(
        place
        for summary in fleet.summaries
        for place in _move_waits(summary.places, waits.get(summary.rank, 0), longer.name, late.rank)
    )


def _waits_ns(fleet: Fleet, late: LateRank) -> Mapping[int | None, int]:
    """How long each rank waits for the late one, a step."""
    few = len(late.matched.tables) <= _MANY_RANKS
    return {
        table.rank: fleet.summary_of(table).per_step(
            iv.total(late.wait_time(number)) if few else late.min_own_wait_ns_of(table)
        )
        for number, table in enumerate(late.matched.tables)
        if number not in late.co_late
    }


def _move_waits(places: tuple[Place, ...], wait_ns: int, to: PlaceName, late_rank: int | None) -> tuple[Place, ...]:
    """The places of a rank with some of its waits at a line; they add up as before."""
    there = [(number, name, place.causes[name]) for number, place in enumerate(places) for name in WAITS_FOR_RANKS]
    wait_ns = min(wait_ns, sum(ns for _, _, ns in there))
    if not wait_ns:
        return places
    causes = [dict(place.causes) for place in places]
    moved = dict.fromkeys(WAITS_FOR_RANKS, 0)
    for (number, name, _), ns in zip(there, apportion(wait_ns, [ns for _, _, ns in there]), strict=True):
        causes[number][name] -= ns
        moved[name] += ns
    changed = [_with_causes(place, each) for place, each in zip(places, causes, strict=True)]
    waiting = Within(f"waiting for rank {late_rank}", "wait", 0, 0, wait_ns)
    at = next((number for number, place in enumerate(changed) if place.name == to), None)
    if at is None:
        whole = places[0]
        step_ns = sum(place.ns for place in places)
        zero = dict.fromkeys(whole.causes, 0)
        changed.append(
            Place(
                whole.rank, to.file, to.line, to.function, None, to.module, to.annotation, to.kind, wait_ns,
                min(wait_ns / step_ns, 1.0), zero | moved, 0, None, (waiting,),
            )
        )  # fmt: skip
    else:
        sums = {name: ns + moved.get(name, 0) for name, ns in changed[at].causes.items()}
        changed[at] = replace(_with_causes(changed[at], sums), within=(waiting, *changed[at].within))
    return tuple(sorted(changed, key=lambda place: -place.ns))


def _with_causes(place: Place, causes: Mapping[str, int]) -> Place:
    """A place with other causes, and the time and share that follow."""
    ns = sum(causes.values())
    share = None if place.share is None else place.share * ns / place.ns if place.ns else 0.0
    backward_ns = min(place.backward_ns, ns)
    return replace(place, causes=causes, ns=ns, share=share, backward_ns=backward_ns)
