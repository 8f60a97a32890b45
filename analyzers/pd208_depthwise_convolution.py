"""PD208: depthwise and grouped convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.rules import Evidence, Finding, Rank, RankAnalyzer, advise, find_matrix_kernels, top_kernels, top_op
from perfdoctor.rules.internal import MIN_TIME_NS, find_helpers


class DepthwiseConvolution(RankAnalyzer):
    """Depthwise or grouped convolutions take a noticeable part of the step."""

    rule = "PD208"
    name = "depthwise-convolution"
    needs = frozenset({"kernels"})
    # min_share: information is worth reading only about what is noticeable. max_channels: EfficientNetV2 and NVIDIA's
    # guide ask for at least a tile's 32 channels before Tensor Cores gain anything.
    defaults = {"min_share": 0.05, "max_channels": 32}
    references = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        "https://arxiv.org/abs/2104.00298",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such convolutions take at least `min_share` of the step."""
        costs, dur_ns, few = rank.kernel_costs, rank.trace.gpu.dur_ns, self.settings["max_channels"]
        has_few_channels = costs.match_op_costs(lambda c: (c.groups or 1) > 1 and (c.channels_in or few) < few)
        convolutions = find_matrix_kernels(rank, "convolution")
        grouped = convolutions.where(has_few_channels[costs.op_cost]) | convolutions.of_class(lambda k: k.depthwise)
        time_ns = (grouped | find_helpers(rank, grouped)).time_ns
        cost_ns = rank.per_step(time_ns)
        if time_ns < MIN_TIME_NS or not self.exceeds_min_share(rank, cost_ns):
            return
        share = dur_ns[grouped.mask].sum() / max(dur_ns[convolutions.mask].sum(), 1)
        op = top_op(rank, grouped.mask)
        finding = self.finding(
            rank,
            title=f"{share:.0%} of the convolution time is in depthwise or grouped convolutions",
            cost_ns=cost_ns,
            advice=advise("depthwise convolutions", rank.context),
            confidence=0.8,
            location=grouped.location,
            evidence=(Evidence("launched by", op), *top_kernels(rank, grouped.mask)),
        )
        yield replace(finding, severity="info")
