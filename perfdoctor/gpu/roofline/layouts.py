"""Which dimensions of a product lie contiguous in memory, and which of them keep it off the widest memory accesses.

A kernel reads 16 bytes at once only where every row of a matrix starts at a multiple of 16 bytes: the dimension that
lies contiguous must be a multiple of 16 bytes (NVIDIA, "Matrix Multiplication Background", section 3.1). Names follow
PyTorch: [M, K] x [K, N], row-major. The libraries are column-major, so the output's N is always contiguous, and the
letters of a kernel's name (`_tn`, Tensile's `Ailk_Bljk`) tell for each operand which of its dimensions is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from perfdoctor.gpu.roofline.op_cost import OpCost

Letter: TypeAlias = Literal["M", "N", "K"]

ACCESS_BYTES = 16
"""The widest memory access of a thread."""
PAD_TO = 8
"""Guides ask for multiples of 8, also where the type would allow 4."""

_ITEM_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_LETTERS = re.compile(r"_([nt])([nt])(?=_|\b)")
_TENSILE = re.compile(r"Cijk_A(ilk|lik)_B(ljk|jlk)_")


def contiguous_dimensions(kernel: str) -> frozenset[Letter]:
    """Return the dimensions along which the matrices of a gemm kernel lie contiguous; N and K if it does not say."""
    if match := _TENSILE.search(kernel):
        right_along_n, left_along_m = match[1] == "ilk", match[2] == "jlk"
    elif match := _LETTERS.search(kernel):
        right_along_n, left_along_m = match[1] == "n", match[2] == "t"
    else:
        return frozenset({"N", "K"})
    return frozenset({"N", "N" if right_along_n else "K", "M" if left_along_m else "K"})


def misaligned_dimensions(cost: OpCost, kernel: str) -> tuple[tuple[Letter, int], ...]:
    """Return the dimensions to blame for narrow memory accesses, with their sizes.

    Args:
        cost: The product; other ops have no dimensions to blame.
        kernel: Name of the kernel that ran.

    Returns:
        Those that lie contiguous and are no multiple of 16 bytes; empty where all are, or the type is not known.
    """
    wanted = elements_per_access(cost.dtype)
    if wanted is None:
        return ()
    contiguous = contiguous_dimensions(kernel)
    sizes: tuple[tuple[Letter, int | None], ...] = (("M", cost.m), ("N", cost.n), ("K", cost.k))
    return tuple((letter, size) for letter, size in sizes if size and letter in contiguous and size % wanted)


def elements_per_access(dtype: str) -> int | None:
    """Return how many elements of a type one access of 16 bytes holds; None for a type that is not known."""
    item_bytes = _ITEM_BYTES.get(dtype)
    return ACCESS_BYTES // item_bytes if item_bytes else None


def access_share(alignment: int, dtype: str) -> float | None:
    """Return which share of a 16-byte access a kernel that is aligned to so many elements makes at once, at most 1."""
    wanted = elements_per_access(dtype)
    return min(alignment / wanted, 1.0) if wanted else None


def padded(size: int, dtype: str) -> int:
    """Return the size to pad a dimension to: the next multiple of 8, or of 16 for types of one byte."""
    multiple = max(PAD_TO, elements_per_access(dtype) or PAD_TO)
    return -(-size // multiple) * multiple
