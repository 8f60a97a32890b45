"""The callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from perfdoctor.integrations.callback import SessionOwner


class LightningCallback(SessionOwner, Callback):  # type: ignore[misc]
    """Records the steps of `Trainer.fit`; a step is one optimizer step, however many batches it accumulates."""

    _steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning passes it
        """Begin to record."""
        self._steps = trainer.global_step
        self.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End a step where the optimizer has stepped."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Save what was recorded."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Save what was recorded until then."""
        self.end(exception)
