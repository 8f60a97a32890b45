"""Looks at the values of the program's tensors: how they are read, and what calls in the evidence window show by them.

Results that no step changes, which could be made once, before the loop: positional encodings, masks, grids, a
normalised graph, the features of a fixed image or text::

    for x, y in loader:
        basis = torch.exp(-torch.cdist(centres, grid))   # the same in each step
        loss = criterion(model(x) @ basis, y)

Products with a matrix that is zero nearly everywhere: a graph's adjacency or its nodes' features, and the attention of
all pairs of which a mask leaves few. Which activations a ReLU lets pass changes with each step: they are left alone::

    scores = scores.masked_fill(adjacency == 0, -9e15).softmax(1)
    h = scores @ values                                             # 99 % of the scores are 0

Rows that layers compute in vain are in needed_rows.py, what is computed again within a step in value_numbers.py. Looks
read from the memory of the CPU, by the protocol DLPack: on another device a look would wait, an op would be recorded as
one of the program's, and `Tensor.numpy` is some, and lets nobody resize the memory afterwards. So without numpy there
are no looks, and none at bfloat16, which it lacks.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from typing import Any, Literal

import torch

# A call that takes less is not looked at (a look takes 15 us).
MIN_CALL_NS = 50_000
# The range behind a call that returned what it returned in the steps before; it takes no time.
UNCHANGED = "perfdoctor::unchanged"
# A smaller result may be equal by chance.
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

# With the operand's number and the zeros of a thousand numbers behind it.
FIXED, MASKED = "perfdoctor::zeros", "perfdoctor::masked_zeros"
# The names of torch's functions; the operands that may be such a matrix are the first two.
_PRODUCTS = frozenset(("mm", "bmm", "matmul", "__matmul__", "linear"))
_MIN_NUMBERS = 1 << 14
# Measured by CPU time with one thread (torch 2.13; 500 to 3,000 rows, 16 to 256 columns, with the backward pass): with
# 2 % of the numbers other than 0 a sparse product takes 0.3 to 1.4 times as long, with 10 % as long and longer.
_MIN_ZEROS = 980
_ZERO_BLOCKS, _ZERO_BLOCK_BYTES = 32, 128
_FORMATS: dict[torch.dtype, Literal["f", "d"]] = {torch.float32: "f", torch.float64: "d"}
# From a product back to the softmax: dropout, casts, views.
_MAX_DISTANCE = 4


def is_readable(value: Any) -> bool:
    """Whether it is a plain tensor whose values lie in the memory of the CPU.

    Sharding frees the memory of tensors that keep their size. Tensors within a transform, as of torch.func, have none:
    that is torch's RuntimeError.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "cpu":
        return False
    if value.layout is not torch.strided or not value.numel() or "numpy" not in sys.modules:
        return False
    extent = 1 + sum([(size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)])
    return bool(value.untyped_storage().nbytes() >= (value.storage_offset() + extent) * value.element_size())


def values_of(tensor: torch.Tensor) -> Any:
    """The values of a readable tensor as unsigned integers of its size, in an array of numpy's that copies nothing."""
    import numpy as np

    return np.from_dlpack(tensor.data).view(f"u{tensor.element_size()}")


def read_sample(value: Any, blocks: int, block_bytes: int) -> bytes:
    """Bytes of at most so many blocks, spread evenly over a tensor; empty where it does not lie in one piece."""
    if not is_readable(value):
        return b""
    values = values_of(value)
    values = values.transpose(sorted(range(values.ndim), key=lambda axis: -values.strides[axis]))
    if not values.flags.c_contiguous:
        return b""
    flat, item_bytes = values.reshape(-1), value.element_size()
    length = min(block_bytes // item_bytes, len(flat))
    gap = (len(flat) - length) // max(blocks - 1, 1)
    return b"".join([flat[gap * number : gap * number + length].tobytes() for number in range(blocks)])


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


def find_zeros(function: Any, arguments: tuple[Any, ...], dur_ns: int) -> str | None:
    """The mark of a product of which one operand is nearly all zeros; None for other calls."""
    if dur_ns < MIN_CALL_NS or getattr(function, "__name__", "") not in _PRODUCTS:
        return None
    for number, operand in enumerate(arguments[:2]):
        if type(operand) is torch.Tensor and (not operand.requires_grad or _is_softmax(operand.grad_fn)):
            zeros = _count_zeros(operand)
            if zeros >= _MIN_ZEROS:
                return f"{MASKED if operand.requires_grad else FIXED} {number} {zeros}"
    return None


def _is_softmax(node: Any) -> bool:
    """Whether a softmax made it, a few ops before."""
    for _ in range(_MAX_DISTANCE):
        if node is None:
            return False
        if "Softmax" in node.name():
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _count_zeros(matrix: torch.Tensor) -> int:
    """How many of a thousand numbers are 0, by a sample; 0 for a small one, and where it cannot be read."""
    letter = _FORMATS.get(matrix.dtype)
    if letter is None or matrix.dim() < 2 or matrix.numel() < _MIN_NUMBERS:
        return 0
    sample = read_sample(matrix, _ZERO_BLOCKS, _ZERO_BLOCK_BYTES)
    numbers = array(letter, sample)
    return 1000 * numbers.count(0.0) // len(numbers) if numbers else 0
