"""Cases of the rules about how matrix maths is done: PD202, PD204, PD205, PD206."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rule_cases import POINTWISE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

A100, H100, B200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200"
V100, RTX4090, RTX5090 = "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"
MI300X = "AMD Instinct MI300X"
CAPABILITY = {A100: (8, 0), H100: (9, 0), B200: (10, 0), V100: (7, 0), RTX4090: (8, 9), RTX5090: (12, 0)}

BF16, FP32, FP64 = "c10::BFloat16", "float", "double"


@dataclass(frozen=True)
class Launch:
    """An op and the one kernel that it launches; without an op the launch is inside no op."""

    kernel: str
    dur_us: float
    op: str = ""
    shapes: Sequence[object] | None = None
    types: Sequence[str] | None = None
    concrete: Sequence[str] | None = None
    outer: str = ""
    thread: int = 1


def step_of(*each: Launch, device: str | None = A100, until: float = 1000) -> TraceBuilder:
    """One step: ops of 2 us one after the other, their kernels back to back, then the wait for the GPU."""
    trace = TraceBuilder(device=device, capability=CAPABILITY.get(device or "")).step(0, until)
    start = 1.0
    for row, one in enumerate(each):
        at = 1 + 2 * row
        if one.outer:
            trace.op(one.outer, at, 1.9, thread=one.thread)
        if one.op:
            trace.op(one.op, at + 0.1, 1.7, one.thread, one.shapes, one.types, None, one.concrete)
        call = trace.call("cudaLaunchKernel", at + 0.2, 1, thread=one.thread)
        trace.kernel(one.kernel, start, one.dur_us, correlation=call)
        start += one.dur_us
    begin = 3 + 2 * len(each)
    trace.call("cudaDeviceSynchronize", begin, until - begin)
    return trace


def in_frame(trace: TraceBuilder) -> TraceBuilder:
    """The trace with a Python frame of the user's around its ops."""
    trace.frame("model.py(20): forward", 0, 400)
    return trace


def in_module(trace: TraceBuilder) -> TraceBuilder:
    """The trace with the frames of a model of Hugging Face around its ops."""
    trace.frame("transformers/models/timesformer/modeling_timesformer.py(200): forward", 0, 400)
    trace.frame("nn.Module: TimesformerEncoder_0", 0, 400)
    trace.frame("nn.Module: TimesformerSelfAttention_3", 0, 400)
    return trace


ALIGN2 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(Params)"
ALIGN1 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"
ALIGN8 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(Params)"
TF32_ALIGN1 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1>(Params)"
TF32_ALIGN4 = "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4"
TENSILE = "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128x64x32_MI16x16x1_SN_LDSB0_AFC1_AFEM1"
WGMMA = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
    "__5x_cublas"
)


def product(kernel: str, dur_us: float, m: int, n: int, k: int, dtype: str = BF16, op: str = "aten::mm") -> Launch:
    """A product of two matrices."""
    return Launch(kernel, dur_us, op, [[m, k], [k, n]], [dtype, dtype])


def vocabulary(dur_us: float, n: int = 30522, kernel: str = ALIGN2, m: int = 4096) -> Launch:
    """The projection on a vocabulary, in bfloat16."""
    return Launch(
        kernel, dur_us, "aten::addmm", [[n], [m, 768], [768, n], [], []], [BF16, BF16, BF16, "Scalar", "Scalar"]
    )


def attention_product(
    dur_us: float, kernel: str = ALIGN1, m: int = 3137, n: int = 3137, k: int = 64, batch: int = 96
) -> Launch:
    """A batched product of attention, in bfloat16."""
    return Launch(kernel, dur_us, "aten::bmm", [[batch, m, k], [batch, k, n]], [BF16, BF16], outer="aten::matmul")


DGEMM = "ampere_dgemm_128x64_nn"
DMMA = "cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1"
ADD_DOUBLE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>, Array<char*, 3> >"
CAST_DOUBLE = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
    "::{lambda()#3}::operator()() const::{lambda()#6}::operator()() const::{lambda(double)#1}>"
)
INDEX = "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::OpaqueType<8> > >"
NAN_TO_NUM = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::nan_to_num_kernel_cuda(at::TensorIteratorBase&, "
    "c10::optional<double>, c10::optional<double>)::{lambda(float)#1}>"
)
UPSAMPLE = "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<{0}>(int, double, double, bool)"
SCDNN_DOUBLE = "void cudnn::cnn::implicit_convolve_dgemm<double, double, 128, 5, 5, 3, 3, 3, 1, false>(int, int)"


def elementwise(kernel: str, dur_us: float, op: str, *arguments: tuple[list[int], str]) -> Launch:
    """A pointwise op on tensors of these sizes and types."""
    return Launch(kernel, dur_us, op, [size for size, _ in arguments], [kind for _, kind in arguments])


SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>"
SOFTMAX_BACKWARD = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<8, c10::BFloat16, float, c10::BFloat16>"
)
SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<c10::BFloat16> >"


def attention(
    products_us: float,
    softmax_us: float,
    length: int | None = 1024,
    outer: str = "",
    between: Sequence[Launch] = (Launch(SCALE, 50, "aten::mul"),),
    softmax: str = "aten::_softmax",
    threads: tuple[int, int, int] = (1, 1, 1),
) -> list[Launch]:
    """Product, scaling, softmax, product; 32 heads of size 64, without shapes for a length of None."""

    def inputs(m: int, n: int, k: int) -> dict[str, Any]:
        return {"shapes": [[32, m, k], [32, k, n]], "types": [BF16, BF16]} if length else {}

    size = length or 0
    return [
        Launch(
            TENSOR_GEMM,
            products_us,
            "aten::bmm",
            **inputs(size, size, 64),
            outer=outer or "aten::matmul",
            thread=threads[0],
        ),
        *between,
        Launch(SOFTMAX, softmax_us, softmax, outer=outer or "aten::softmax", thread=threads[1]),
        Launch(
            TENSOR_GEMM,
            products_us,
            "aten::bmm",
            **inputs(size, 64, size),
            outer=outer or "aten::matmul",
            thread=threads[2],
        ),
    ]


def attention_backward(length: int, products_us: float, softmax_us: float) -> list[Launch]:
    """The backward pass of `attention`."""

    def product_of(m: int, n: int, k: int) -> Launch:
        return Launch(TENSOR_GEMM, products_us, "aten::bmm", [[32, m, k], [32, k, n]], [BF16, BF16])

    return [
        product_of(length, length, 64),
        product_of(length, 64, length),
        Launch(SOFTMAX_BACKWARD, softmax_us, "aten::_softmax_backward_data"),
        product_of(length, 64, length),
        product_of(64, length, length),
    ]


COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"


COPIED_BACK = Launch(COPY, 20, "aten::copy_", outer="aten::contiguous")


def gathering_attention() -> TraceBuilder:
    """An attention whose first matmul copies a transposed operand into one piece of memory first."""
    trace = step_of(Launch(COPY, 40, "aten::copy_", outer="aten::clone"), *attention(100, 200))
    trace.op("aten::matmul", 0.9, 4.05)
    return trace


def attention_read_by_the_cpu() -> TraceBuilder:
    """An attention whose result is copied to the CPU."""
    trace = step_of(*attention(100, 200)).op("aten::to", 9, 1.9).op("aten::copy_", 9.1, 1.7)
    return trace.memcpy("DtoH", 451, 30, correlation=trace.call("cudaMemcpyAsync", 9.2, 1))


FMHA_FP32 = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"
FMHA_BF16 = (
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)"
)


def fused_attention(kernel: str, dur_us: float, dtype: str, length: int = 1024) -> Launch:
    """Attention in one kernel: 2 sequences, 8 heads of size 64."""
    size = [2, length, 8, 64]
    return Launch(kernel, dur_us, "aten::_efficient_attention_forward", [size, size, size], [dtype] * 3)


TINY = "ampere_sgemm_32x32_sliced1x4_tn"
TINY_TENSILE = "Cijk_Alik_Bljk_HHS_BH_MT16x16x64_MI16x16x16x1_SN_1LDSB0"
GEMV = "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024>"


def small_products(
    count: int, dur_us: float, kernel: str = TINY, outer: str = "", op: str = "aten::addmm"
) -> list[Launch]:
    """So many small products, in ops without recorded shapes."""
    return [Launch(kernel, dur_us, op, outer=outer) for _ in range(count)]
