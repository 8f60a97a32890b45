"""The callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from perfdoctor.integrations.session_callback import SessionCallback


class LightningCallback(SessionCallback, Callback):  # type: ignore[misc]
    """Records the steps of `Trainer.fit`; a step is one optimizer step, however many batches it accumulates."""

    _steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning passes it
        """Begin to record."""
        self._steps = trainer.global_step
        self.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End a step if the optimizer has stepped in this batch."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.step()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Save what was recorded."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Save what was recorded before the exception."""
        self.end(exception)
