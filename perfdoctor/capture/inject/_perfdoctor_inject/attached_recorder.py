"""A recorder that is put into a running program for one set of windows, and takes itself out again.

`perfdoctor record` asks for one in a program under `perfdoctor run --watch`, `perfdoctor attach` in any other.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from .recorder import Recorder
from .recorder_settings import RecorderSettings
from .torch_hooks import Hooks

# How the recording ended, in facts.json: all windows are complete, and the program runs on without the recorder.
DETACHED = "detached"


class AttachedRecorder(Recorder):
    """A recorder with hooks of its own, which are removed once its windows are recorded, or cannot be."""

    def __init__(self, settings: RecorderSettings, on_end: Callable[[AttachedRecorder], None] = lambda _: None) -> None:
        """Install nothing yet; `on_end` is called once, when the hooks are removed."""
        super().__init__(settings)
        self._hooks = Hooks(self)
        self._on_end = on_end
        self._is_attached = False

    def attach(self) -> None:
        """Install the hooks; the first window begins at the next step border that they see."""
        self._is_attached = True
        try:
            self._hooks.install()
        except Exception as error:
            self.give_up(error)
            return
        self._hooks.call_recorder(self._find_optimizers)
        atexit.register(self.finish, "exit")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._finish_in_child)

    def _find_optimizers(self) -> None:
        """Know the optimizers that were made before; in a program that has any, calls of models mark no steps."""
        if self.gradients.find_optimizers() and self.stop_watching_forwards is not None:
            self.stop_watching_forwards()

    def finish(self, reason: str) -> None:
        """Save what was recorded, and take everything out of the program; safe to call again."""
        super().finish(reason)
        self._detach()

    def _stop_early(self) -> None:
        super()._stop_early()
        self._detach()

    def _finish_windows(self) -> None:
        super()._finish_windows()
        self.finish(DETACHED)

    def _make_rank_folder(self) -> bool:
        made = super()._make_rank_folder()
        if self.finished:
            self._detach()
        return made

    def _detach(self) -> None:
        if not self._is_attached:
            return
        self._is_attached = False
        self._hooks.remove()
        atexit.unregister(self.finish)
        self._on_end(self)

    def _finish_in_child(self) -> None:
        """Record nothing in the child of a fork, whose parent is recorded."""
        self.finished = True
