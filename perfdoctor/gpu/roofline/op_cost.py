"""The cost of one call of an op: FLOPs, bytes, and the sizes that they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from perfdoctor.gpu.roofline.recorded_inputs import RecordedInputs

OpKind: TypeAlias = Literal["gemm", "convolution", "attention", "memory"]
BackwardPassName: TypeAlias = Literal["dgrad", "wgrad"]

BACKWARD_PASSES: tuple[BackwardPassName, ...] = ("dgrad", "wgrad")


class BackwardPass(NamedTuple):
    """One of the two gradients of a convolution: `dgrad` (of the input) or `wgrad` (of the weight).

    Each runs in a kernel of its own.
    """

    name: BackwardPassName
    flops: int
    bytes: int


class OpCost(NamedTuple):
    """What one call of an op costs at least.

    Attributes:
        kind: gemm, convolution, attention, or memory for what only moves data.
        flops: Floating-point operations, a multiply-add counted as two. Memory ops: a rough count, 1 to 12 an element.
        bytes: Compulsory traffic with the device memory: every input read once, every output written once (batch norm
            in training: also the further passes that its statistics need). A lower bound.
        dtype: Type of the operands: fp64, fp32, fp16, bf16, fp8, int8 (memory ops: also integers and bool).
        m, n, k, batch: Of a gemm [m, k] x [k, n] that is done `batch` times; None for other ops.
        groups, channels_in, channels_out: Of a convolution; channels in are those of one group.
        heads, queries, keys, head_size: Of attention, with the number of sequences as `batch`.
        causal: Of attention: whether scores above the diagonal are not computed, and not counted.
        backward_passes: The gradients that run in kernels of their own; empty for all other ops.
    """

    kind: OpKind
    flops: int
    bytes: int
    dtype: str
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    groups: int | None = None
    channels_in: int | None = None
    channels_out: int | None = None
    heads: int | None = None
    queries: int | None = None
    keys: int | None = None
    head_size: int | None = None
    causal: bool | None = None
    backward_passes: tuple[BackwardPass, ...] = ()


CostFormula: TypeAlias = Callable[[RecordedInputs], OpCost]
"""The cost of an op call by its recorded inputs; raises UnusableInputsError where they do not determine it."""
