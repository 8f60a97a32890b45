"""A recorder that is put into a running program for one set of windows, and takes itself out again.

`perfdoctor record` asks for one in a program under `perfdoctor run --watch`, `perfdoctor attach` in any other.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable

from .messages import ANSWER_FILE
from .recorder import Recorder
from .recorder_settings import RecorderSettings, parse_settings
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


_attached: AttachedRecorder | None = None


def attach(settings_text: str) -> None:
    """Put a recorder into this program, and write the answer into the capture folder; never raises."""
    global _attached
    settings = parse_settings(settings_text)
    try:
        # Without this, Kineto writes its progress lines to the program's stderr; it reads the variable at first use.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        why = find_obstacle()
        if why is None:
            _attached = AttachedRecorder(settings, forget)
            _attached.attach()
    except Exception as error:
        why = repr(error)
    path = os.path.join(settings.folder, ANSWER_FILE)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"pid": os.getpid(), "why_not": why}, file)
    os.replace(f"{path}.part", path)


def find_obstacle() -> str | None:
    """Why no recorder can be put into this program; None where one can."""
    if _attached is not None:
        return "perfdoctor attach records it already"
    run = sys.modules.get("_perfdoctor_inject.install_recorder")
    if run is not None and run.is_recording():
        return "perfdoctor run records it already"
    return None


def detach() -> None:
    """Take the recorder out before its windows are complete; what was recorded is saved."""
    if _attached is not None:
        _attached.finish(DETACHED)


def forget(_recorder: AttachedRecorder) -> None:
    """The recorder is out of the program: another one may come."""
    global _attached
    _attached = None
