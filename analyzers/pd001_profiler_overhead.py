"""PD001: the profiler itself slows the steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.rules import Evidence, Finding, Rank, RankAnalyzer
from perfdoctor.rules.internal import compare_windows, cpu_time_ratio, is_shared_throughout, step_times_of


class ProfilerOverhead(RankAnalyzer):
    """Recording made the steps of the trace much slower than they are without it.

    What it finds:
        A capture whose recorded steps take over 15 % longer than the steps right before them, which were timed
        without any profiler: for the same work, and without what other programs took.

    Why it costs time:
        It costs the program nothing once recording is over. It distorts the picture: the profiler works on the CPU,
        a few microseconds for every operator and launch, so that small steps look launch-bound, and the GPU idler,
        than they are.

    How it is measured:
        `perfdoctor run` times a few steps without a profiler (the base window) and then records some (the timing
        window, without stacks and shapes). The medians of both are compared; each window needs `min_steps` steps.
        Where the windows' steps hold other numbers of micro-batches (backward passes, else batches), the time of one
        is compared. Time in which other programs had the cores is left out (CPU time as usual in a longer step, and
        more involuntary context switches), and no step counts as slower than its CPU time says: the profiler's part
        is CPU time. All costs and savings of a report are scaled to the unprofiled step.

    How to fix:
        There is nothing to fix in the program, so the finding has no rank. Trust the order of findings and the time
        of kernels; read launch-bound findings and idle GPU time as upper bounds.

    When it is wrong:
        The windows lie one after the other: a program whose inputs grow within a micro-batch (longer sequences)
        differs between them without the profiler's doing. Captures without CPU times cannot tell a machine that was
        shared; where others had it all the time, the rule says nothing.

    Needs:
        Captured facts (`perfdoctor run`) with a base window.

    References:
        PyTorch profiler documentation, on the overhead of recording.
    """

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
