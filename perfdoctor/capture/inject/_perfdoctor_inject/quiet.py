"""Keeps torch's CPU allocator from writing to the program's stderr while its memory is profiled.

With `profile_memory` it logs a warning for every block that is older than the profile, which is every training
program's case. The C++ log level is a plain global of libc10; it is raised to errors while the evidence window records
and put back after it. Warnings that reach Python are not affected.
"""

from __future__ import annotations

import ctypes
import glob
import os

import torch

LEVEL = "FLAGS_caffe2_log_level"
ERRORS_ONLY = 2


class QuietAllocator:
    """The log level of libc10, where it can be found."""

    def __init__(self) -> None:
        self._level = find_level()
        self._before: int | None = None

    @property
    def available(self) -> bool:
        """Whether memory can be profiled without a word on stderr."""
        return self._level is not None

    def on(self) -> None:
        """Log errors only."""
        if self._level is not None and self._before is None:
            self._before = self._level.value
            self._level.value = max(self._before, ERRORS_ONLY)

    def off(self) -> None:
        """Put the level back."""
        if self._level is not None and self._before is not None:
            self._level.value, self._before = self._before, None


def find_level() -> ctypes.c_int | None:
    """The variable itself, or None on a torch that logs in another way."""
    libraries = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "*c10.*"))
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(libraries[0]), LEVEL)
    except (IndexError, OSError, ValueError):
        return None
