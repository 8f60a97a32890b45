"""PD506: the loss, and its gradient, are computed in float16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import orjson

from perfdoctor.rules import (
    Evidence,
    Finding,
    OpQuery,
    Rank,
    RankAnalyzer,
    SourceLocation,
    distinct,
    format_per_step,
    read_advice,
)

_HALF = "c10::Half"
# The ops that compute the gradients of losses, and the ops of the forward pass whose lines are the loss's.
_LOSSES: Mapping[str, tuple[str, str]] = {
    "aten::nll_loss_backward": ("cross entropy", "aten::nll_loss_forward"),
    "aten::nll_loss2d_backward": ("cross entropy", "aten::nll_loss2d_forward"),
    "aten::mse_loss_backward": ("mean squared error", "aten::mse_loss"),
    "aten::smooth_l1_loss_backward": ("smooth L1", "aten::smooth_l1_loss"),
    "aten::huber_loss_backward": ("Huber", "aten::huber_loss"),
    "aten::binary_cross_entropy_backward": ("binary cross entropy", "aten::binary_cross_entropy"),
    "BinaryCrossEntropyWithLogitsBackward0": ("binary cross entropy", "aten::binary_cross_entropy_with_logits"),
}
_WHY: Mapping[str, str] = {
    "cross entropy": "gradients of tokens or classes below 6e-8 become 0, and the loss has three digits",
    "mean squared error": "squares overflow from a difference of 256 on",
    "binary cross entropy": "probabilities above 0.9995 are 1, and their logarithms infinite",
}
_OTHER_WHY = "small gradients become 0, and sums overflow above 65,504"


class LossInHalf(RankAnalyzer):
    """The loss and its gradient are computed in float16, in which they underflow and overflow."""

    rule = "PD506"
    name = "loss-in-half"
    needs = frozenset({"cpu"})
    references = (
        "https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/",
        "https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each kind of loss whose gradient is computed in float16."""
        if rank.context.is_forward_only or "DeepSpeed" in rank.context.frameworks:
            return
        # A capture has types in its evidence window alone.
        recorded = rank if (rank.trace.ops.types >= 0).any() else rank.evidence
        if recorded is None:
            return
        for name, (loss, forward) in _LOSSES.items():
            gradients = _with_half_inputs(recorded, recorded.ops.named(f"^{name}$"))
            if len(gradients):
                often = format_per_step(recorded, len(gradients))
                yield self._report(rank, name, loss, often, recorded.ops.named(f"^{forward}$").location)

    def _report(self, rank: Rank, op: str, loss: str, often: str, location: SourceLocation | None) -> Finding:
        return self.finding(
            rank,
            title=f"The gradients are wrong: the {loss} loss is computed in float16",
            advice=read_advice("loss in float16", why=_WHY.get(loss, _OTHER_WHY)),
            location=location,
            subject=loss,
            evidence=(Evidence("gradients of losses in float16", often), Evidence("op", op)),
            makes_results_wrong=True,
        )


def _with_half_inputs(rank: Rank, ops: OpQuery) -> OpQuery:
    """Those of some ops whose gradient, the first input, and whose next input, if there is one, are float16."""
    types = ops.table.types
    codes = distinct(types[ops.mask])
    half = [code for code in codes.tolist() if code >= 0 and _are_half(rank.trace.text(code))]
    return ops.where(np.isin(types, half))


def _are_half(text: str | None) -> bool:
    try:
        types = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return False
    return isinstance(types, list) and len(types) > 0 and all(each == _HALF for each in types[:2])
