"""Removes the recorder from the program's tracebacks: an error that passes through a wrapper is the program's error.

This file imports no torch, because `perfdoctor.capture.session` needs it before torch is loaded.
"""

from __future__ import annotations

import os

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


def remove_own_frames(error: BaseException, own_prefix: str = OWN_FOLDER) -> None:
    """Remove the wrapper's frames from the traceback of an error that passes through the wrapper.

    A bare `raise` must follow: it adds no new entry for the frame that it stands in. The file names of these frames
    begin with `own_prefix`.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(own_prefix):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
