"""PD002: the trace does not contain all that happened."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, read_advice


class IncompleteTrace(RankAnalyzer):
    """Events are missing: figures about the recorded ones are right, causes and savings are less certain."""

    rule = "PD002"
    name = "incomplete-trace"
    # min_coverage: share of GPU items with a launch, below which replays are refused. max_dropped: share of unreadable
    # events that shifts no figure.
    defaults = {"min_coverage": 0.95, "max_dropped": 0.001}
    references = ("https://docs.pytorch.org/docs/stable/profiler.html", "https://github.com/pytorch/kineto")

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each way in which the trace is incomplete."""
        trace = rank.trace
        if not trace.complete:
            yield self._report(
                rank,
                "cut",
                "The trace ends early: what came after is missing",
                "Let the profiler stop and the file be written before the program ends.",
            )
        if trace.dropped > self.settings["max_dropped"] * (trace.events + trace.dropped):
            yield self._report(
                rank,
                "dropped",
                f"{trace.dropped:,} events could not be read",
                "Record it again; a writer that was killed or a full disk leaves such files.",
                Evidence("events read", trace.events, "count"),
            )
        is_snapshot = bool(trace.memory_ends)  # of memory, which holds no ops
        if not len(trace.ops) and not len(trace.gpu) and not len(trace.calls) and trace.complete and not is_snapshot:
            yield self.finding(
                rank,
                title="No op of PyTorch is in the trace, and no kernel",
                advice=read_advice("schedule ran on" if rank.steps.count else "other threads"),
                cost_ns=rank.per_step(rank.window_ns),
                claim=Claim(rank.window),
                subject="nothing",
            )
        coverage = _launch_coverage(rank)
        if coverage is not None and coverage < self.settings["min_coverage"]:
            yield self._report(
                rank,
                "launches",
                f"Only {coverage:.0%} of the GPU items can be joined to their launch",
                "Record CPU and GPU together, with steps of warm-up; read causes of idle time as hints.",
                Evidence("launch coverage", round(100 * coverage, 1), "%"),
            )

    def _report(self, rank: Rank, subject: str, title: str, advice: str, *evidence: Evidence) -> Finding:
        return self.finding(rank, title=title, advice=advice, evidence=evidence, subject=subject)


def _launch_coverage(rank: Rank) -> float | None:
    """The share (0 to 1) of GPU items in the window with a launch; None without items or without any runtime call."""
    if not len(rank.trace.calls) or not rank.in_window.any():
        return None
    return float(np.mean(rank.trace.gpu.call[rank.in_window] >= 0))
