"""What no finding claims on any rank of a fleet, after the findings that compare ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfdoctor.analysis.communication.stragglers import LateRank
from perfdoctor.report.finding import Finding
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.report.report import UnexplainedSlice
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.units import format_ranges

MIN_SHARE = 0.05
"""Slices from this share of the window on are explained: less would not change what to do first."""
_DETAIL = "communication"


class _Bounded(NamedTuple):
    """A rank whose slice of communication stays, with its size known only within bounds.

    Attributes:
        summary: The rank.
        upper, lower: Its slices if it waits as little, and as much, as it can.
    """

    summary: RankSummary
    upper: tuple[UnexplainedSlice, ...]
    lower: tuple[UnexplainedSlice, ...]


def find_unexplained_in_fleet(fleet: Fleet, findings: Sequence[Finding]) -> tuple[UnexplainedSlice, ...]:
    """What no finding claims on any rank, after the findings that compare ranks: they claim exposed communication.

    Where such a finding claims the wait of one rank for a late one, the waits of all ranks are explained.
    """
    claims: dict[int | None, list[Intervals]] = defaultdict(list)
    for finding in findings:
        if len(finding.claim.intervals):
            claims[finding.claim.rank].append(finding.claim.intervals)
    claimed = {rank: iv.union_of(each) for rank, each in claims.items()}
    late = fleet.late_rank
    if late is None or not _are_waits_claimed(late, claimed):
        return merge_slices(each for summary in fleet.summaries for each in _reduce(summary, claimed))
    slices: list[UnexplainedSlice] = []
    bounded: list[_Bounded] = []
    for summary in fleet.summaries:
        between = _bound(summary, late)
        if between is None:
            slices += _reduce(summary, claimed, late)
        elif between.upper == between.lower:
            slices += between.upper
        else:
            bounded.append(between)
    return merge_slices([*slices, *_resolve_largest(bounded, claimed, late)])


def _are_waits_claimed(late: LateRank, claimed: Mapping[int | None, Intervals]) -> bool:
    return any(
        table.rank in claimed and len(iv.intersect(claimed[table.rank], late.any_wait_time_of(table)))
        for table in late.matched.tables
    )


def _reduce(
    summary: RankSummary, claimed: Mapping[int | None, Intervals], late: LateRank | None = None
) -> tuple[UnexplainedSlice, ...]:
    """The slices of a rank without what is claimed, and without its waits for `late` and others, if it is given."""
    table = summary.collectives
    if not summary.unexplained or table is None:
        return summary.unexplained
    time = claimed.get(summary.rank, iv.EMPTY)
    if late is not None:
        time = iv.union_of((time, late.any_wait_time_of(table)))
    return reduce_slice(summary.unexplained, _DETAIL, iv.total(iv.intersect(time, table.exposed)))


def _bound(summary: RankSummary, late: LateRank) -> _Bounded | None:
    """The slices of a rank between bounds of its waits; None where the bounds do not tell which of them stay."""
    table = summary.collectives
    if table is None:
        return _Bounded(summary, summary.unexplained, summary.unexplained)
    upper = reduce_slice(summary.unexplained, _DETAIL, late.min_wait_ns_of(table))
    lower = reduce_slice(summary.unexplained, _DETAIL, iv.total(table.exposed))
    return _Bounded(summary, upper, lower) if len(upper) == len(lower) else None


def _resolve_largest(
    bounded: Sequence[_Bounded], claimed: Mapping[int | None, Intervals], late: LateRank
) -> list[UnexplainedSlice]:
    """The slices of the ranks, exact for all that may have the largest one: of the others only the rank is said.

    The waits of a rank are slow to compute, and thousands of ranks have much the same.
    """
    largest = 0.0
    slices: list[UnexplainedSlice] = []
    for each in sorted(bounded, key=lambda each: -_share(each.upper)):
        exact = _reduce(each.summary, claimed, late) if _share(each.upper) >= largest else each.lower
        largest = max(largest, _share(exact))
        slices += exact
    return slices


def _share(slices: Sequence[UnexplainedSlice]) -> float:
    return next((each.share for each in slices if each.detail == _DETAIL), 0.0)


def reduce_slice(slices: Iterable[UnexplainedSlice], detail: str, by_ns: int) -> tuple[UnexplainedSlice, ...]:
    """The slices of a rank after a finding that compares ranks has claimed `by_ns` of one of them."""
    kept = []
    for each in slices:
        if each.detail == detail and each.ns:
            left_ns = max(each.ns - by_ns, 0)
            each = replace(each, ns=left_ns, share=each.share * left_ns / each.ns)
        if each.share > MIN_SHARE:
            kept.append(each)
    return tuple(kept)


def merge_slices(slices: Iterable[UnexplainedSlice]) -> tuple[UnexplainedSlice, ...]:
    """One slice for each detail, the largest first: that of the rank with the largest, which names the other ranks."""
    by_detail: dict[str, list[UnexplainedSlice]] = defaultdict(list)
    for each in slices:
        by_detail[each.detail].append(each)
    merged = []
    for group in by_detail.values():
        largest = max(group, key=lambda each: (each.share, -(each.rank or 0)))
        others = [each.rank for each in group if each is not largest and each.rank is not None]
        if others:
            ranks = f"Rank {others[0]} has" if len(others) == 1 else f"Ranks {format_ranges(others)} have"
            largest = replace(largest, sentence=f"{largest.sentence} {ranks} such a slice, too.")
        merged.append(largest)
    return tuple(sorted(merged, key=lambda each: (-each.share, each.detail)))
