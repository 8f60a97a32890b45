"""PD001: the profiler itself slows the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

from perfdoctor.analysis.captured_facts import captured_median_ns, captured_steps
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving

# A recorded step over an unprofiled one. From here on half of it is the profiler: shares of it are no shares of the
# real step.
_DISTORTING_FACTOR = 2.0


class ProfilerOverhead(RankAnalyzer):
    """Recording made the steps of the trace much slower than they are without it.

    What it finds:
        A capture whose recorded steps take over 15 % longer than the steps right before them, which were timed
        without any profiler.

    Why it costs time:
        It costs the program nothing once recording is over. It distorts the picture: the profiler works on the CPU,
        a few microseconds for every operator and launch, so that small steps look launch-bound, and the GPU idler,
        than they are.

    How it is measured:
        `perfdoctor run` times a few steps without a profiler (the base window) and then records some (the timing
        window, without stacks and shapes). The medians of both are compared; each window needs `min_steps` steps.
        All other costs and savings are those of the recorded steps, with the unprofiled step beside them: GPU time is
        hardly affected, and how much of a CPU cost is the profiler's is not known.

    How to fix:
        There is nothing to fix in the program. Trust the order of findings and the time of kernels; read launch-bound
        findings and idle GPU time as upper bounds, and compare runs by the step without the profiler.

    When it is wrong:
        The windows lie one after the other: a program whose steps grow (longer sequences, a curriculum) or that
        shared its machine with another one differs between them without the profiler's doing.

    Needs:
        Captured facts (`perfdoctor run`) with a base window.

    References:
        PyTorch profiler documentation, on the overhead of recording.
    """

    rule: ClassVar[str] = "PD001"
    name: ClassVar[str] = "profiler-overhead"
    needs: ClassVar[frozenset[str]] = frozenset({"facts"})
    # min_share: of the unprofiled step; the limit for recording without stacks on steps of 10 ms and more
    # (benchmarks/README.md). min_steps: one slow step can move the median of fewer.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.15, "min_steps": 3})
    references: ClassVar[tuple[str, ...]] = ("https://docs.pytorch.org/docs/stable/profiler.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when the recorded steps exceed the unprofiled ones by `min_share`."""
        base, timing = captured_steps(rank.facts, "base"), captured_steps(rank.facts, "timing")
        base_ns, timing_ns = captured_median_ns(rank.facts, "base"), captured_median_ns(rank.facts, "timing")
        if base_ns is None or timing_ns is None or min(len(base), len(timing)) < self.settings["min_steps"]:
            return
        if timing_ns <= (1 + self.settings["min_share"]) * base_ns:
            return
        factor = timing_ns / base_ns
        finding = self.finding(
            rank,
            title=f"The profiler slows the recorded steps to {factor:.2f} times their usual length",
            cost_ns=min(timing_ns - base_ns, rank.per_step(rank.window_ns)),
            saving=Saving(),
            advice=(
                "Read idle GPU time and launch-bound findings as upper bounds: the profiler's share is CPU time. "
                f"A step takes {base_ns / 1e6:.3g} ms when nothing is recorded."
            ),
            claim=Claim(),
            confidence=0.9,
            evidence=(
                Evidence("recorded step, median", timing_ns, "ns"),
                Evidence("steps timed without the profiler", len(base), "count"),
            ),
        )
        # The program has no fault: only a trace that is half profiler deserves more than a note.
        yield replace(finding, severity="info" if factor < _DISTORTING_FACTOR else "low")
