"""PD110: Python collects garbage inside steps."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.analyzers._host_pauses import (
    COLLECT,
    MIN_SHARE_OF_GARBAGE,
    HostPause,
    claim_of,
    cost_of,
    find_automatic_collections,
    find_collect_calls,
)
from perfdoctor.rules import Evidence, Finding, Rank, RankAnalyzer, Saving, advise, format_time, yes_or_no

# Of a collection this much is left at most, once what lives long is frozen; what a step makes is scanned as before.
# Measured: with a million objects a collection took 97 ms of CPU time, and 0.4 ms when they were frozen. How much of
# them lives long in a program is not known.
_MAX_LEFT, _USUALLY_LEFT = 0.5, 0.1


class PythonGc(RankAnalyzer):
    """Python's garbage collector runs inside steps, and scans all objects that live."""

    rule = "PD110"
    name = "python-gc"
    needs = frozenset({"cpu"})
    # min_share: of the steps' time; a smaller cost would not even be a finding of low severity.
    defaults = {"min_share": MIN_SHARE_OF_GARBAGE}
    references = (
        "https://docs.python.org/3/library/gc.html#gc.freeze",
        "https://github.com/python/cpython/blob/3.13/InternalDocs/garbage_collector.md",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for calls of gc.collect, and one for automatic collections, where they take `min_share`."""
        calls, automatic = find_collect_calls(rank), find_automatic_collections(rank)
        if calls is not None and calls.comes_back and self.exceeds_min_share(rank, cost_of(rank, calls)):
            cost_ns = cost_of(rank, calls)
            yield self._report(
                rank,
                calls,
                title=f"gc.collect() takes {rank.share(cost_ns):.0%} of the time: {calls.length_on(rank)}",
                situation="garbage is collected in the step",
                saving=Saving(cost_ns // 2, cost_ns, cost_ns, "bounded") if calls.is_timed else None,
                subject="collect",
            )
        if automatic is not None and automatic.comes_back and self.exceeds_min_share(rank, cost_of(rank, automatic)):
            cost_ns = cost_of(rank, automatic)
            low_ns, expected_ns = (round(cost_ns * (1 - left)) for left in (_MAX_LEFT, _USUALLY_LEFT))
            yield self._report(
                rank,
                automatic,
                title=f"Python collects garbage {automatic.frequency}, for {format_time(automatic.step_ns)}: it scans "
                "all objects that live",
                situation="Python collects garbage by itself",
                saving=Saving(low_ns, expected_ns, cost_ns, "bounded"),
                subject="automatic",
            )

    def _report(
        self, rank: Rank, pause: HostPause, *, title: str, situation: str, saving: Saving | None, subject: str
    ) -> Finding:
        cost_ns, collector = cost_of(rank, pause), rank.facts.collector
        return self.finding(
            rank,
            title=title,
            cost_ns=cost_ns,
            saving=saving or Saving(0, None, cost_ns, "bounded"),
            advice=advise(situation, rank.context),
            claim=claim_of(rank, (COLLECT,), cost_ns),
            confidence=0.9 if pause.is_timed else 0.6,
            location=pause.location,
            evidence=(
                Evidence("collections", pause.calls, "count"),
                Evidence("steps with one", f"{pause.steps:,} of {pause.of:,}"),
                Evidence("in such a step", pause.step_ns, "ns"),
                Evidence("objects frozen", collector.frozen, "count"),
                Evidence("Python collects by itself", yes_or_no(collector.enabled)),
            ),
            subject=subject,
            recurrence=pause.recurrence,
            is_symptom=subject == "automatic",
        )
