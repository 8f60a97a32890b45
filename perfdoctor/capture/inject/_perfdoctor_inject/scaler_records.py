"""The order in which a program scales, clips and unscales its gradients: what is wrong only where all of it is seen."""

from __future__ import annotations

from collections import Counter
from types import FrameType
from typing import Any

import torch

from .user_code import Location, user_location

# Who clips scaled gradients on purpose multiplies the limit by the scale (65,536 at first). Limits that people mean for
# gradients are a few units.
LARGEST_USUAL_LIMIT = 1000.0


class ScalerRecords:
    """What enabled gradient scalers did.

    Gradients count as clipped too early where parameters are clipped after a loss was scaled, and a scaler divides the
    gradients of the same parameters afterwards: whatever else a program does with its gradients is not seen as wrong.

    Attributes:
        clipped_too_early: How often gradients were clipped while they were scaled.
        clip_line: The line that did it last.
        are_gradients_scaled: Whether a loss was scaled since the last `update`.
    """

    def __init__(self) -> None:
        self.clipped_too_early = 0
        self.clip_line: Location | None = None
        self.are_gradients_scaled = False
        self._steps = 0
        self._scale_was_read = 0
        # Parameters, by identity, since the last `update`.
        self._clipped: set[int] = set()
        self._unscaled: set[int] = set()
        self._frame_line: Location | None = None

    def on_scale(self, counts: Counter[str], *_: Any, **__: Any) -> None:
        """A loss is about to be scaled."""
        counts["scaled"] += 1
        self.are_gradients_scaled = True

    def on_step(self, _: Counter[str], optimizer: Any, *__: Any, **___: Any) -> None:
        """An optimizer is about to step by the scaler, which unscales its gradients, or lets a fused one do it."""
        self._steps += 1
        self._check_clips(optimizer)

    def on_get_scale(self, *_: Any, **__: Any) -> None:
        """The program asks for the scale: it may unscale by itself."""
        self._scale_was_read += 1

    def on_clip(self, parameters: Any, limit: Any, frame: FrameType | None) -> None:
        """The code in `frame` is about to clip the gradients of these parameters to a limit."""
        if not isinstance(limit, int | float) or limit > LARGEST_USUAL_LIMIT:
            return
        clipped = map(id, [parameters] if isinstance(parameters, torch.Tensor) else parameters)
        self._clipped.update(each for each in clipped if each not in self._unscaled)
        self._frame_line = user_location(frame)

    def on_unscale_(self, counts: Counter[str], optimizer: Any, *_: Any, **__: Any) -> None:
        """The gradients of an optimizer are about to be unscaled, by the program or by `GradScaler.step`."""
        counts["unscaled"] += 1
        self._unscaled |= self._check_clips(optimizer)

    def _check_clips(self, optimizer: Any) -> set[int]:
        """Count a clip of this optimizer's parameters, whose gradients are scaled up to now; returns the parameters."""
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if not own.isdisjoint(self._clipped):
            self.clipped_too_early += 1
            self.clip_line = self._frame_line
            self._clipped -= own
        return own

    def on_update(self) -> None:
        """`GradScaler.update` has run: the next iteration begins."""
        self.are_gradients_scaled = False
        self._clipped.clear()
        self._unscaled.clear()

    def to_dict(self) -> dict[str, Any]:
        """What stands in facts.json."""
        return {
            "clipped_before_unscale": self.clipped_too_early,
            "clip_location": self.clip_line,
            "scaler_steps": self._steps,
            "scale_was_read": self._scale_was_read,
        }
