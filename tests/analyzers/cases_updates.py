"""Cases of the rules about parameters and their gradients: PD303, PD304, PD305."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_programs import (
    CAST,
    FILL,
    FLOAT,
    FOREACH,
    FUSED_ADAM,
    GEMM,
    HALF,
    IMAGE,
    MUL,
    SCALAR,
    WEIGHT,
    Launch,
    program,
)
from rule_cases import POINTWISE, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

# --- PD303 ------------------------------------------------------------------------------------------------------------

ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"
PRIMITIVES = ("lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")


def foreach(us: float = 20) -> tuple[Launch, ...]:
    """A step of foreach Adam: seven passes, the longest twice as long as the others."""
    return tuple(
        Launch(FOREACH, us * (2 if name == "addcdiv_" else 1), (f"aten::_foreach_{name}",)) for name in PRIMITIVES
    )


def loop(tensors: int = 20, us: float = 5) -> tuple[Launch, ...]:
    """A step of SGD with momentum, tensor by tensor: a multiplication and two additions for each."""
    each = (
        Launch(MUL, us, ("aten::mul_",)),
        Launch(POINTWISE, us, ("aten::add_",)),
        Launch(POINTWISE, us, ("aten::add_",)),
    )
    return each * tensors


def two_optimizers() -> TraceBuilder:
    """AdamW with foreach for two groups of parameters, and SGD tensor by tensor; then a step without either."""
    trace = program(*foreach() * 2, range_name=ADAM)
    start = 400.0
    for row in range(96):
        trace.op("aten::mul_" if row % 3 else "aten::add_", 100 + 2 * row, 1.9)
        trace.kernel(
            MUL if row % 3 else POINTWISE, start, 5, correlation=trace.call("cudaLaunchKernel", 101 + 2 * row, 0.1)
        )
        start += 5
    trace.kernel(TENSOR_GEMM, 1200, 100, launch_us=1150)  # a step that does something else
    return trace.range(SGD, 100, 200).step(1000, 1000)


def on_cpu(large_us: float, small: int = 24) -> TraceBuilder:
    """A product, and Adam of a table that takes this time and of some biases that take 5 us an op."""
    trace = TraceBuilder(device=None)
    for start in (0, 1000):
        trace.step(start, 1000).op("aten::mm", start, 400)
        trace.range(ADAM, start + 410, small * 6 + large_us + 10)
        for row in range(small):
            trace.op("aten::addcmul_", start + 415 + 6 * row, 5)
        trace.op("aten::addcdiv_", start + 415 + 6 * small, large_us)
    return trace


# --- PD304 ------------------------------------------------------------------------------------------------------------

ZERO_GRAD = "Optimizer.zero_grad#SGD.zero_grad"
FILLS = (Launch(FILL, 10, ("aten::zero_", "aten::fill_")),) * 12
ACCUMULATE_GRAD = ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "aten::add_")


def zeroing(*fills: Launch, adds: int = 0, rest_us: float = 0) -> TraceBuilder:
    """Fills within zero_grad; then additions by another thread in the backward pass; then products."""
    trace = program(*fills, range_name=ZERO_GRAD)
    start = sum(fill.dur_us for fill in fills)
    for row in range(adds):
        host = 300.0 + 4 * row
        trace.op(ACCUMULATE_GRAD[0], host, 3, 2).op(ACCUMULATE_GRAD[1], host + 0.5, 2, 2)
        trace.kernel(POINTWISE, start, 10, correlation=trace.call("cudaLaunchKernel", host + 1, 0.1, 2))
        start += 10
    return trace.kernel(TENSOR_GEMM, start, rest_us, launch_us=250) if rest_us else trace


# --- PD305 ------------------------------------------------------------------------------------------------------------

MATRIX, BATCH = [1024, 512], [64, 512]


def cast(
    sizes: Sequence[int] = MATRIX,
    us: float = 20,
    to: str = HALF,
    source: str = FLOAT,
    outer_op: str = "aten::linear",
    inputs: Sequence[object] = (BATCH, MATRIX, [1024]),
) -> Launch:
    ops = (outer_op, "aten::to", "aten::_to_copy", "aten::copy_")
    return Launch(CAST, us, ops, [list(sizes), list(sizes), []], [to, source, SCALAR], outer_shapes=list(inputs))


GRADIENT_CAST = cast(to=FLOAT, source=HALF, outer_op="ToCopyBackward0", inputs=())
HALF_PRODUCT = Launch(TENSOR_GEMM, 100, ("aten::linear", "aten::addmm"))
