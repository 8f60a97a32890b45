"""Cases of the rules about pointwise work and copies: PD301, PD302, PD306."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_programs import (
    AMD_TRANSPOSE,
    BIG,
    CAST,
    CAT,
    CONVOLUTION,
    COPY,
    FLOAT,
    GELU,
    GEMM,
    HALF,
    IM2COL,
    IMAGE,
    MEAN,
    MI300X,
    MUL,
    NORM,
    SCALAR,
    TO_NCHW,
    TO_NHWC,
    TRITON,
    WEIGHT,
    Launch,
    program,
)
from rule_cases import POINTWISE, TENSOR_GEMM

from perfdoctor.testing.check_rule import build_healthy_trace

# --- PD301 ------------------------------------------------------------------------------------------------------------


def pointwise(name: str = "add", kernel: str = POINTWISE, size: Sequence[int] | None = None, us: float = 100) -> Launch:
    """One pointwise kernel of two inputs; with sizes if given."""
    shapes = None if size is None else [list(size), list(size)]
    return Launch(kernel, us, (f"aten::{name}",), shapes, None if size is None else [FLOAT, FLOAT])


CHAIN = (pointwise("add"), pointwise("mul", MUL), pointwise("gelu", GELU))
SIZED_CHAIN = (pointwise("add", size=BIG), pointwise("mul", MUL, BIG), pointwise("div", MUL, BIG))

# --- PD302 ------------------------------------------------------------------------------------------------------------

NCHW, NHWC = [64 * 56 * 56, 56 * 56, 56, 1], [64 * 56 * 56, 1, 56 * 64, 64]


def convolution(kernel: str, us: float, strides: Sequence[int] = NCHW, op: str = "cudnn_convolution") -> Launch:
    return Launch(
        kernel,
        us,
        ("aten::conv2d", "aten::convolution", f"aten::{op}"),
        [IMAGE, WEIGHT],
        [FLOAT, FLOAT],
        [list(strides), [576, 9, 3, 1]],
    )


CONVERTED_CONVOLUTION = (convolution(TO_NHWC, 60), convolution(CONVOLUTION, 300), convolution(TO_NCHW, 40))


# --- PD306 ------------------------------------------------------------------------------------------------------------

CONTIGUOUS = ("aten::contiguous", "aten::clone", "aten::copy_")


def copies(ops: tuple[str, ...], count: int = 4, us: float = 30, kernel: str = COPY) -> tuple[Launch, ...]:
    return (Launch(kernel, us, ops, [BIG, BIG, []], [FLOAT, FLOAT, SCALAR]),) * count
