"""PD401: one rank comes last to the collectives, and the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from perfdoctor.analyzers._cpu_cores_of_ranks import do_equal_work
from perfdoctor.analyzers._late_rank_causes import (
    enter_apart,
    enters_late,
    find_explaining_finding,
    find_told_inside,
    lacks_core,
)
from perfdoctor.analyzers._late_rank_texts import (
    blame_evidence,
    cause_evidence,
    format_lateness,
    name_hot_path,
    name_ranks,
)
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
    advise,
    find_longer_place,
    read_advice,
)
from perfdoctor.rules import intervals as iv

# By the phase that a late rank spends more time in: how a title names it, and the rules whose findings explain it.
_PHASES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "loader": ("waiting for its DataLoader", ("PD101",)),
    "forward": ("in its forward pass", ("PD2", "PD3", "PD102", "PD104")),
    "backward": ("in its backward pass", ("PD2", "PD3", "PD104")),
    "optimizer": ("in its optimizer", ("PD3",)),
    "compute": ("computing", ("PD2", "PD3")),
    "sync": ("idle after a host-device sync", ("PD102", "PD106")),
    "copy": ("copying", ("PD105", "PD106")),
    "launch": ("idle, because its CPU launched late", ("PD104", "PD102", "PD103", "PD108")),
    "allocator": ("in the allocator", ("PD107",)),
    "communication": ("in communication of its own", ("PD4",)),
    "other": ("outside of PyTorch", ("PD103",)),
}
# Which rank is last at fewer collectives than this may be chance.
_MIN_COLLECTIVES = 10


class Straggler(FleetAnalyzer):
    """One rank arrives last at most collectives; all others wait for it there."""

    rule = "PD401"
    name = "straggler"
    needs = frozenset({"work", "ranks"})
    defaults = {
        "min_share": 0.01,
        "min_blame": DOMINANT_SHARE,
        # Kernels vary by a percent or two from step to step on any machine, and the slowest of many ranks by more.
        "min_noise": 0.05,
    }
    references = ("https://hta.readthedocs.io/",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """One finding when a rank causes `min_blame` of the waiting, and the wait reaches `min_share` of the step.

        Where no rank does, one finding about all ranks when the waiting reaches `min_noise` of the step.
        """
        late = fleet.late_rank
        if late is None:
            return
        if late.once and not late.stands_out:
            return
        if not late.stands_out or late.blame < self.settings["min_blame"]:
            yield from self._check_noise(fleet, late)
            return
        victim = fleet.summary_of(late.matched.tables[late.victim])
        if not self.exceeds_min_share(victim, fleet.delay_ns):
            return
        lateness_ns = victim.per_step(late.total_lateness_ns)
        if lacks_core(fleet, late, lateness_ns):
            yield self._report_lack_of_cores(fleet, late, victim)
        elif not enters_late(fleet, late, lateness_ns):
            yield self._report(fleet, late, victim)

    def _check_noise(self, fleet: Fleet, late: LateRank) -> Iterator[Finding]:
        """A finding that ranks take turns at being last, where enough collectives were matched to tell."""
        if enter_apart(late):
            return
        table = late.matched.tables[late.longest_waiter]
        rank, waiting = fleet.summary_of(table), late.any_wait_time_of(table)
        cost = rank.per_step(rank.recoverable_ns(iv.total(waiting)))
        min_noise = self.settings["min_noise"]
        if late.collective_count < _MIN_COLLECTIVES or not self.exceeds_min_share(rank, cost, min_noise):
            return
        finding = self.finding(
            rank,
            title="Ranks take turns at coming last: none is slow, but all wait for the slowest of each step",
            cost_ns=cost,
            advice=advise("ranks take turns at coming last", rank.context),
            claim=Claim(waiting),
            confidence=0.6,
            evidence=(
                Evidence("collectives matched over all ranks", late.collective_count, "count"),
                Evidence("most of the waiting that one rank causes", round(100 * late.blame, 1), "%"),
                Evidence("rank that waits longest", rank.rank),
            ),
        )
        # Ranks with equal work that share the cores of a machine are never even: no change of the program ends that.
        yield replace(finding, severity="info") if do_equal_work(fleet.summaries, late, cost) else finding

    def _report_lack_of_cores(self, fleet: Fleet, late: LateRank, victim: RankSummary) -> Finding:
        """The finding on a rank that is late though it has no more to compute than the others: no fault of its own."""
        finding = self.finding(
            fleet.summary_of(late.table),
            title=f"{name_ranks(late)} is {format_lateness(late, victim, fleet.delay_ns)}, but computes no more than "
            "the others: it waits for a core",
            cost_ns=fleet.delay_ns,
            advice=read_advice("ranks lack cores"),
            happens_once=late.once,
            claim=Claim(fleet.delay, rank=victim.rank),
            confidence=0.6,
            evidence=blame_evidence(late, victim),
        )
        return replace(finding, severity="info")

    def _report(self, fleet: Fleet, late: LateRank, victim: RankSummary) -> Finding:
        is_single, cost = len(late.co_late) == 1, fleet.delay_ns
        lateness_ns = victim.per_step(late.total_lateness_ns)
        has_steps = bool(victim.steps.count)
        phase = late.find_excess_phase()
        activity, rules = _PHASES[phase[0]] if phase else ("", ())
        cause = find_explaining_finding(fleet, late, rules)
        line = find_longer_place(fleet, late, lateness_ns)
        location = cause.location if cause and cause.location else line.name.location if line else None
        place = name_hot_path(cause)
        where = f"in {place}" if place else activity
        at = f", at {location.short}" if location else ""
        they, do = ("this rank", "does") if is_single else ("these ranks", "do")
        advice = Advice(
            f"Compare what {they} {do}{f' in {place}' if place else ''} before the collectives with the other ranks, "
            "and bring it down to their time.",
            source="https://hta.readthedocs.io/",
        )
        if late.once:
            advice = Advice(
                f"Warm up before the recorded part, on all ranks: what made {they} late here happens once, and the "
                "steps to come do not wait for it.",
                source="https://docs.pytorch.org/docs/stable/profiler.html",
            )
        last_share = float(late.arrives_last.sum()) / late.collective_count
        more = []
        if phase:
            more = [Evidence(f"more than the others {activity}, per {{unit}}", victim.per_step(phase[1]), "ns")]
        finding = self.finding(
            fleet.summary_of(late.table),
            title=f"{name_ranks(late)} {'is' if is_single else 'are'} {format_lateness(late, victim, cost)}"
            f"{where and f', {where}{at}'}: the others wait",
            cost_ns=0 if late.once and has_steps else cost,
            saving=Saving() if late.once else Saving(0, cost, cost, "bounded"),
            advice=advice,
            happens_once=late.once,
            occurs_once=late.once,
            claim=Claim(fleet.delay, rank=victim.rank),
            confidence=0.9 if late.collective_count >= _MIN_COLLECTIVES and late.persists else 0.6,
            location=location,
            evidence=(
                *blame_evidence(
                    late,
                    victim,
                    Evidence("share of collectives that it comes last to", round(100 * last_share, 1), "%"),
                    Evidence("largest single lateness", int(late.lateness_ns.max(initial=0)), "ns"),
                ),
                *more,
                *cause_evidence(late, cause, line),
            ),
        )
        return replace(finding, covers=tuple(each.key for each in find_told_inside(fleet, late)))
