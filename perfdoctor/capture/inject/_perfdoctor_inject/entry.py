"""Where sitecustomize hands over, once torch is imported."""

from __future__ import annotations

from . import settings
from .exits import Exits
from .hooks import Hooks
from .marks_only import MarksOnly
from .output import warn
from .recorder import Recorder

_active: tuple[Recorder, Hooks] | None = None


def install() -> None:
    """Start listening in this process; without settings in the environment, do nothing."""
    global _active
    wanted = settings.from_environment()
    if wanted is None or _active is not None:
        return
    recorder = MarksOnly(wanted) if wanted.nvtx_only else Recorder(wanted)
    hooks = Hooks(recorder)
    _active = recorder, hooks
    try:
        hooks.install()
    except Exception as error:
        hooks.remove()
        recorder.finished = True
        warn(f"nothing is recorded, because this torch is unlike those known: {error!r}")
        return
    Exits(recorder).install()


def stand_down() -> str | None:
    """A session of the user's own takes over from the injected recorder.

    Returns:
        The capture folder that it may write to, or None when the recorder had its own steps already or never ran.
    """
    if _active is None:
        return None
    recorder, hooks = _active
    begun = recorder.folder is not None
    recorder.finish("session")
    hooks.remove()
    return None if begun else recorder.settings.folder
