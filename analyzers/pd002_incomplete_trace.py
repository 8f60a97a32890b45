"""PD002: the trace does not hold all that happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.saving import Claim, Saving


class IncompleteTrace(RankAnalyzer):
    """Events are missing: figures about what is there hold, causes and savings are less certain.

    What it finds:
        A file that ends early, events that could not be read, GPU items in the analysed time whose launch is not in
        the file.

    Why it costs time:
        It costs none: it says how far the other findings can be trusted. Without its launch nobody knows why a kernel
        came late, and a replay that lacks edges promises too much or too little.

    How it is measured:
        What the reader noticed, and the share of GPU items of the analysed time that are joined to a runtime call. A
        trace without any runtime calls is another thing: rules that need them say so.

    How to fix:
        Let the profiler stop and the file be written before the program ends; record fewer steps when events are
        dropped; record CPU and GPU together, and some steps of warm-up before.

    When it is wrong:
        Items launched just before the recording began belong to its first step where steps cannot be told apart.

    Needs:
        Nothing.

    References:
        PyTorch profiler documentation; Kineto's documentation.
    """

    rule: ClassVar[str] = "PD002"
    name: ClassVar[str] = "incomplete-trace"
    # min_coverage: of launches, below which replays are refused. max_dropped: a share of events that shifts no figure.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_coverage": 0.95, "max_dropped": 0.001})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/profiler.html",
        "https://github.com/pytorch/kineto",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each way in which the trace is incomplete."""
        trace = rank.trace
        if not trace.complete:
            yield self._note(
                rank,
                "cut",
                "The trace ends early: what came after is missing",
                "Let the profiler stop and the file be written before the program ends.",
            )
        if trace.dropped > self.settings["max_dropped"] * (trace.events + trace.dropped):
            yield self._note(
                rank,
                "dropped",
                f"{trace.dropped:,} events could not be read",
                "Record it again; a writer that was killed or a full disk leaves such files.",
                Evidence("events read", trace.events, "count"),
            )
        coverage = _coverage(rank)
        if coverage is not None and coverage < self.settings["min_coverage"]:
            yield self._note(
                rank,
                "launches",
                f"Only {coverage:.0%} of the GPU items can be joined to their launch",
                "Record CPU and GPU together, with steps of warm-up; read causes of idle time as hints.",
                Evidence("launch coverage", round(100 * coverage, 1), "%"),
            )

    def _note(self, rank: Rank, subject: str, title: str, advice: str, *evidence: Evidence) -> Finding:
        return self.finding(
            rank,
            title=title,
            cost_ns=0,
            saving=Saving(),
            advice=advice,
            claim=Claim(),
            evidence=evidence,
            subject=subject,
        )


def _coverage(rank: Rank) -> float | None:
    """The share of GPU items of the window that have a launch; None without items or without any runtime call."""
    gpu = rank.trace.gpu
    inside = rank.in_window
    if not len(rank.trace.calls) or not inside.any():
        return None
    return float(np.mean(gpu.call[inside] >= 0))
