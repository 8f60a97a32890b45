"""Keeps torch's CPU allocator from writing to the program's stderr while its memory is profiled.

With `profile_memory` the allocator logs a warning for every block that is older than the profile, and every training
program has such blocks. The C++ log level is a plain global of libc10. It is raised to errors while the evidence
window records and restored afterwards. Warnings that Python handles are not affected.
"""

from __future__ import annotations

import ctypes
import glob
import os

import torch

LOG_LEVEL = "FLAGS_caffe2_log_level"
ERRORS_ONLY = 2


class AllocatorWarnings:
    """The log level of libc10, where it can be found."""

    def __init__(self) -> None:
        self._level = find_log_level()
        self._previous: int | None = None

    @property
    def can_be_muted(self) -> bool:
        """Whether memory can be profiled without any output on stderr."""
        return self._level is not None

    def mute(self) -> None:
        """Log errors only."""
        if self._level is not None and self._previous is None:
            self._previous = self._level.value
            self._level.value = max(self._previous, ERRORS_ONLY)

    def unmute(self) -> None:
        """Restore the log level."""
        if self._level is not None and self._previous is not None:
            self._level.value, self._previous = self._previous, None


def find_log_level() -> ctypes.c_int | None:
    """The variable of the log level, or None on a torch that logs in another way."""
    libraries = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "*c10.*"))
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(libraries[0]), LOG_LEVEL)
    except (IndexError, OSError, ValueError):
        return None
