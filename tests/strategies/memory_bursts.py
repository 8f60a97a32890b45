"""Bursts of memory-bound work, for the rules PD301 to PD306, in traces for laws.

Times keep to the grid of `trace_strategies`: one kernel per slot, and every edge at most 2 us from an end of its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from perfdoctor.testing import TraceBuilder

Burst: TypeAlias = Callable[[TraceBuilder, int], None]

SLOT = 30
NATIVE = "void at::native::"
MUL = f"{NATIVE}vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
ADD = f"{NATIVE}vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
GELU = f"{NATIVE}vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>"
FILL = f"{NATIVE}vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
COPY = f"{NATIVE}elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
FOREACH = f"{NATIVE}multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>>"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16"
WEIGHT, BATCH = [1024, 512], [64, 512]


def add_launch(trace: TraceBuilder, at: int, row: int, kernel: str, *ops: str, cast: bool = False) -> None:
    """A kernel one slot after its launch, which lies in nested ops, the outermost first."""
    start = at + SLOT * row
    for depth, name in enumerate(ops):
        inner = cast and depth == len(ops) - 1
        shapes = [WEIGHT, WEIGHT, []] if inner else [BATCH, WEIGHT] if cast and not depth else None
        types = ["c10::Half", "float", "Scalar"] if inner else ["float", "float"] if shapes else None
        trace.op(name, start + depth // 2, SLOT - depth, shapes=shapes, types=types)
    trace.kernel(kernel, start + SLOT, SLOT, correlation=trace.call("cudaLaunchKernel", start + 1, 1))


def add_pointwise_chain(trace: TraceBuilder, at: int) -> None:
    """A chain of three pointwise kernels."""
    for row, (kernel, name) in enumerate(((ADD, "add"), (MUL, "mul"), (GELU, "gelu"))):
        add_launch(trace, at, row, kernel, f"aten::{name}")


def add_layout_copies(trace: TraceBuilder, at: int) -> None:
    """A convolution behind a layout copy, four times."""
    for row in range(8):
        add_launch(trace, at, row, CONVOLUTION if row % 2 else TO_NHWC, "aten::convolution", "aten::cudnn_convolution")


def add_optimizer_step(trace: TraceBuilder, at: int) -> None:
    """A step of an optimizer in six passes."""
    for row, name in enumerate(("lerp_", "mul_", "addcmul_", "sqrt", "div_", "addcdiv_")):
        add_launch(trace, at, row, FOREACH, f"aten::_foreach_{name}")
    trace.range("Optimizer.step#Adam.step", at, 6 * SLOT)


def add_gradient_zeroing(trace: TraceBuilder, at: int) -> None:
    """Ten gradients filled with zeros."""
    for row in range(10):
        add_launch(trace, at, row, FILL, "aten::zero_", "aten::fill_")
    trace.range("Optimizer.zero_grad#SGD.zero_grad", at, 10 * SLOT)


def add_weight_casts(trace: TraceBuilder, at: int) -> None:
    """Six weights cast to half precision."""
    for row in range(6):
        add_launch(trace, at, row, COPY, "aten::linear", "aten::to", "aten::_to_copy", "aten::copy_", cast=True)


def add_contiguous_copies(trace: TraceBuilder, at: int) -> None:
    """Six transposed tensors made contiguous."""
    for row in range(6):
        add_launch(trace, at, row, COPY, "aten::contiguous", "aten::clone", "aten::copy_")


BURSTS: tuple[Burst, ...] = (
    add_pointwise_chain,
    add_layout_copies,
    add_optimizer_step,
    add_gradient_zeroing,
    add_weight_casts,
    add_contiguous_copies,
)
