"""Results that no step changes, by their values: work that could be done once, before the loop.

Positional encodings, masks, grids, a normalised graph, the features of a fixed image or text::

    for x, y in loader:
        basis = torch.exp(-torch.cdist(centres, grid))   # the same in each step
        loss = criterion(model(x) @ basis, y)

Compared are samples of what torch's functions return in the steps of the evidence window.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch

from .tensor_samples import read_sample

# The range behind a call that returned what it returned in the steps before; it takes no time.
UNCHANGED = "perfdoctor::unchanged"
# A call that takes less is not looked at (a look takes 10 us), a smaller result may be equal by chance.
MIN_CALL_NS = 50_000
_MIN_ELEMENTS = 64
_BLOCKS, _BLOCK_BYTES = 16, 1024
# Two steps may be alike by chance, such as those that use one batch twice.
_MIN_STEPS = 3
# New memory is asked for to be written to, and may have to be new in each step.
_MAKES_MEMORY = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("zeros", "ones", "full", "empty", "clone", "copy", "deepcopy")
    for prefix in ("", "new_", "__")
    for suffix in ("", "_like", "__")
)
_NOT_LOOKED_AT, _HAS_CHANGED = 0, -1


class UnchangedResults:
    """What the calls of each function at each line returned, by their place among those of a step."""

    def __init__(self) -> None:
        # Of each call that was looked at the last sample, and in how many steps one after the other it was the same.
        self._results: dict[tuple[str, Any, int], tuple[int, int]] = {}
        self._places: dict[tuple[str, Any], int] = {}
        # Where nothing changes a model is given one input on purpose, to measure it.
        self._any_has_changed = False

    def begin_step(self) -> None:
        """The next results are of another step, of this window or of a later one."""
        self._places.clear()

    def add(self, line: str, function: Any, arguments: tuple[Any, ...], result: Any, dur_ns: int) -> bool:
        """One call at a line of the user's code, and how long it took.

        Returns whether it returned the same as the calls at this place of all steps before, at least two, while others
        did not.
        """
        place = self._places.get((line, function), 0)
        self._places[line, function] = place + 1
        call = line, function, place
        if dur_ns < MIN_CALL_NS and call not in self._results:
            return False
        before, steps = self._results.get(call, (_NOT_LOOKED_AT, 0))
        if steps == _HAS_CHANGED:
            return False
        sample = _sample(result) if _makes_result(function, arguments, result) else _NOT_LOOKED_AT
        is_same = sample != _NOT_LOOKED_AT and sample == before
        self._any_has_changed |= not is_same and steps > 0
        self._results[call] = (sample, steps + 1 if is_same or not steps else _HAS_CHANGED)
        return is_same and steps >= _MIN_STEPS - 1 and self._any_has_changed


def _makes_result(function: Any, arguments: tuple[Any, ...], result: Any) -> bool:
    """Whether a function computes something, neither changes an argument nor gives it back, and makes no new memory."""
    name = getattr(function, "__name__", "")
    is_in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set"))
    # No generator: the window records each call of a function of Python's.
    return not is_in_place and name not in _MAKES_MEMORY and id(result) not in map(id, arguments)


def _sample(result: Any) -> int:
    """A checksum of some of a tensor's elements; 0 where it is small, all alike, or cannot be read."""
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    if type(result) is not torch.Tensor or result.numel() < _MIN_ELEMENTS:
        return _NOT_LOOKED_AT
    sample, item_bytes = read_sample(result, _BLOCKS, _BLOCK_BYTES), result.element_size()
    is_all_alike = sample == sample[:item_bytes] * (len(sample) // item_bytes)
    return _NOT_LOOKED_AT if is_all_alike else zlib.crc32(sample) or 1
