"""PD505: gradients are clipped, or applied, while they still carry the scale of a GradScaler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    captured_list,
    captured_location,
    captured_part,
)


class ClipBeforeUnscale(RankAnalyzer):
    """Gradients are clipped before they are unscaled, so that training goes wrong.

    What it finds:
        A clip of gradients (`clip_grad_norm_`, `clip_grad_value_`) between `GradScaler.scale` and the moment when the
        scaler divides the same gradients again. And losses that are scaled for an optimizer of the kind SGD which
        steps without the scaler, so that nothing ever divides its gradients.

    Why it costs time:
        It costs none: the results are wrong. The scaler multiplies the loss, and with it all gradients, by 65,536 at
        first. A limit of 1.0 then is one of 1/65,536, which every step exceeds: each update is 65,536 times smaller
        than was meant, or has another direction where values are clipped one by one. And the limit changes whenever
        the scale does.

    How it is measured:
        `perfdoctor run` sees the order of the calls, and whether the parameters that were clipped are those that the
        scaler unscaled afterwards. Scalers that are disabled do not count, nor limits above 1000, which somebody may
        have multiplied by the scale.

    How to fix:
        `scaler.unscale_(optimizer)` before the clip; `scaler.step` then does not unscale a second time.

    When it is wrong:
        Where the limit is meant for scaled gradients and is small. Trainers (Lightning, Hugging Face, Accelerate)
        unscale before they clip, and are not found.

    Needs:
        Captured facts (`perfdoctor run`).

    References:
        PyTorch, "Automatic Mixed Precision examples", section "Gradient clipping".
    """

    rule = "PD505"
    name = "clip-before-unscale"
    needs = frozenset({"facts"})
    references = ("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where any clip came too early, or where nothing is ever unscaled."""
        if rank.context.is_forward_only:
            return
        amp = captured_part(rank.facts, "amp")
        if _count(amp, "clipped_before_unscale"):
            yield self._report_clips(rank, amp)
        elif _never_unscales(rank, amp):
            yield self._report_scaled_steps(rank, amp)

    def _report_clips(self, rank: Rank, amp: Mapping[str, Any]) -> Finding:
        clips = _count(amp, "clipped_before_unscale")
        steps = max(_count(amp, "unscaled"), _count(amp, "scaler_steps"))
        often = "each time" if clips >= steps else "once" if clips == 1 else f"{clips:,} times"
        return self.finding(
            rank,
            title=f"The training is wrong: gradients are clipped before they are unscaled, {often}",
            cost_ns=0,
            saving=Saving(),
            advice="Unscale the gradients before this line: now the limit is divided by the scale (65,536 at first), "
            "so that each update is far smaller than was meant.",
            fix="scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
            "scaler.step(optimizer)",
            claim=Claim(),
            location=captured_location(amp.get("clip_location")),
            subject="clip",
            evidence=(
                Evidence("clips of scaled gradients", clips, "count"),
                Evidence("steps of optimizers by the scaler", steps, "count"),
            ),
            makes_results_wrong=True,
        )

    def _report_scaled_steps(self, rank: Rank, amp: Mapping[str, Any]) -> Finding:
        optimizer = _plain_optimizer(rank)
        return self.finding(
            rank,
            title="The training is wrong: the loss is scaled, and nobody unscales the gradients again",
            cost_ns=0,
            saving=Saving(),
            advice="Let the scaler step the optimizer: it divides the gradients by the scale (65,536 at first), and "
            "leaves steps out whose gradients overflow.",
            fix="scaler.step(optimizer)\nscaler.update()",
            claim=Claim(),
            location=captured_location(optimizer.get("location")),
            subject="step",
            evidence=(
                Evidence("scaled losses", _count(amp, "scaled"), "count"),
                Evidence("unscaled gradients", 0, "count"),
                Evidence("optimizer", str(optimizer.get("class"))),
            ),
            makes_results_wrong=True,
        )


def _count(amp: Mapping[str, Any], name: str) -> int:
    """A captured count; 0 where it was not captured, which is no evidence of anything."""
    value = amp.get(name)
    return value if isinstance(value, int) else 0


def _plain_optimizer(rank: Rank) -> Mapping[str, Any]:
    """The only optimizer, where its steps are as long as its gradients; empty else: Adam does not care for a scale."""
    optimizers = captured_list(rank.facts, "optimizers")
    return optimizers[0] if len(optimizers) == 1 and optimizers[0].get("class") == "SGD" else {}


def _never_unscales(rank: Rank, amp: Mapping[str, Any]) -> bool:
    """Whether the only optimizer steps by scaled gradients: neither the scaler nor the program divides them."""
    if amp.get("scaler_steps") != 0 or amp.get("scale_was_read") != 0 or amp.get("unscaled") != 0:
        return False
    steps = _plain_optimizer(rank).get("steps")
    return isinstance(steps, int) and 0 < steps <= _count(amp, "scaled")
