"""PD104: the GPU is faster than the CPU can launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.diagnosis.analyzer import RankAnalyzer
from perfdoctor.diagnosis.finding import Claim, Evidence, Finding, Saving
from perfdoctor.diagnosis.run import RankRun
from perfdoctor.trace import intervals as iv
from perfdoctor.trace.intervals import Intervals
from perfdoctor.trace.model import KERNEL


class LaunchBound(RankAnalyzer):
    """The GPU waits for the CPU to launch the next kernel: Python and the framework are the bottleneck.

    What it finds:
        Many gaps that end with a kernel whose launch call began only after the GPU had run dry.

    Why it costs time:
        A kernel costs the CPU 5 to 20 us in Python, the dispatcher and the runtime. Kernels shorter than that leave
        the GPU waiting.

    How it is measured:
        Idle time the account gives to late launches, without the short breaks that the device takes between queued
        kernels. A graph launch
        is one launch of many kernels: gaps within a graph are no late launches. Single long pauses of the CPU (a
        checkpoint, an
        evaluation) are told apart: at least half of the time must lie in gaps shorter than 1 ms.

    How to fix:
        CUDA graphs or torch.compile(mode="reduce-overhead") launch many kernels at once; fused optimizers and fewer,
        larger operations
        launch less; a bigger batch gives each kernel more work.

    When it is wrong:
        The profiler itself slows every launch, most with Python stacks or shapes: compare with the step time of an
        unprofiled run.

    Needs:
        Kernels and their launches.

    References:
        Making Deep Learning Go Brrrr From First Principles, "Overhead"; PyTorch blog, "Accelerating PyTorch with CUDA
        Graphs".
    """

    rule: ClassVar[str] = "PD104"
    name: ClassVar[str] = "launch-bound"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches"})
    # 15 %: XProf calls 3 % moderate and 15 % high; below 15 % the profiler's own slow-down of the launches explains
    # as much.
    # pause_ns: the CPU launches a kernel in 5 to 20 us, so a gap of 1 ms is no launch but something else it did.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.15, "min_kernels": 20, "pause_ns": 1_000_000}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://horace.io/brrr_intro.html",
        "https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/",
    )

    def analyze_rank(self, rank: RankRun) -> Iterator[Finding]:
        """One finding when late launches starve the GPU for at least `min_share` of the step."""
        gpu = rank.trace.gpu
        kernels = (gpu.kind == KERNEL) & iv.contains(rank.window, gpu.start_ns)
        starved = _starved(rank)
        cost = rank.per_step(iv.total(starved))
        if int(kernels.sum()) < self.settings["min_kernels"] or (rank.share(cost) or 0) < self.settings["min_share"]:
            return
        lengths = starved[:, 1] - starved[:, 0]
        short = lengths < self.settings["pause_ns"]
        if lengths[short].sum() < lengths.sum() / 2:
            return
        launches = len(np.unique(gpu.call[kernels & (gpu.call >= 0)]))
        whole = "step" if rank.steps.count else "trace"
        yield self.finding(
            rank,
            title=f"The GPU waits for launches: {rank.per_step(int(kernels.sum())):,} kernels a {whole}, "
            f"half of them shorter than {np.median(gpu.dur_ns[kernels]) / 1e3:.1f} us",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice="Launch less and more at once: torch.compile or CUDA graphs, a fused optimizer, larger batches.",
            fix='model = torch.compile(model, mode="reduce-overhead")',
            claim=Claim(starved),
            confidence=0.6 if len(rank.trace.frames) else 0.8,
            evidence=(
                Evidence("gaps that end with a late launch", len(starved), "count"),
                Evidence("kernels per step", rank.per_step(int(kernels.sum())), "count"),
                Evidence("launches per step", rank.per_step(launches), "count"),
                Evidence("median kernel", int(np.median(gpu.dur_ns[kernels])), "ns"),
                Evidence("recorded with Python stacks, which slow launches", "yes" if len(rank.trace.frames) else "no"),
            ),
        )


def _starved(rank: RankRun) -> Intervals:
    """The part of the account's launch time in gaps whose next launch came late."""
    gaps = rank.gaps
    late = iv.union(gaps.start_ns[gaps.late], gaps.end_ns[gaps.late])
    return iv.intersect(late, rank.account.parts["idle_launch"])
