"""Bursts of matrix maths, for the rules PD202 to PD206, in traces for laws.

Times keep to the grid of `trace_strategies`: one kernel per slot, and every edge at most 2 us from an end of its slot.
"""

from __future__ import annotations

from memory_bursts import MUL, SLOT, Burst, add_launch

from perfdoctor.testing import TraceBuilder

TINY_GEMM = "ampere_sgemm_32x32_sliced1x4_tn"
TENSOR_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
MISALIGNED = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"
DGEMM = "ampere_dgemm_128x64_nn"
ADD_DOUBLE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>>"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>"
TINY_KERNELS = 450


def add_misaligned_products(trace: TraceBuilder, at: int) -> None:
    """Fifteen products on the slow path of Tensor Cores."""
    for row in range(15):
        add_launch(trace, at, row, MISALIGNED, "aten::linear", "aten::addmm")


def add_float64_kernels(trace: TraceBuilder, at: int) -> None:
    """A product and a sum in add_float64_kernels, three times."""
    for row in range(6):
        add_launch(trace, at, row, DGEMM if row % 2 else ADD_DOUBLE, "aten::mm" if row % 2 else "aten::add")


def add_attention(trace: TraceBuilder, at: int) -> None:
    """Two attentions of product, scaling, softmax and product, each followed by another product."""
    kernels = (TENSOR_GEMM, MUL, SOFTMAX, TENSOR_GEMM, TENSOR_GEMM)
    for row in range(10):
        name = ("bmm", "mul", "_softmax", "bmm", "mm")[row % 5]
        add_launch(trace, at, row, kernels[row % 5], f"aten::{name}")


def add_small_products(trace: TraceBuilder, at: int) -> None:
    """A graph of products that take only as long as the shortest kernel."""
    launch = trace.call("cudaGraphLaunch", at, 2)
    for row in range(TINY_KERNELS):
        trace.kernel(TINY_GEMM, at + SLOT + row, 1, correlation=launch)


BURSTS: tuple[Burst, ...] = (add_misaligned_products, add_float64_kernels, add_attention, add_small_products)
