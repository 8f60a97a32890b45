"""PD010: the step gets slower over the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.analyzers._pd010_causes import SAME_WORK, DriftCause, find_cause
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, RunDrift, Saving, format_ms, read_texts
from perfdoctor.rules import intervals as iv

# Causes that none of the recorded parts shows.
_NOT_SEEN = ("cpu", "waits", "unknown")

# Longer sequences, as a curriculum has them, make the step longer than that only where nothing is bounded.
_MEANT = 4.0


class Drift(RankAnalyzer):
    """The step gets slower over the run, and stays so."""

    rule = "PD010"
    name = "drift"
    needs = frozenset({"steps", "facts"})
    # min_growth: of the step; levels of quiet programs stay within a twentieth of it.
    # min_same_work_s: of longer steps where the program does nothing else: caches, clocks and neighbours on a shared
    # machine come and go in a second.
    defaults = {"min_growth": 0.08, "min_same_work_s": 3}
    references = ("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where the run drifts."""
        drift = rank.drift
        if drift is None or drift.growth - 1 < self.settings["min_growth"]:
            return
        cause = find_cause(rank, drift)
        if cause.id in SAME_WORK and drift.lasted_ns < self.settings["min_same_work_s"] * 1e9:
            return
        if cause.id == "cores" and rank.contention.is_severe:
            return  # the report says so of all its figures, which are without these waits
        text = read_texts("drift")[cause.id]
        is_longer = rank.growth is not None and rank.mean_step_ns > drift.before_ns
        is_in_trace = is_longer and drift.is_in_every_step
        cost_ns = _cost_of(rank, drift, is_in_trace=is_in_trace)
        kind = "at once from" if drift.kind == "jump" else "more and more from"
        advice = text["advice"]
        if cause.id in _NOT_SEEN:
            skip = drift.first_step + (_count_steps(rank) - drift.began) // 2
            advice += f" Record late steps, and compare them with early ones: perfdoctor run --skip {skip}."
        finding = self.finding(
            rank,
            title=f"The step gets slower over the run, {format_ms(drift.before_ns)} to {format_ms(drift.after_ns)}, "
            f"{kind} step {drift.first_step:,} on: {text['grew']}{cause.detail and f' ({cause.detail})'}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded") if is_in_trace else Saving(),
            advice=advice,
            fix=text.get("fix"),
            claim=_claim_of(rank, cost_ns) if is_in_trace else Claim(),
            confidence=0.5 if cause.id in _NOT_SEEN else 0.8,
            location=cause.location,
            evidence=_evidence_of(drift, cause),
            subject=cause.id,
        )
        if text.get("may_be_meant") and drift.growth < _MEANT and finding.severity != "info":
            finding = replace(finding, severity="low")
        yield finding


def _count_steps(rank: Rank) -> int:
    """The number of steps of the run that were timed without a profiler."""
    return 0 if rank.run_steps is None else len(rank.run_steps)


def _cost_of(rank: Rank, drift: RunDrift, *, is_in_trace: bool) -> int:
    """What the drift costs a step of the report: what late windows have more, else its share of the step at the end."""
    if is_in_trace:
        return min(rank.mean_step_ns - drift.before_ns, drift.rise_ns)
    return round(rank.mean_step_ns * drift.rise_ns / max(drift.after_ns, 1))


def _claim_of(rank: Rank, cost_ns: int) -> Claim:
    """The end of each step of the trace, as long as what the drift costs."""
    steps = rank.steps.intervals
    recorded_ns = (steps[:, 1] - steps[:, 0]) * min(cost_ns / max(rank.mean_step_ns, 1), 1.0)
    return Claim(iv.union(steps[:, 1] - recorded_ns.astype(np.int64), steps[:, 1]))


def _evidence_of(drift: RunDrift, cause: DriftCause) -> tuple[Evidence, ...]:
    return (
        Evidence("step before it", drift.before_ns, "ns"),
        Evidence("step at the end of the run", drift.after_ns, "ns"),
        Evidence("first slower step", drift.first_step, "count"),
        Evidence("variation of the step otherwise", drift.noise_ns, "ns"),
        Evidence("more a step by this", cause.rise_ns, "ns"),
        *cause.evidence,
    )
