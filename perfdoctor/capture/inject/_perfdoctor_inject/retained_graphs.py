"""Losses that are kept with their graph: small tensors with a graph, counted twice between two steps.

A list of losses grows by one such tensor a step; a sum of losses stays one tensor, whose chain of additions grows.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from .probes import Probe

# A loss is one number; a few for each task or head.
MAX_ELEMENTS = 16
# Chains are followed so far: 0.2 us a node.
MAX_CHAIN = 10_000
# With more such tensors the chains of the first are enough to see them grow.
MAX_CHAINS = 200
_SUMS = ("AddBackward0", "SubBackward0")


class RetainedGraphs(Probe):
    """Two looks at all Python objects, 0.1 to 0.2 s each in large programs: before the windows, and after them."""

    def __init__(self) -> None:
        self._first: dict[str, int] | None = None
        self._last: dict[str, int] | None = None

    def start(self, step: int) -> None:
        """Count before the first window, once."""
        if self._first is None:
            self._first = count_kept_graphs(step)

    def stop(self, step: int) -> None:
        """Count after the last window, or at the end of a program that ends before; once."""
        if self._first is not None and self._last is None:
            self._last = count_kept_graphs(step)

    def facts(self) -> dict[str, Any]:
        """Both looks; None where there was one at most."""
        has_both = self._first is not None and self._last is not None
        return {"retained": {"first": self._first, "last": self._last} if has_both else None}


def count_kept_graphs(step: int) -> dict[str, int]:
    """Live tensors of few elements that have a graph, and the longest chain of additions at the end of one."""
    tensors = longest = 0
    for each in gc.get_objects():
        if type(each) is not torch.Tensor or not each.requires_grad or each.numel() > MAX_ELEMENTS:
            continue
        node = each.grad_fn
        if node is None:
            continue
        tensors += 1
        if tensors <= MAX_CHAINS:
            longest = max(longest, _measure_chain(node))
    return {"step": step, "tensors": tensors, "chain": longest}


def _measure_chain(node: Any) -> int:
    length = 0
    while node is not None and length < MAX_CHAIN and type(node).__name__ in _SUMS:
        length += 1
        before = [function for function, _ in node.next_functions if type(function).__name__ in _SUMS]
        node = before[0] if before else None
    return length
