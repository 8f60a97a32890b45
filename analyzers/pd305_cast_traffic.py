"""PD305: autocast casts the same weights at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfdoctor.rules import (
    Claim,
    Context,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    advise,
    intervals,
    remove_items,
    traffic_kinds,
    vocabulary,
)


class CastTraffic(RankAnalyzer):
    """Autocast casts the weights to half precision, and their gradients back, at every step."""

    rule = "PD305"
    name = "cast-traffic"
    needs = frozenset({"kernels", "launches", "shapes"})
    # min_share: twice that of a low finding, as float32 master weights need one cast a step in any
    # case. min_kernels: fewer casts are not autocast.
    defaults = {"min_share": 0.02, "min_kernels": 5}
    references = (
        "https://docs.pytorch.org/docs/stable/amp.html",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when casts of weights take at least `min_share` of the step."""
        casts = rank.kernels.where(rank.traffic.match_rows(traffic_kinds.WEIGHT_CAST))
        time = casts.time
        cost_ns, cast_count = rank.per_step(intervals.total(time)), rank.count_per_step(len(casts))
        if cast_count < self.settings["min_kernels"] or not self.exceeds_min_share(rank, cost_ns):
            return
        of_gradients = casts & rank.ops.named(vocabulary.CAST_BACKWARD).kernels
        of_weights = casts - of_gradients
        is_training = len(of_gradients) > 0 or bool((rank.traffic.optimizer_step >= 0).any())
        traffic_bytes = float(np.nansum(rank.kernel_costs.bytes[casts.mask]))
        yield self.finding(
            rank,
            title=f"The weights are cast at every step: {cast_count:,} casts {rank.per_unit}",
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=advise("weights cast at every step", _with_training(rank.context) if is_training else rank.context),
            claim=Claim(time, kernels=True),
            confidence=0.8,
            location=of_weights.location,
            evidence=(
                Evidence("of weights", rank.per_step(of_weights.time_ns), "ns"),
                Evidence("of their gradients", rank.per_step(of_gradients.time_ns), "ns"),
                Evidence("read and written", rank.count_per_step(round(traffic_bytes)), "bytes"),
            ),
            # Weights that are cast before the loop need no cast in it; in training some casts always remain.
            edit=remove_items(rank.trace, casts.rows, is_upper_bound=is_training),
        )


def _with_training(context: Context) -> Context:
    """The program, as one that trains where its phase is unknown."""
    return replace(context, phase="training") if context.phase == "unknown" else context
