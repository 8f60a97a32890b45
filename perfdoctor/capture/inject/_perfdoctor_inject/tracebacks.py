"""The program's tracebacks without us: an error that passes through a wrapper of ours is the program's."""

from __future__ import annotations

import os

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def leave_no_frame(error: BaseException, ours: str = HERE) -> None:
    """Take our own frame out of the traceback of an error that passes through it.

    Works with a bare `raise` behind it, which adds no entry for the frame that it is in.

    Args:
        error: The error that was caught.
        ours: What the names of our files begin with.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(ours):
        traceback = traceback.tb_next
    error.__traceback__ = traceback
