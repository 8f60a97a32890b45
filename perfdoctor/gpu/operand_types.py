"""Sizes of operand types, and how many elements a thread accesses at once."""

from __future__ import annotations

from collections.abc import Mapping

ACCESS_BYTES = 16
"""The widest memory access of a thread (128 bits)."""

_ITEM_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


def elements_per_access(dtype: str) -> int | None:
    """Return how many elements of a type one access of 16 bytes loads; None for a type of unknown size."""
    item_bytes = _ITEM_BYTES.get(dtype)
    return ACCESS_BYTES // item_bytes if item_bytes else None
