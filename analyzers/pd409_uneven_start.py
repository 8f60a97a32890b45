"""PD409: ranks enter the step apart, and wait for the last one at its first collective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._cpu_cores_of_ranks import do_equal_work
from perfdoctor.analyzers._late_rank_causes import (
    collector_ns_per_step,
    collects_apart,
    enter_apart,
    enters_late,
    find_explaining_finding,
    find_told_inside,
    lateness_by_start,
)
from perfdoctor.analyzers._late_rank_texts import blame_evidence, cause_evidence, format_lateness, name_ranks
from perfdoctor.rules import (
    DOMINANT_SHARE,
    Advice,
    Claim,
    Evidence,
    Finding,
    Fleet,
    FleetAnalyzer,
    LateRank,
    RankSummary,
    Saving,
    find_longer_place,
    read_advice,
)
from perfdoctor.rules import intervals as iv

# These know what to change on the late rank: what they say is the finding, and the waiting is reported inside it.
_OWNERS = ("PD101", "PD110", "PD111", "PD112", "PD113", "PD515")
# As in PD401: whose turn it is at fewer collectives than this may be chance.
_MIN_COLLECTIVES = 10


class UnevenStart(FleetAnalyzer):
    """Ranks begin their steps at different times; all others wait for the last one at its first collective."""

    rule = "PD409"
    name = "uneven-start"
    needs = frozenset({"work", "ranks"})
    # As in PD401: ranks are never exactly even, and of many ranks the slowest is later.
    defaults = {"min_share": 0.01, "min_blame": DOMINANT_SHARE, "min_noise": 0.05}
    references = ("https://hta.readthedocs.io/",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """One finding when the waiting for ranks that begin late reaches `min_share`, or in turns `min_noise`."""
        late = fleet.late_rank
        if late is None or late.once:
            return
        if not late.stands_out or late.blame < self.settings["min_blame"]:
            yield from self._check_turns(fleet, late)
            return
        victim = fleet.summary_of(late.matched.tables[late.victim])
        lateness_ns = victim.per_step(late.total_lateness_ns)
        if self.exceeds_min_share(victim, fleet.delay_ns) and enters_late(fleet, late, lateness_ns):
            yield self._report(fleet, late, victim)

    def _check_turns(self, fleet: Fleet, late: LateRank) -> Iterator[Finding]:
        """A finding that ranks take turns at entering late, where enough collectives were matched to tell."""
        table = late.matched.tables[late.longest_waiter]
        rank, waiting = fleet.summary_of(table), late.any_wait_time_of(table)
        cost = rank.per_step(rank.recoverable_ns(iv.total(waiting)))
        if late.collective_count < _MIN_COLLECTIVES or not enter_apart(late):
            return
        if not self.exceeds_min_share(rank, cost, self.settings["min_noise"]):
            return
        if do_equal_work(fleet.summaries, late, cost):
            return
        collecting_ns = max(map(collector_ns_per_step, fleet.summaries), default=0)
        by_collector = collects_apart(fleet.summaries, cost)
        advice = read_advice("ranks enter in turns")
        if by_collector:
            advice = read_advice("ranks collect in turns")
        yield self.finding(
            rank,
            title="Ranks take turns at entering the step late"
            + (", when they collect garbage" if by_collector else "")
            + ": all wait for the last one at its first collective",
            cost_ns=cost,
            advice=advice,
            claim=Claim(waiting),
            confidence=0.6,
            evidence=(
                Evidence("collectives matched over all ranks", late.collective_count, "count"),
                Evidence("most of the waiting that one rank causes", round(100 * late.blame, 1), "%"),
                _start_evidence(late, own=False),
                Evidence("rank that waits longest", rank.rank),
                Evidence("garbage collection per {unit}, at most on a rank", collecting_ns or None, "ns"),
            ),
        )

    def _report(self, fleet: Fleet, late: LateRank, victim: RankSummary) -> Finding:
        """The finding on the rank that enters late."""
        own, is_single, cost = fleet.summary_of(late.table), len(late.co_late) == 1, fleet.delay_ns
        lateness_ns = victim.per_step(late.total_lateness_ns)
        phase = late.find_excess_phase()
        is_loading = phase is not None and phase[0] == "loader"
        cause = find_explaining_finding(fleet, late, _OWNERS)
        line = None if is_loading else find_longer_place(fleet, late, lateness_ns)
        location = line.name.location if line else cause.location if cause else None
        where = ", waiting for its DataLoader" if is_loading else f", at {location.short}" if location else ""
        they, do = ("this rank", "does") if is_single else ("these ranks", "do")
        advice = Advice(
            f"Move what {they} {do} before the step out of the loop, or share it: log every N steps, evaluate on all "
            "ranks, each with its part of the data, save in a thread of its own. All other ranks wait for it at the "
            "first collective.",
            source="https://hta.readthedocs.io/",
        )
        if is_loading:
            advice = Advice(
                f"Make the loader of {they} as fast as those of the others: compare its shard of the data, its disk "
                "and the cores that its workers have; prefetch more batches where single ones take long.",
                source="https://docs.pytorch.org/docs/stable/data.html",
            )
        finding = self.finding(
            own,
            title=f"{name_ranks(late)} {'enters' if is_single else 'enter'} the step "
            f"{format_lateness(late, victim, cost)}{where}: the others wait",
            cost_ns=cost,
            saving=Saving(0, cost, cost, "bounded"),
            advice=advice,
            claim=Claim(fleet.delay, rank=victim.rank),
            confidence=0.9 if late.collective_count >= _MIN_COLLECTIVES and late.persists else 0.6,
            location=location,
            evidence=(
                *blame_evidence(late, victim, _start_evidence(late, own=True)),
                Evidence("garbage collection on it, per {unit}", collector_ns_per_step(own) or None, "ns"),
                *cause_evidence(late, cause, line),
            ),
        )
        owner = cause if cause is not None and cause.cost_ns >= DOMINANT_SHARE * lateness_ns else None
        return replace(
            finding,
            covering_key=owner.key if owner else None,
            covers=tuple(each.key for each in find_told_inside(fleet, late)),
        )


def _start_evidence(late: LateRank, *, own: bool) -> Evidence:
    """Which share of the lateness the starts of the passes explain."""
    start = lateness_by_start(late.matched, late.arrives_last if own else late.synchronizing)
    return Evidence(
        "of the lateness there when its pass begins", round(100 * start.by_start_ns / start.late_ns, 1), "%"
    )
