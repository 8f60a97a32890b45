"""Which dimensions of a gemm lie contiguous in memory, and which of them keep it off the widest memory accesses.

A kernel reads 16 bytes at once only where every row of a matrix starts at a multiple of 16 bytes: the dimension that
lies contiguous must be a multiple of 16 bytes (NVIDIA, "Matrix Multiplication Background", section 3.1). Names follow
PyTorch: [M, K] x [K, N], row-major. The libraries are column-major, so that N of the output is always contiguous; the
layout letters of a kernel's name (`_tn`, Tensile's `Ailk_Bljk`) say which dimension of each operand is.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from perfdoctor.gpu.operand_types import elements_per_access
from perfdoctor.gpu.roofline.op_cost import OpCost

GemmDimension: TypeAlias = Literal["M", "N", "K"]

PAD_MULTIPLE = 8
"""Guides ask for multiples of 8 elements, also where the type would allow 4."""

_LAYOUT_LETTERS = re.compile(r"_([nt])([nt])(?=_|\b)")
_TENSILE_INDICES = re.compile(r"Cijk_A(ilk|lik)_B(ljk|jlk)_")


def contiguous_dimensions(kernel: str) -> frozenset[GemmDimension]:
    """Return the dimensions along which the matrices of a gemm kernel lie contiguous.

    N and K where the name does not say: the layout of a linear layer's forward pass.
    """
    operands = _contiguous_operands(kernel)
    return frozenset({"N", "K"}) if operands is None else frozenset({"N", *operands})


def _contiguous_operands(kernel: str) -> tuple[GemmDimension, GemmDimension] | None:
    """Return the dimensions along which the left and the right operand lie contiguous; None where no name says so."""
    if match := _TENSILE_INDICES.search(kernel):
        right_along_n, left_along_m = match[1] == "ilk", match[2] == "jlk"
    elif match := _LAYOUT_LETTERS.search(kernel):
        right_along_n, left_along_m = match[1] == "n", match[2] == "t"
    else:
        return None
    return "M" if left_along_m else "K", "N" if right_along_n else "K"


def layout_of_name(kernel: str) -> str | None:
    """Return the layout letters of a gemm kernel's name as BLAS means them, "tn"; None where it has none.

    For BLAS a matrix lies by columns, and PyTorch hands it the right operand first: "t" as the first letter is a right
    operand whose K lies contiguous, as the weight of a linear layer in its forward pass; "n" as the second letter is a
    left operand whose K does.
    """
    operands = _contiguous_operands(kernel)
    return None if operands is None else _letters(*operands)


def layout_of_strides(left: tuple[int, ...], right: tuple[int, ...]) -> str:
    """Return the same letters by the recorded strides of the operands [..., M, K] and [..., K, N]."""
    return _letters("K" if left[-1] == 1 else "M", "N" if right[-1] == 1 else "K")


def _letters(left: GemmDimension, right: GemmDimension) -> str:
    return f"{'n' if right == 'N' else 't'}{'t' if left == 'M' else 'n'}"


def misaligned_dimensions(cost: OpCost, kernel: str) -> tuple[tuple[GemmDimension, int], ...]:
    """Return the dimensions that force narrow memory accesses, with their sizes.

    They are contiguous in memory and not a multiple of 16 bytes. Empty for a type that is not known, and for an op that
    is not a gemm.
    """
    elements = elements_per_access(cost.dtype)
    if elements is None:
        return ()
    contiguous = contiguous_dimensions(kernel)
    sizes: tuple[tuple[GemmDimension, int | None], ...] = (("M", cost.m), ("N", cost.n), ("K", cost.k))
    return tuple((name, size) for name, size in sizes if size and name in contiguous and size % elements)


def access_width_fraction(alignment: int, dtype: str) -> float | None:
    """Return the width of the memory accesses of a kernel as a fraction (at most 1) of the widest.

    None for a type of unknown size. `alignment` counts elements, as in `KernelClass.alignment`.
    """
    elements = elements_per_access(dtype)
    return min(alignment / elements, 1.0) if elements else None


def pad_dimension(size: int, dtype: str) -> int:
    """Return the size to pad a dimension to: the next multiple of 8, or of 16 for types of one byte."""
    multiple = max(PAD_MULTIPLE, elements_per_access(dtype) or PAD_MULTIPLE)
    return -(-size // multiple) * multiple
