"""PD505: gradients are clipped, or applied, while they still carry the scale of a GradScaler."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.rules import (
    Evidence,
    Finding,
    MixedPrecisionCalls,
    OptimizerFacts,
    Rank,
    RankAnalyzer,
    captured_location,
    read_advice,
)


class ClipBeforeUnscale(RankAnalyzer):
    """Gradients are clipped before they are unscaled, so that training goes wrong."""

    rule = "PD505"
    name = "clip-before-unscale"
    needs = frozenset({"facts"})
    references = ("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where any clip came too early, or where nothing is ever unscaled."""
        if rank.context.is_forward_only:
            return
        amp = rank.facts.amp
        if amp.clipped_before_unscale or 0:
            yield self._report_clips(rank, amp)
        elif _never_unscales(rank, amp):
            yield self._report_scaled_steps(rank, amp)

    def _report_clips(self, rank: Rank, amp: MixedPrecisionCalls) -> Finding:
        clips = amp.clipped_before_unscale or 0
        steps = max(amp.unscaled or 0, amp.scaler_steps or 0)
        often = "each time" if clips >= steps else "once" if clips == 1 else f"{clips:,} times"
        return self.finding(
            rank,
            title=f"The training is wrong: gradients are clipped before they are unscaled, {often}",
            advice=read_advice("gradients clipped too early"),
            location=captured_location(amp.clip_location),
            subject="clip",
            evidence=(
                Evidence("clips of scaled gradients", clips, "count"),
                Evidence("steps of optimizers by the scaler", steps, "count"),
            ),
            makes_results_wrong=True,
        )

    def _report_scaled_steps(self, rank: Rank, amp: MixedPrecisionCalls) -> Finding:
        optimizer = _plain_optimizer(rank)
        return self.finding(
            rank,
            title="The training is wrong: the loss is scaled, and nobody unscales the gradients again",
            advice=read_advice("gradients that nobody unscales"),
            location=captured_location(optimizer.location),
            subject="step",
            evidence=(
                Evidence("scaled losses", (amp.scaled or 0), "count"),
                Evidence("unscaled gradients", 0, "count"),
                Evidence("optimizer", str(optimizer.class_)),
            ),
            makes_results_wrong=True,
        )


def _plain_optimizer(rank: Rank) -> OptimizerFacts:
    """The only optimizer, where its steps are as long as its gradients; empty else: Adam does not care for a scale."""
    optimizers = rank.facts.optimizers
    return optimizers[0] if len(optimizers) == 1 and optimizers[0].class_ == "SGD" else OptimizerFacts()


def _never_unscales(rank: Rank, amp: MixedPrecisionCalls) -> bool:
    """Whether the only optimizer steps by scaled gradients: neither the scaler nor the program divides them."""
    if amp.scaler_steps != 0 or amp.scale_was_read != 0 or amp.unscaled != 0:
        return False
    return 0 < (_plain_optimizer(rank).steps or 0) <= (amp.scaled or 0)
