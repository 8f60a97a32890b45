"""PD401: one rank comes last to the collectives, and the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analysis.communication.stragglers import DOMINANT_SHARE, LateRank
from perfdoctor.analyzers._pd401_causes import own_finding, own_line
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.report.merge_findings import format_ranges
from perfdoctor.report.rank_summary import Fleet, RankSummary
from perfdoctor.rules.analyzer import FleetAnalyzer
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals

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
        the steps is said to be late now and then. Ranks that are late together, such as those of a slow host, are
        named together. With the traces of some ranks only, the true straggler may be among the missing. Sends and
        receives do not count: there one side waits by design.

    Needs:
        Traces of several ranks, recorded over the same time, with collectives on GPUs or of gloo.

    References:
        HolisticTraceAnalysis, straggler detection; OSDI'24 MegaScale, section on stragglers.
    """

    rule: ClassVar[str] = "PD401"
    name: ClassVar[str] = "straggler"
    needs: ClassVar[frozenset[str]] = frozenset({"work", "ranks"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "min_share": 0.01,
            "min_blame": DOMINANT_SHARE,
            # Kernels vary by a percent or two from step to step on any machine, and the slowest of many ranks by more.
            "min_noise": 0.05,
        }
    )
    references: ClassVar[tuple[str, ...]] = ("https://hta.readthedocs.io/",)

    def analyze_fleet(self, fleet: Fleet) -> Iterator[Finding]:
        """One finding when a rank causes `min_blame` of the waiting, and the wait reaches `min_share` of the step.

        Where no rank does, one about all of them when the waiting reaches `min_noise` of the step.
        """
        late = fleet.late_rank
        if late is None:
            return
        if not late.stands_out or late.blame < self.settings["min_blame"]:
            yield from self._noise(fleet, late)
            return
        victim = fleet.of(late.matched.tables[late.victim])
        waiting = late.wait_time(late.victim)
        cost = victim.per_step(iv.total(waiting))
        if self.exceeds_min_share(victim, cost):
            yield self._finding(fleet, late, victim, waiting, cost)

    def _noise(self, fleet: Fleet, late: LateRank) -> Iterator[Finding]:
        """That ranks take turns at being last, where there was enough to see that."""
        table = late.matched.tables[late.longest_waiter]
        rank, waiting = fleet.of(table), late.any_wait_time_of(table)
        cost = rank.per_step(iv.total(waiting))
        if late.collective_count < _ENOUGH or not self.exceeds_min_share(rank, cost, self.settings["min_noise"]):
            return
        yield self.finding(
            rank,
            title="Ranks take turns at coming last: none is slow, but all wait for the slowest of each step",
            cost_ns=cost,
            saving=Saving(),
            advice="Look for what varies from step to step: lengths of inputs, garbage collection, CPUs shared with "
            "other programs; balance the inputs, collect garbage at fixed steps, pin the processes.",
            claim=Claim(waiting),
            confidence=0.6,
            evidence=(
                Evidence("collectives matched over all ranks", late.collective_count, "count"),
                Evidence("most of the waiting that one rank causes", round(100 * late.blame, 1), "%"),
                Evidence("rank that waits longest", rank.rank),
            ),
        )

    def _finding(self, fleet: Fleet, late: LateRank, victim: RankSummary, waiting: Intervals, cost: int) -> Finding:
        alone = len(late.co_late) == 1
        lateness_ns = victim.per_step(late.total_lateness_ns)
        phase = late.find_excess_phase()
        doing, rules = _PHASES[phase[0]] if phase else ("", ())
        own = own_finding(fleet, late, rules)
        line = own_line(fleet, late, lateness_ns)
        place = own.location if own and own.location else line.location if line else None
        because = f" ({own.rule})" if own else ""
        at = f", at {place.short}" if place else ""
        return self.finding(
            fleet.of(late.table),
            title=f"{_who(late)} {_how_often(late)}{doing and f', {doing}{because}{at}'}: the others wait",
            cost_ns=cost,
            saving=Saving(0, min(lateness_ns, cost) if alone else None, cost, "bounded"),
            advice=f"Compare what {'this rank does' if alone else 'these ranks do'} before the collectives with the "
            "other ranks, and bring it down to their time.",
            claim=Claim(waiting, rank=victim.rank),
            confidence=0.9 if late.collective_count >= _ENOUGH and late.persists else 0.6,
            location=place,
            evidence=(
                Evidence("collectives matched over all ranks", late.collective_count, "count"),
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
    if not late.step_count:
        return ()
    return (Evidence("steps in which it is the one to wait for", f"{late.late_step_count} of {late.step_count}"),)


def _who(late: LateRank) -> str:
    if len(late.co_late) == 1:
        return f"Rank {late.rank}"
    numbers = format_ranges(late.matched.tables[index].rank or 0 for index in late.co_late)
    return f"Ranks {numbers}{' (all of one host)' if late.is_whole_host else ''}"


def _how_often(late: LateRank) -> str:
    one = len(late.co_late) == 1
    if late.persists:
        share = float(late.arrives_last.sum()) / late.collective_count
        return f"{'arrives' if one else 'arrive'} last at {share:.0%} of collectives"
    return f"{'is' if one else 'are'} late now and then, in {late.late_step_count} of {late.step_count} steps"


# Clocks that agree to this say nothing worth telling.
_APART_NS = 10_000_000


def _clock(late: LateRank) -> tuple[Evidence, ...]:
    """How far the clock of the late rank was found to be ahead of that of the first, beyond what the files say."""
    first = late.matched.tables[0]
    ahead = late.table.base_ns - first.base_ns - int(late.matched.offset_ns[late.index])
    if abs(ahead) < _APART_NS:
        return ()
    return (Evidence(f"its clock was ahead of that of rank {first.rank} by", ahead, "ns"),)
