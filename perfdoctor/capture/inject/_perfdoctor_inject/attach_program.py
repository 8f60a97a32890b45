"""The entry point of `perfdoctor attach`: called in the main thread of a program that runs already."""

from __future__ import annotations

import json
import os
import sys

from .attached_recorder import DETACHED, AttachedRecorder
from .messages import ANSWER_FILE
from .recorder_settings import parse_settings

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
