"""PD501: cuDNN guesses the algorithms of convolutions whose shapes repeat."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoctor.analyzers._missed_tensor_cores import find_missed_kernels
from perfdoctor.rules import (
    Action,
    Claim,
    Evidence,
    Finding,
    GpuQuery,
    Int64Array,
    Rank,
    RankAnalyzer,
    Saving,
    yes_or_no,
)

# What the autotuner saved of the slowest example in the field's guides: 1,430 us became 840.
_MAX_SAVED = 0.41


class CudnnBenchmarkOff(RankAnalyzer):
    """cuDNN guesses the algorithm of each convolution, though their shapes repeat and it could measure them."""

    rule = "PD501"
    name = "cudnn-benchmark-off"
    needs = frozenset({"kernels", "steps", "facts"})
    # min_share: with 41 % at most, a tenth of the step is worth 4 %.
    # min_steps: a shape that repeats is known from two steps on.
    defaults = {"min_share": 0.1, "min_steps": 2}
    references = ("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-cudnn-auto-tuner",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where the flag is off and the same convolutions take at least `min_share` of each step."""
        flags = rank.facts.flags
        # Deterministic algorithms are wanted for other reasons than time, and leave cuDNN little choice.
        if flags.cudnn_benchmark is not False or flags.deterministic_algorithms:
            return
        if rank.hardware.vendor == "amd" or rank.steps.count < self.settings["min_steps"]:
            return
        kernels = rank.kernels.of_category("convolution").in_steps()
        for missed in find_missed_kernels(rank, "convolution"):
            kernels -= missed.kernels | missed.helpers
        cost_ns = rank.per_step(kernels.time_ns)
        if not self.exceeds_min_share(rank, cost_ns) or not repeats_each_step(rank, kernels):
            return
        bound_ns = rank.per_step(round(excess_ns(rank, kernels)))
        high_ns = min(round(_MAX_SAVED * cost_ns), bound_ns)
        yield self.finding(
            rank,
            title=f"cuDNN guesses the algorithms of convolutions that take {rank.share(cost_ns):.0%} of the step",
            cost_ns=cost_ns,
            saving=Saving(0, None, high_ns, "bounded"),
            advice="Let cuDNN measure its algorithms: the shapes of these convolutions repeat from step to step. "
            "Often little is gained, so try it: perfdoctor try --only cudnn-benchmark.",
            fix="torch.backends.cudnn.benchmark = True",
            actions=(Action("cudnn-benchmark"),),
            claim=Claim(kernels.time, kernels=True),
            confidence=0.5,
            location=kernels.location,
            evidence=(
                Evidence("torch.backends.cudnn.benchmark", yes_or_no(False)),
                Evidence("convolutions per {unit}", rank.count_per_step(len(kernels)), "count"),
                Evidence("their time per {unit}", cost_ns, "ns"),
                Evidence("of it above the roofline, as far as known", bound_ns, "ns"),
            ),
        )


def repeats_each_step(rank: Rank, kernels: GpuQuery) -> bool:
    """Whether each step has the same kernels, as often: other shapes have other kernels, or other numbers of blocks."""
    table = kernels.table
    rows = np.flatnonzero(kernels.mask)
    edges = rank.steps.intervals
    step = np.searchsorted(edges[:, 0], table.start_ns[rows], side="right") - 1
    keys = np.stack([table.name[rows].astype(np.int64), table.blocks[rows].astype(np.int64)], axis=1)
    found = [np.unique(keys[step == number], axis=0, return_counts=True) for number in range(1, len(edges))]
    # Kernels may run on into the next step where the CPU runs ahead: the sets are compared, not the counts.
    return all(_is_same(found[0][0], each) for each, _ in found[1:]) and len(found[0][0]) > 0


def _is_same(one: Int64Array, other: Int64Array) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def excess_ns(rank: Rank, kernels: GpuQuery) -> float:
    """What the kernels take above their roofline; of those without a known one all of their time."""
    rows = np.flatnonzero(kernels.mask)
    best_ns = rank.bounds.roofline_ns[rows]
    return float(np.maximum(kernels.table.dur_ns[rows] - np.where(np.isnan(best_ns), 0.0, best_ns), 0).sum())
