"""PD401: one rank comes last to the collectives, and the others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.diagnosis.account import DETAILS
from perfdoctor.diagnosis.analyzer import Analyzer
from perfdoctor.diagnosis.collectives import MatchedCollectives, match_collectives
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.run import RankRun, Run
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Int64Array, Intervals

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
    # blame: the share of all waiting that one rank must cause to be called the straggler; noise spreads it evenly.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.01, "min_blame": 0.5})
    references: ClassVar[tuple[str, ...]] = ("https://hta.readthedocs.io/",)

    def analyze(self, run: Run) -> Iterator[Finding]:
        """One finding when one rank causes at least `min_blame` of the waiting.

        Its lateness reaches `min_share` of the step.
        """
        ranks = tuple(r for r in run.ranks if "kernels" in r.evidence)
        matched = match_collectives(ranks) if len(ranks) > 1 else None
        if matched is None:
            return
        last, waits = _last_arrivers(matched)
        blame = np.array([waits[:, last == i].sum() for i in range(len(ranks))], np.float64)
        worst = int(blame.argmax())
        victim = int(waits[:, last == worst].sum(axis=1).argmax())
        waiting = _waiting(matched, ranks[victim], last == worst, victim)
        cost = ranks[victim].per_step(iv.total(waiting))
        share = ranks[victim].share(cost) or 0
        if (
            blame.sum() == 0
            or blame[worst] / blame.sum() < self.settings["min_blame"]
            or share < self.settings["min_share"]
        ):
            return
        yield self._finding(ranks, worst, victim, matched, last, waiting, float(blame[worst] / blame.sum()))

    def _finding(
        self,
        ranks: tuple[RankRun, ...],
        worst: int,
        victim: int,
        matched: MatchedCollectives,
        last: Int64Array,
        waiting: Intervals,
        blame: float,
    ) -> Finding:
        late, victim_run = ranks[worst], ranks[victim]
        cost = victim_run.per_step(iv.total(waiting))
        lateness = _lateness(matched, last == worst)
        phase, phase_ns = _late_phase(late, matched, last == worst, worst)
        told = f", {_PHASES[phase]}" if phase else ""
        often = float(np.mean(last == worst))
        saved = min(victim_run.per_step(int(lateness.sum())), cost)
        return self.finding(
            late,
            title=f"Rank {late.trace.rank} arrives last at {often:.0%} of collectives{told}: the others wait for it",
            cost_ns=cost,
            saving=Saving(0, saved, cost, "bounded"),
            advice=f"Make rank {late.trace.rank} as fast as the others: look at what it does before the collectives.",
            claim=Claim(waiting, rank=victim_run.trace.rank),
            confidence=0.9 if len(last) >= 10 else 0.6,
            evidence=(
                Evidence("collectives matched over all ranks", len(last), "count"),
                Evidence("share of all waiting that it causes", round(100 * blame, 1), "%"),
                Evidence(
                    "lateness per step against the second-latest rank", victim_run.per_step(int(lateness.sum())), "ns"
                ),
                Evidence("largest single lateness", int(lateness.max()), "ns"),
                Evidence("rank that waits longest", victim_run.trace.rank),
                Evidence(f"late rank's time {_PHASES[phase]}" if phase else "late rank's phase", phase_ns, "ns"),
            ),
        )


def _last_arrivers(matched: MatchedCollectives) -> tuple[Int64Array, Int64Array]:
    """For each collective the index of the rank that starts last.

    The wait of each rank (ranks, n) from its own start until then.
    """
    return matched.start_ns.argmax(axis=0), matched.start_ns.max(axis=0) - matched.start_ns


def _lateness(matched: MatchedCollectives, which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64Array:
    """Last start minus second-latest start, of some collectives."""
    ordered = np.sort(matched.start_ns[:, which], axis=0)
    return np.asarray(ordered[-1] - ordered[-2], np.int64)


def _waiting(
    matched: MatchedCollectives, run: RankRun, which: np.ndarray[tuple[int], np.dtype[np.bool_]], index: int
) -> Intervals:
    """When a rank waited in some collectives for their last arriver with nothing else to do.

    Within its window and on its own clock.
    """
    offset = matched.offset_ns[index]
    begin = matched.start_ns[index, which] - offset
    until = np.minimum(matched.start_ns[:, which].max(axis=0), matched.end_ns[index, which]) - offset
    return iv.intersect(iv.union(begin, until), run.account.parts["communication"])


def _late_phase(
    run: RankRun, matched: MatchedCollectives, which: np.ndarray[tuple[int], np.dtype[np.bool_]], index: int
) -> tuple[str | None, int | None]:
    """What the late rank did from the second-latest start until its own, by its account.

    The largest detail and its time.
    """
    ordered = np.sort(matched.start_ns[:, which], axis=0)
    offset = matched.offset_ns[index]
    late = iv.union(ordered[-2] - offset, ordered[-1] - offset)
    spent = {name: iv.total(iv.intersect(late, run.account.parts[name])) for name in DETAILS}
    phase = max(spent, key=lambda name: spent[name])
    return (phase, spent[phase]) if spent[phase] else (None, None)
