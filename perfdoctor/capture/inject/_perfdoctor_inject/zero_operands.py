"""Products with a matrix that is zero nearly everywhere: values show it, and no size.

A graph's adjacency or its nodes' features, and the attention of all pairs of which a mask leaves few::

    scores = scores.masked_fill(adjacency == 0, -9e15).softmax(1)
    h = scores @ values                                             # 99 % of the scores are 0

Activations are left alone: which of them a ReLU lets pass changes with each step. Looked at are samples of matrices on
the CPU: on another device a look would wait for it.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal

import torch

from .tensor_samples import read_sample
from .unchanged_results import MIN_CALL_NS

# With the operand's number and the zeros of a thousand numbers behind it.
FIXED, MASKED = "perfdoctor::zeros", "perfdoctor::masked_zeros"
# The names of torch's functions; the operands that may be such a matrix are the first two.
_PRODUCTS = frozenset(("mm", "bmm", "matmul", "__matmul__", "linear"))
_MIN_NUMBERS = 1 << 14
# Measured by CPU time with one thread (torch 2.13; 500 to 3,000 rows, 16 to 256 columns, with the backward pass): with
# 2 % of the numbers other than 0 a sparse product takes 0.3 to 1.4 times as long, with 10 % as long and longer.
_MIN_ZEROS = 980
_BLOCKS, _BLOCK_BYTES = 32, 128
_FORMATS: dict[torch.dtype, Literal["f", "d"]] = {torch.float32: "f", torch.float64: "d"}
# From a product back to the softmax: dropout, casts, views.
_MAX_DISTANCE = 4


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
    sample = read_sample(matrix, _BLOCKS, _BLOCK_BYTES)
    numbers = array(letter, sample)
    return 1000 * numbers.count(0.0) // len(numbers) if numbers else 0
