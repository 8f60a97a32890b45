"""PD305: autocast casts the same weights at every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.analysis.kernels.traffic_kinds import WEIGHT_CAST
from perfdoctor.analysis.launching_ops import match_launching_ops
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.savings.edits import remove_items
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.rows import GpuRows


class CastTraffic(RankAnalyzer):
    """Autocast casts the weights to half precision, and their gradients back, again and again.

    What it finds:
        Kernels that copy a weight from one floating-point type to another right before the product or convolution
        that uses it, and those that cast its gradient back.

    Why it costs time:
        A cast of a float32 weight to half precision moves 6 bytes a parameter, and its gradient's another 6. The
        smaller the batch, the more of the step that is: the casts do not shrink with it.

    How it is measured:
        Copies between floating-point types within aten::to within a linear, product or convolution, whose size is
        that of an argument behind the first; and copies of the same sizes and reversed types in ToCopyBackward0.
        Casts of activations are not counted here.

    How to fix:
        Inference: cast once, model.to(torch.bfloat16), and leave autocast out. Training: keep the weights in bfloat16
        with an optimizer or wrapper that has float32 master weights; one autocast context around the accumulated
        passes of a step, so that its cache is used; a larger batch.

    When it is wrong:
        Training in bfloat16 without master weights can lose small updates. torch.compile can fuse the casts.

    Needs:
        Kernels, launches, shapes.

    References:
        PyTorch, "Automatic Mixed Precision", cache_enabled; PyTorch AMP examples.
    """

    rule: ClassVar[str] = "PD305"
    name: ClassVar[str] = "cast-traffic"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels", "launches", "shapes"})
    # min_share: of the step, a low finding's least (contracts.md) twice over, as master weights in float32 need one
    # cast a step in any case.
    # min_kernels: a few casts are no autocast.
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"min_share": 0.02, "min_kernels": 5})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.pytorch.org/docs/stable/amp.html",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when casts of weights take at least `min_share` of the step."""
        rows = rank.traffic.match_rows(WEIGHT_CAST)
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        casts = rank.per_step(int(rows.sum()))
        if casts < self.settings["min_kernels"] or not self.exceeds_min_share(rank, cost):
            return
        back = rows & match_launching_ops(rank.trace, vocabulary.CAST_BACKWARD)
        trains = bool(back.any()) or bool((rank.traffic.optimizer_step >= 0).any())
        moved = rank.kernel_costs.bytes[rows]
        yield self.finding(
            rank,
            title=f"The weights are cast at every step: {casts:,} casts a {rank.unit_name}",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice=_advice(trains),
            fix=None if trains else "model = model.to(torch.bfloat16)   # in place of torch.autocast",
            claim=Claim(time, kernels=True),
            confidence=0.8,
            location=rank.locations.of_items(rows & ~back),
            evidence=(
                Evidence("of weights", _spent(rank, rows & ~back), "ns"),
                Evidence("of their gradients", _spent(rank, back), "ns"),
                Evidence("read and written", rank.per_step(round(float(np.nansum(moved)))), "bytes"),
            ),
            edit=remove_items(rank.trace, GpuRows(rank.trace.gpu, rows)),
        )


def _spent(rank: Rank, rows: BoolArray) -> int:
    return rank.per_step(iv.total(rank.time_in_window(rows)))


def _advice(trains: bool) -> str:
    if not trains:
        return "Cast the weights once, before the loop: model.to(torch.bfloat16), and leave autocast out."
    return (
        "Keep the weights in bfloat16 with float32 master weights in the optimizer; with gradient accumulation put one "
        "autocast context around all passes of a step; or give the casts a larger batch to spread over."
    )
