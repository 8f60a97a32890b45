"""How many multiprocessors the device has, by its kernels, for files that do not list their devices.

The profiler writes how many warps of a kernel each multiprocessor gets, beside the kernel's grid and block: 6 blocks of
16 warps at 1.2 warps a multiprocessor are 80 of them. The number is the same for all kernels, so a sample of the text
will do, and no column has to hold it.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from perfdoctor.trace.scanner.text_window import Source

_ARGUMENT = b'"warps per SM"'
_SIZES = rb"\[\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\]"
_LAUNCH = re.compile(
    _ARGUMENT + rb'\s*:\s*(\d{1,9}(?:\.\d{1,9})?)\s*,\s*"grid"\s*:\s*' + _SIZES + rb'\s*,\s*"block"\s*:\s*' + _SIZES
)
_LONGEST_LAUNCH = 256  # bytes
_LISTED = re.compile(rb'"deviceProperties"\s*:\s*\[\s*\{')
_WARP = 32  # threads
_SAMPLES = 64
# Of a long text without such launches, as of an AMD GPU, the search would take a third of the time of reading.
_SEARCHED_WHOLE_BYTES, _SEARCHED_AFTER_BYTES = 16 << 20, 1 << 17
_TOLERANCE = 0.004  # of a number that is printed with as few as three digits
_AGREEMENT = 0.9
_MAX_COUNT = 1024  # no GPU has more multiprocessors


class MultiprocessorCounter:
    """A source of text that looks at what passes through it: at all of the beginning, then at a part of each piece.

    Attributes:
        found: How many of the launches that were seen say which number of multiprocessors.
    """

    def __init__(self, source: Source) -> None:
        self.found: Counter[int] = Counter()
        self._source = source
        self._before: bytes | None = b""
        self._passed_bytes = 0

    def __call__(self, view: memoryview) -> int:
        """Fill a part of a buffer, as a `Source` does."""
        count = self._source(view)
        if self._before is not None:
            self._passed_bytes += count
            is_long = self._passed_bytes > _SEARCHED_WHOLE_BYTES
            self.look_at(bytes(view[: min(count, _SEARCHED_AFTER_BYTES) if is_long else count]))
        return count

    def look_at(self, text: bytes) -> None:
        """Look at the next piece of the text. Files that list their devices do so before their events."""
        if self._before is None:
            return
        is_head = len(self._before) < _LONGEST_LAUNCH
        text = self._before + text
        if is_head and _LISTED.search(text):
            self._before = None
            return
        end = 0
        if _ARGUMENT in text:
            for launch in _LAUNCH.finditer(text):
                end = launch.end()
                self._count(launch)
                if self.found.total() >= _SAMPLES:
                    break
        self._before = text[max(end, len(text) - _LONGEST_LAUNCH) :] if self.found.total() < _SAMPLES else None

    def _count(self, launch: re.Match[bytes]) -> None:
        warps_each = float(launch[1])
        blocks, threads = (math.prod(map(int, launch.group(*groups))) for groups in ((2, 3, 4), (5, 6, 7)))
        if not warps_each:
            return
        number = blocks * math.ceil(threads / _WARP) / warps_each
        if abs(number - round(number)) <= _TOLERANCE * number and 0 < round(number) <= _MAX_COUNT:
            self.found[round(number)] += 1

    @property
    def number(self) -> int | None:
        """The number on which nearly all agree; None where there is none."""
        number, count = max(self.found.items(), key=lambda item: item[1], default=(0, 0))
        return number if count and count >= _AGREEMENT * self.found.total() else None
