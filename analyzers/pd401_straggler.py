"""PD401: one rank comes last to the collectives, and the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median_low
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.diagnosis.analyzer import FleetAnalyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.host_places import HostPlace
from perfdoctor.diagnosis.stragglers import STANDS_OUT, LateRank
from perfdoctor.diagnosis.summary import Fleet, RankSummary
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Intervals

# What a rank does more of than the others, and the rules that say why.
_PHASES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "loader": ("waiting for its DataLoader", ("PD101", "PD508")),
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
)
# A finding that the other ranks have, too, explains a delay only when it costs this rank so many times as much.
_MORE_THAN_OTHERS = 1.5
# A line explains a delay when it takes so much of it; two or three lines may share one.
_EXPLAINS = 0.3
# With fewer collectives chance has a say.
_ENOUGH = 10


class Straggler(FleetAnalyzer):
    """One rank arrives last at most collectives; all others wait for it there.

    What it finds:
        The rank whose late arrival makes the others wait most, in how many of the steps, and what it does more of than
        they do; with that rank's own finding about it, where there is one.

    Why it costs time:
        A collective ends when the last rank has arrived and the data has moved. Every rank pays the lateness of the
        slowest, each step.

    How it is measured:
        Collectives are matched across ranks by process group and sequence number, else by kind and end, after the
        clocks were aligned on the ends of those that ranks share. The rank that starts a matched collective last is
        its last arriver, and has the shortest collective: the long ones of the others are waiting, not work. Lateness
        is its start minus the second-latest start: what would be saved if it were as fast as the next one. The waits
        of the others, from their own start to the last, while they had nothing else to do, are the cost. Why it is
        late is what grew: between one collective and the next each rank's time is split into loader, forward,
        backward, optimizer, syncs, copies and late launches, and compared with the mean of the others.

    How to fix:
        Look at the phase that made it late: its data shard, its CPU, its input sizes; fix what its own findings say.

    When it is wrong:
        When a different rank is late each time (noise), no single rank is named; one that is late in less than half of
        the steps is said to be late now and then. With the traces of some ranks only, the true straggler may be among
        the missing. Sends and receives do not count: there one side waits by design.

    Needs:
        Traces of several ranks, recorded over the same time, with collectives on GPUs or of gloo.

    References:
        HolisticTraceAnalysis, straggler detection; OSDI'24 MegaScale, section on stragglers.
    """

    rule: ClassVar[str] = "PD401"
    name: ClassVar[str] = "straggler"
    needs: ClassVar[frozenset[str]] = frozenset({"ranks"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01, "min_blame": STANDS_OUT})
    references: ClassVar[tuple[str, ...]] = ("https://hta.readthedocs.io/",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """One finding when a rank causes `min_blame` of the waiting, and the wait reaches `min_share` of the step."""
        late = fleet.late_rank
        if late is None or not late.stands_out or late.blame < self.settings["min_blame"]:
            return
        victim = fleet.of(late.matched.tables[late.victim])
        waiting = late.waiting(late.victim)
        cost = victim.per_step(iv.total(waiting))
        if (victim.share(cost) or 0) >= self.settings["min_share"]:
            yield self._finding(fleet, late, victim, waiting, cost)

    def _finding(self, fleet: Fleet, late: LateRank, victim: RankSummary, waiting: Intervals, cost: int) -> Finding:
        lateness_ns = victim.per_step(late.late_ns)
        phase = late.phase()
        doing, rules = _PHASES[phase[0]] if phase else ("", ())
        own = _own_finding(fleet, late, rules)
        line = _own_line(fleet, late, lateness_ns)
        place = own.location if own and own.location else line.location if line else None
        because = f" ({own.rule})" if own else ""
        at = f", at {place.short}" if place else ""
        return self.finding(
            fleet.of(late.table),
            title=f"Rank {late.rank} {_how_often(late)}{doing and f', {doing}{because}{at}'}: the others wait for it",
            cost_ns=cost,
            saving=Saving(0, min(lateness_ns, cost), cost, "bounded"),
            advice=f"Make rank {late.rank} as fast as the others: look at what it does before the collectives.",
            claim=Claim(waiting, rank=victim.rank),
            confidence=0.9 if late.of >= _ENOUGH and late.persists else 0.6,
            location=place,
            evidence=(
                Evidence("collectives matched over all ranks", late.of, "count"),
                Evidence("share of all waiting that it causes", round(100 * late.blame, 1), "%"),
                Evidence("lateness per step against the second-latest rank", lateness_ns, "ns"),
                Evidence("largest single lateness", int(late.lateness_ns.max()), "ns"),
                Evidence("rank that waits longest", victim.rank),
                *_persistence(late),
                *(
                    [Evidence(f"more than the others {doing}, per step", victim.per_step(phase[1]), "ns")]
                    if phase
                    else []
                ),
                *([Evidence("its own finding", f"{own.rule}: {own.title}")] if own else []),
                *(
                    [Evidence(f"at {line.location}, per step more than the others", line.per_step_ns, "ns")]
                    if line
                    else []
                ),
                *_clock(late),
            ),
        )


def _persistence(late: LateRank) -> tuple[Evidence, ...]:
    if not late.steps:
        return ()
    return (Evidence("steps in which it is the one to wait for", f"{late.late_steps} of {late.steps}"),)


def _how_often(late: LateRank) -> str:
    if late.persists:
        return f"arrives last at {float(late.last.sum()) / late.of:.0%} of collectives"
    return f"is late now and then, in {late.late_steps} of {late.steps} steps"


def _own_finding(fleet: Fleet, late: LateRank, rules: tuple[str, ...]) -> Finding | None:
    """The late rank's costliest finding that explains its phase, and that the others do not have as much of."""
    for finding in sorted(fleet.of(late.table).findings, key=lambda f: -f.cost_ns):
        if (
            rules
            and finding.rule.startswith(rules)
            and finding.cost_ns > _MORE_THAN_OTHERS * _usual_cost(fleet, late, finding)
        ):
            return finding
    return None


def _usual_cost(fleet: Fleet, late: LateRank, like: Finding) -> int:
    """What the same finding costs the other ranks, as their median; 0 for those that do not have it."""
    costs = [
        max((f.cost_ns for f in summary.findings if (f.rule, f.subject) == (like.rule, like.subject)), default=0)
        for summary in fleet.summaries
        if summary.rank != late.rank
    ]
    return median_low(costs) if costs else 0


def _own_line(fleet: Fleet, late: LateRank, lateness_ns: int) -> HostPlace | None:
    """Where its CPU spends more time outside of ops than those of the others, enough of it to be late for that."""
    others = [{p.location: p.per_step_ns for p in s.places} for s in fleet.summaries if s.rank != late.rank]
    for place in fleet.of(late.table).places:
        more_ns = place.per_step_ns - median_low([there.get(place.location, 0) for there in others])
        if more_ns >= _EXPLAINS * lateness_ns:
            return HostPlace(place.location, more_ns)
    return None


# Clocks that agree to this say nothing worth telling.
_APART_NS = 10_000_000


def _clock(late: LateRank) -> tuple[Evidence, ...]:
    """How far the clock of the late rank was found to be from that of the first, beyond what the files say."""
    first = late.matched.tables[0]
    away = int(late.matched.offset_ns[late.index]) - (late.table.base_ns - first.base_ns)
    if abs(away) < _APART_NS:
        return ()
    return (Evidence(f"its clock, behind that of rank {first.rank} before they were aligned", away, "ns"),)
