"""The callback for the Trainer of Hugging Face transformers, and of what is built on it (TRL, for one)."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from perfdoctor.integrations.session_callback import SessionCallback


class TransformersCallback(SessionCallback, TrainerCallback):  # type: ignore[misc]
    """Records the steps of `Trainer.train`; a step is one optimizer step, however many batches it accumulates."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to record."""
        self.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End a step; substeps of gradient accumulation call `on_substep_end` instead."""
        self.step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Save what was recorded."""
        self.end()
