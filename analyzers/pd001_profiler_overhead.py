"""PD001: the profiler itself slows the steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import (
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    compare_windows,
    cpu_time_ratio,
    is_shared_throughout,
    step_times_of,
)


class ProfilerOverhead(RankAnalyzer):
    """Recording made the steps of the trace much slower than they are without it."""

    rule = "PD001"
    name = "profiler-overhead"
    needs = frozenset({"facts"})
    # min_share: of the unprofiled step; the limit for recording without stacks on steps of 10 ms and more
    # (benchmarks/README.md). min_steps: one slow step can move the median of fewer.
    defaults = {"min_share": 0.15, "min_steps": 3}
    references = ("https://docs.pytorch.org/docs/stable/profiler.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when the recorded steps exceed the unprofiled ones by `min_share`."""
        steps = compare_windows(rank.facts, rank.run_steps)
        if steps is None or min(map(len, steps)) < self.settings["min_steps"]:
            return
        windows = (step_times_of(rank.facts.base), step_times_of(rank.facts.timing))
        if any(each is not None and is_shared_throughout(each) for each in windows):
            return  # what others took is unlike in both
        base_ns, recorded_ns = (float(np.median(each)) for each in steps)
        factor = recorded_ns / base_ns
        cpu_ratio = cpu_time_ratio(rank.facts)
        if cpu_ratio is not None:  # the profiler takes CPU time: what is longer without more of it waits for others
            factor = min(factor, cpu_ratio)
        if factor <= 1 + self.settings["min_share"]:
            return
        yield self.finding(
            rank,
            title=f"The profiler slows the recorded steps to {factor:.2f} times their usual length",
            advice=(
                f"Figures are of the step without the profiler, {base_ns / 1e6:.3g} ms. What many short ops and "
                "launches cost is an upper bound: the profiler takes CPU time for each."
            ),
            confidence=0.9,
            evidence=(
                Evidence("recorded step, median", round(recorded_ns), "ns"),
                Evidence("step without the profiler", round(base_ns), "ns"),
                Evidence("steps timed without the profiler", len(steps.unprofiled_ns), "count"),
            ),
        )
