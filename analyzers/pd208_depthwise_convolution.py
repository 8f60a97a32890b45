"""PD208: depthwise and grouped convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.matrix_kernels import LEAST_TIME_NS, matrix_rows
from perfdoctor.rules.top_kernels import top_kernels, top_op
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.tables import intervals as iv


class DepthwiseConvolution(RankAnalyzer):
    """Depthwise or grouped convolutions take a noticeable part of the step.

    What it finds:
        Time of depthwise convolutions (each channel by itself) and of those in groups of under 32 channels.

    Why it costs time:
        They do few operations on each value that they read, so that memory bounds them and Tensor Cores stay idle:
        fewer FLOPs than a dense convolution, but often no less time.

    How it is measured:
        Kernels whose name says that they are depthwise, and convolutions whose recorded shapes say that they come in
        such groups. It is information: no saving is promised.

    How to fix:
        Nothing, if the model is meant to be so. When designing a model: dense convolutions with fewer channels, or
        blocks that fuse the depthwise part (EfficientNetV2's fused MBConv); channels_last and half precision halve
        the traffic.

    When it is wrong:
        Where parameters or accuracy count, not time.

    Needs:
        Kernels; shapes for kernels whose name does not tell.

    References:
        NVIDIA Deep Learning Performance, "Convolutional Layers User's Guide"; Tan and Le, "EfficientNetV2".
    """

    rule: ClassVar[str] = "PD208"
    name: ClassVar[str] = "depthwise-convolution"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share: information is worth reading only about what is noticeable. max_channels: EfficientNetV2 and NVIDIA's
    # guide ask for at least a tile's 32 channels before Tensor Cores gain anything.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.05, "max_channels": 32})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/",
        "https://arxiv.org/abs/2104.00298",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such convolutions take at least `min_share` of the step."""
        few = self.settings["max_channels"]
        by_shape = [(c.groups or 1) > 1 and (c.channels_in or few) < few for c in rank.kernel_costs.op_costs]
        convolutions = matrix_rows(rank, "convolution")
        rows = convolutions & np.array([*by_shape, False], bool)[rank.kernel_costs.op_cost]
        rows |= convolutions & rank.kernel_classes.match_rows(lambda k: k.depthwise)
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        if iv.total(time) < LEAST_TIME_NS or not self.exceeds_min_share(rank, cost):
            return
        dur = rank.trace.gpu.dur_ns
        op = top_op(rank, rows)
        finding = self.finding(
            rank,
            title=f"{dur[rows].sum() / max(dur[convolutions].sum(), 1):.0%} of the convolution time is in depthwise or "
            "grouped convolutions",
            cost_ns=cost,
            saving=Saving(),
            advice="Memory bounds these, whatever their FLOPs say: channels_last and half precision halve the traffic; "
            "a new design may do better with dense convolutions of fewer channels.",
            claim=Claim(),
            confidence=0.8,
            location=rank.locations.of_op(op) if op else None,
            evidence=(Evidence("launched by", op), *top_kernels(rank, rows)),
        )
        yield replace(finding, severity="info")
