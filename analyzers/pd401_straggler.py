"""PD401: one rank comes last to the collectives, and the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.diagnosis.analyzer import Analyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.run import RankRun, Run
from perfdoctor.diagnosis.stragglers import STANDS_OUT, LateRank
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Intervals

_PHASES: Mapping[str, str] = MappingProxyType(
    {
        "compute": "computing",
        "bandwidth": "in bandwidth-bound kernels",
        "memcpy": "copying",
        "communication": "in other collectives",
        "kernel_latency": "in tiny kernels",
        "idle_dataloader": "waiting for its DataLoader",
        "idle_sync": "idle after a host-device sync",
        "idle_launch": "idle, because its CPU launched late",
        "idle_communication": "waiting for communication on the CPU",
        "idle_allocator": "in the allocator",
        "idle_unexplained": "idle, for no reason that the trace shows",
    }
)


class Straggler(Analyzer):
    """One rank arrives last at most collectives; all others wait for it there.

    What it finds:
        The rank whose late arrival makes the others wait most, and what it did in the meantime.

    Why it costs time:
        A collective ends when the last rank has arrived and the data has moved. Every rank pays the lateness of the
        slowest, each step.

    How it is measured:
        Collectives are matched across ranks by their ends (after the clocks were aligned on those same ends). The
        rank that starts a matched collective last is its last arriver, and has the shortest collective. Lateness is
        its start minus the second-latest start: what would be saved if it were as fast as the next one. The waits of
        the others, from their own start to the last, are the cost.

    How to fix:
        Look at the phase that made it late: its data shard, its CPU, its input sizes; fix what its own findings say.

    When it is wrong:
        When a different rank is late each time (noise), no single rank is named. With the traces of some ranks only,
        the true straggler may be among the missing.

    Needs:
        Traces of several ranks, recorded over the same time.

    References:
        HolisticTraceAnalysis, straggler detection; OSDI'24 MegaScale, section on stragglers.
    """

    rule: ClassVar[str] = "PD401"
    name: ClassVar[str] = "straggler"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "ranks"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01, "min_blame": STANDS_OUT})
    references: ClassVar[tuple[str, ...]] = ("https://hta.readthedocs.io/",)

    def analyze(self, run: Run) -> Iterator[Finding]:
        """One finding when a rank causes `min_blame` of the waiting, and the wait reaches `min_share` of the step."""
        late = run.late_rank
        if late is None or late.blame < self.settings["min_blame"]:
            return
        victim = late.ranks[late.victim]
        waiting = late.waiting(late.victim)
        cost = victim.per_step(iv.total(waiting))
        if (victim.share(cost) or 0) >= self.settings["min_share"]:
            yield self._finding(late, victim, waiting, cost)

    def _finding(self, late: LateRank, victim: RankRun, waiting: Intervals, cost: int) -> Finding:
        lateness = late.lateness_ns
        lateness_ns = victim.per_step(int(lateness.sum()))
        name, often = late.run.trace.rank, float(late.last.mean())
        phase = late.phase()
        doing = _PHASES[phase[0]] if phase else None
        return self.finding(
            late.run,
            title=f"Rank {name} arrives last at {often:.0%} of collectives"
            f"{f', {doing}' if doing else ''}: the others wait for it",
            cost_ns=cost,
            saving=Saving(0, min(lateness_ns, cost), cost, "bounded"),
            advice=f"Make rank {name} as fast as the others: look at what it does before the collectives.",
            claim=Claim(waiting, rank=victim.trace.rank),
            confidence=0.9 if len(late.matched) >= 10 else 0.6,
            evidence=(
                Evidence("collectives matched over all ranks", len(late.matched), "count"),
                Evidence("share of all waiting that it causes", round(100 * late.blame, 1), "%"),
                Evidence("lateness per step against the second-latest rank", lateness_ns, "ns"),
                Evidence("largest single lateness", int(lateness.max()), "ns"),
                Evidence("rank that waits longest", victim.trace.rank),
                Evidence(f"late rank's time {doing}" if doing else "late rank's phase", phase and phase[1], "ns"),
            ),
        )
