"""The recorder's messages: lines on stderr for the user, marker files for the parent process."""

from __future__ import annotations

import contextlib
import os
import sys

USER_PROFILER = "the program's own profiler"
"""The first words of every note on a profiler of the program; the parent recognises these notes by them."""

ANSWER_FILE = "attach.json"
"""In the capture folder of `perfdoctor attach`: whether the recorder is in the program, else why not."""


def warn(message: str) -> None:
    """Write one line to stderr; a closed stderr must not disturb the program."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"perfdoctor: {message}\n")
        sys.stderr.flush()


def leave_marker(kind: str) -> None:
    """Write an empty file that shows the parent process how far this process came; without a parent, do nothing.

    sitecustomize.py writes the markers "python" and "torch" before this package is loaded.
    """
    with contextlib.suppress(OSError, KeyError):
        path = os.path.join(os.environ["PERFDOCTOR_CAPTURE_MARKS"], f"{os.getpid()}.{kind}")
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
