"""Why a rank is late: a finding or a line of the user's code that costs this rank more than it costs the others.

PD401 tells of ranks that fall behind inside the step, PD409 of those that enter it late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from perfdoctor.analyzers._cpu_cores_of_ranks import does_equal_work
from perfdoctor.rules import (
    BoolArray,
    Finding,
    Fleet,
    Int32Array,
    Int64Array,
    LateRank,
    MatchedCollectives,
    RankSummary,
    phases,
)

# From this share of the lateness on the start explains it: what is left is the scatter of equal work.
START_SHARE = 0.7
# The passes of which the starts are known have to hold so much of all lateness.
_MIN_KNOWN_SHARE = 0.5
_PASS_BEGINS: WeakKeyDictionary[MatchedCollectives, tuple[Int64Array, Int64Array, Int32Array]] = WeakKeyDictionary()
# A finding that the other ranks have too explains the lateness only when it costs the late rank so many times as much.
_MIN_COST_RATIO = 1.5
# Phases that take CPU time. A rank without a GPU that is longer in them than the others has more to do, or lacks a
# core.
_WORKING = frozenset({"forward", "backward", "optimizer", "compute", "launch", "communication"})
# What these say on a rank is reported inside the finding that the others wait for it: its CPU is busy, no more.
_REPORTED_INSIDE = ("PD103", "PD104")
# From this share of the waiting on the collector is why ranks enter the step apart.
_MIN_SHARE = 0.5


class StartLateness(NamedTuple):
    """The lateness at the first collectives of passes, and the part that the start of the pass explains, in ns.

    A rank that begins late and then takes as long as the others arrives as late as it began; one that has more work, or
    is slower, begins with the others and falls behind inside the step::

        rank 0    | pass          all_reduce  waits           |
        rank 1    |  logs       | pass          all_reduce    |      entered the step late: the start explains it all
        rank 2    | pass, slower                all_reduce    |      began with rank 0

    Attributes:
        late_ns: How much later than the second-latest rank the last one arrives, summed.
        by_start_ns: The part of it by which it began its pass later than the others.
        passes: How many passes these are.
    """

    late_ns: int
    by_start_ns: int
    passes: int


def starts_late(late: LateRank) -> bool:
    """Whether the late rank enters its passes late; False where that is not known of most of its lateness."""
    start = lateness_by_start(late.matched, late.arrives_last)
    known = start.late_ns >= _MIN_KNOWN_SHARE * late.total_lateness_ns
    return start.late_ns > 0 and known and start.by_start_ns >= START_SHARE * start.late_ns


def start_apart(late: LateRank) -> bool:
    """Whether ranks that take turns at coming last do so because they enter their passes apart."""
    matched = late.matched
    start = lateness_by_start(matched, late.synchronizing)
    every_ns = int((matched.last_arrival_ns - matched.second_arrival_ns)[late.synchronizing].sum())
    return start.late_ns >= _MIN_KNOWN_SHARE * every_ns > 0 and start.by_start_ns >= START_SHARE * start.late_ns


def lateness_by_start(matched: MatchedCollectives, counts: BoolArray) -> StartLateness:
    """The lateness at those of the collectives that count which begin a pass on all their ranks, by its start."""
    of_last, of_others, known = _find_pass_begins(matched)
    rows = np.flatnonzero(counts & (known == matched.rank_count))
    late_ns = (matched.last_arrival_ns - matched.second_arrival_ns)[rows]
    by_start_ns = np.clip(of_last[rows] - of_others[rows], 0, late_ns)
    return StartLateness(int(late_ns.sum()), int(by_start_ns.sum()), len(rows))


def _find_pass_begins(matched: MatchedCollectives) -> tuple[Int64Array, Int64Array, Int32Array]:
    """When the last arriver began its pass before each collective, when the last of the others, and of how many known.

    It takes a look at all rows of all ranks, so it is kept as long as the matched collectives are.
    """
    kept = _PASS_BEGINS.get(matched)
    if kept is not None:
        return kept
    of_last = np.full(len(matched), np.iinfo(np.int64).min)
    of_others = np.full(len(matched), np.iinfo(np.int64).min)
    known = np.zeros(len(matched), np.int32)
    for index, (table, clock, collective_of_row) in enumerate(
        zip(matched.tables, matched.clocks, matched.collective_of_row, strict=True)
    ):
        since_ns = table.since_pass_start_ns
        if len(since_ns) != len(table):
            continue
        rows = np.flatnonzero((collective_of_row >= 0) & (since_ns >= 0))
        # No collective comes twice among the rows of a rank.
        collective = collective_of_row[rows]
        begin_ns = clock.to_common(table.start_ns[rows] - since_ns[rows])
        is_last = matched.last_arriver[collective] == index
        of_last[collective[is_last]] = begin_ns[is_last]
        others = collective[~is_last]
        of_others[others] = np.maximum(of_others[others], begin_ns[~is_last])
        known[collective] += 1
    _PASS_BEGINS[matched] = of_last, of_others, known
    return of_last, of_others, known


def enters_late(fleet: Fleet, late: LateRank, lateness_ns: int) -> bool:
    """Whether the rank is late already when it begins its pass, so that PD409 tells of it, and not PD401.

    A rank that is late because its last backward pass or its optimizer took longer falls behind inside the step. Where
    only forward passes were recorded, nothing is known of what a rank does between them.
    """
    phase = late.find_excess_phase()
    if any(each.context.is_forward_only for each in fleet.summaries):
        return False
    if late.once or not starts_late(late) or (phase is not None and phase[0] in (phases.BACKWARD, phases.OPTIMIZER)):
        return False
    return not lacks_core(fleet, late, lateness_ns)


def enter_apart(late: LateRank) -> bool:
    """Whether ranks take turns at coming last because they enter their passes apart: that is reported by PD409, too."""
    return not late.once and start_apart(late)


def lacks_core(fleet: Fleet, late: LateRank, lateness_ns: int) -> bool:
    """Whether the rank is late with no more work than the others, on a machine whose cores are busy."""
    phase = late.find_excess_phase()
    if phase is not None and phase[0] not in _WORKING:
        return False
    return does_equal_work(fleet.summaries, late, lateness_ns)


def find_explaining_finding(fleet: Fleet, late: LateRank, rules: tuple[str, ...]) -> Finding | None:
    """The late rank's costliest finding of some rules that costs it more than the other ranks.

    Args:
        fleet: All ranks.
        late: The late rank.
        rules: Ids of rules, or the beginnings of ids.
    """
    for finding in sorted(fleet.summary_of(late.table).findings, key=lambda f: -f.cost_ns):
        if (
            rules
            and finding.rule.startswith(rules)
            and finding.cost_ns > _MIN_COST_RATIO * _median_cost_of_others(fleet, late, finding)
        ):
            return finding
    return None


def _median_cost_of_others(fleet: Fleet, late: LateRank, like: Finding) -> int:
    """The median of what the same finding costs the other ranks, in ns; a rank without it counts as 0."""
    costs = [
        max((f.cost_ns for f in summary.findings if (f.rule, f.subject) == (like.rule, like.subject)), default=0)
        for summary in fleet.summaries
        if summary.rank != late.rank
    ]
    return median_low(costs) if costs else 0


def find_told_inside(fleet: Fleet, late: LateRank) -> Iterable[Finding]:
    """The late rank's findings that say no more than that its CPU is busy, where they cost it more than the others."""
    for finding in fleet.summary_of(late.table).findings:
        excess = finding.cost_ns > _MIN_COST_RATIO * _median_cost_of_others(fleet, late, finding)
        if finding.rule in _REPORTED_INSIDE and excess:
            yield finding


def collector_ns_per_step(rank: RankSummary) -> int:
    """The mean pause of the collector in a step without the profiler; 0 where there is none or none was captured."""
    pauses = _pauses_of(rank)
    return round(sum(pauses) / len(pauses)) if pauses else 0


def collects_apart(ranks: Sequence[RankSummary], waiting_ns: int) -> bool:
    """Whether the collector runs in different steps on the ranks, for at least half of the waiting in a step."""
    pauses = [_pauses_of(rank) for rank in ranks]
    steps = min(map(len, pauses), default=0)
    if not steps:
        return False
    # Where all ranks collect in the same step none waits for another: only the longest beyond the shortest counts.
    apart_ns = sum(max(column) - min(column) for column in zip(*(each[-steps:] for each in pauses), strict=True))
    return bool(apart_ns >= _MIN_SHARE * waiting_ns * steps)


def _pauses_of(rank: RankSummary) -> list[int]:
    """The collector's pauses in each step of the base window, in ns; empty where they were not captured."""
    known = [ns for ns in rank.facts.base.gc_ns if ns is not None]
    return known if len(known) == len(rank.facts.base.gc_ns) else []
