"""What the program holds of the host's memory: what malloc has handed out, or else its own pages in RAM.

Memory in RAM is no measure of what a program keeps: malloc gives back to the system what and when it likes, so that RAM
rises and falls by a hundred MB in a program that keeps 6 MB a step. `mallinfo2` (glibc 2.33) counts exactly, but goes
over all free blocks: 0.4 us in a fresh process, 20 us after some training, 30 ms after hundreds of thousands of small
blocks. So a look is paced by its own cost.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .look_pace import PacedLook
from .step_memory import RamReader

# Libraries that take the place of glibc's malloc, of which mallinfo2 knows nothing.
OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


class MallocInfo(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class HeldMemory(PacedLook[int]):
    """Reads what the program holds: bytes; None between two looks, and where the system does not tell."""

    def __init__(self) -> None:
        self._ram = RamReader()
        self._count = find_malloc_info()
        super().__init__(self._ram.read_anonymous if self._count is None else self._read_count)

    def close(self) -> None:
        """Close the file."""
        self._ram.close()

    def _read_count(self) -> int:
        found = self._count()
        return int(found.uordblks + found.hblkhd)


def find_malloc_info() -> Any:
    """The function mallinfo2 of the C library; None where it has none, or another library allocates."""
    if any(name in os.environ.get("LD_PRELOAD", "") for name in OTHER_ALLOCATORS):
        return None
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # an older glibc, another C library, Windows
        return None
    function.restype = MallocInfo
    return function
