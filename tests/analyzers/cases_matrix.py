"""Cases of the rules about how matrix maths is done: PD202, PD204, PD205, PD206."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rule_cases import POINTWISE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


PD202 = [
    RuleCase(
        "PD202",
        "vocabulary",
        lambda: in_frame(step_of(vocabulary(700), Launch(WGMMA, 200), device=H100)),
        (
            ExpectedFinding(
                "medium",
                700_000,
                location="model.py:20",
                title="N = 30522: pad to 30528",
                advice="Pad 30522 to 30528 where the layer is made",
                confidence=0.8,
                evidence={"launched by": "aten::addmm", "N = 30522: pad to 30528": 700_000, ALIGN2: 700_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD202",
        "attention-names-the-dimension-that-is-contiguous",
        lambda: step_of(attention_product(1900), attention_product(1700, n=64, k=3137), device=H100, until=4000),
        (
            ExpectedFinding(
                "medium",
                3_600_000,
                title="N = 3137: pad to 3144, and 1 more",
                advice="scaled_dot_product_attention",
                evidence={"N = 3137: pad to 3144": 1_900_000, "K = 3137: pad to 3144": 1_700_000},
            ),
        ),
    ),
    RuleCase(  # one element at a time instead of eight
        "PD202",
        "without-shapes",
        lambda: step_of(Launch(ALIGN1, 300), device=H100),
        (
            ExpectedFinding(
                "medium",
                300_000,
                (0, None, 262_500),
                title="rows do not start at multiples of 16 bytes",
                confidence=0.5,
                evidence={"time over the roofline's": None},
            ),
        ),
    ),
    RuleCase(
        "PD202",
        "amd-by-the-shapes",
        lambda: step_of(attention_product(900, TENSILE), device=MI300X),
        (ExpectedFinding("medium", 900_000, title="N = 3137: pad to 3144", confidence=0.8),),
    ),
    RuleCase(
        "PD202",
        "tf32",
        lambda: step_of(product(TF32_ALIGN1, 150, 4096, 1030, 1024, FP32)),
        (ExpectedFinding("medium", 150_000, title="N = 1030: pad to 1032"),),
    ),
    RuleCase(  # most of the time is in kernels without shapes: the dimension of the others is not to blame
        "PD202",
        "shapes-of-the-smaller-part",
        lambda: step_of(Launch(ALIGN1, 500), vocabulary(400), device=H100),
        (ExpectedFinding("medium", 900_000, title="rows do not start", confidence=0.5),),
    ),
    RuleCase("PD202", "aligned", lambda: step_of(vocabulary(700, 30528, ALIGN8), device=H100)),
    RuleCase("PD202", "near-the-roofline", lambda: step_of(vocabulary(360), device=H100)),
    RuleCase("PD202", "small-dimension", lambda: step_of(vocabulary(300, 10), device=H100)),
    RuleCase("PD202", "little-without-shapes", lambda: step_of(Launch(ALIGN1, 29), device=H100)),
    RuleCase("PD202", "amd-aligned", lambda: step_of(attention_product(900, TENSILE, n=3136), device=MI300X)),
    RuleCase("PD202", "tf32-aligned-to-four", lambda: step_of(product(TF32_ALIGN4, 300, 4096, 1028, 1024, FP32))),
]

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


PD204 = [
    RuleCase(  # TF32 on Tensor Cores has 16 times the peak of float64 on CUDA cores
        "PD204",
        "product",
        lambda: step_of(Launch(DGEMM, 400, "aten::mm"), Launch(TENSOR_GEMM, 500)),
        (
            ExpectedFinding(
                "medium",
                400_000,
                title="Kernels compute in float64: 1 a step",
                advice="numpy",
                fix="float32",
                evidence={"in matrix products and convolutions": 400_000, "launched by": "aten::mm"},
            ),
        ),
        via_file=True,
    ),
    RuleCase(  # an A100 has half the rate for float64 and needs twice the bytes: so half is saved
        "PD204",
        "pointwise",
        lambda: in_frame(step_of(elementwise(ADD_DOUBLE, 200, "aten::add", ([64, 64], FP64), ([64, 64], FP64)))),
        (
            ExpectedFinding(
                "medium",
                200_000,
                (0, 100_000, 100_513),
                location="model.py:20",
                evidence={"first float64 op": "aten::add", "in matrix products and convolutions": 0},
            ),
        ),
    ),
    RuleCase(
        "PD204",
        "geforce-has-a-64th-of-the-rate",
        lambda: step_of(Launch(CAST_DOUBLE, 64), device=RTX4090),
        (ExpectedFinding("medium", 64_000, (0, 32_000, 63_000)),),
    ),
    RuleCase(  # the kernel's name says only that elements have eight bytes
        "PD204",
        "by-the-types",
        lambda: step_of(elementwise(INDEX, 30, "aten::index", ([4096, 4096], FP64), ([], ""))),
        (ExpectedFinding("low", 30_000, (0, 15_000, 15_077), evidence={"launched by": "aten::index"}),),
    ),
    RuleCase("PD204", "on-tensor-cores", lambda: step_of(Launch(DMMA, 90)), (ExpectedFinding("medium", 90_000),)),
    RuleCase(
        "PD204",
        "unknown-device",
        lambda: step_of(Launch(SCDNN_DOUBLE, 120), Launch(ADD_DOUBLE, 20), device=None),
        (
            ExpectedFinding(
                "medium", 140_000, (0, None, 140_000), evidence={"in matrix products and convolutions": 120_000}
            ),
        ),
    ),
    RuleCase(  # masks of an image model, made float64 by numpy
        "PD204",
        "interpolation",
        lambda: step_of(
            elementwise(UPSAMPLE.format("double, double"), 200, "aten::upsample_bilinear2d", ([64, 3, 256, 256], FP64))
        ),
        (ExpectedFinding("medium", 200_000, evidence={"first float64 op": "aten::upsample_bilinear2d"}),),
    ),
    RuleCase("PD204", "healthy", build_healthy_trace),
    RuleCase(  # its scales are doubles, its data is not
        "PD204",
        "interpolation-of-other-types",
        lambda: step_of(
            elementwise(
                UPSAMPLE.format("c10::BFloat16, float"), 200, "aten::upsample_bilinear2d", ([64, 4, 256, 256], BF16)
            )
        ),
    ),
    RuleCase(
        "PD204",
        "python-numbers-are-recorded-as-double",
        lambda: step_of(elementwise(POINTWISE, 400, "aten::mul", ([64, 64], FP32), ([], FP64))),
    ),
    RuleCase("PD204", "an-optional-argument", lambda: step_of(Launch(NAN_TO_NUM, 400))),
    RuleCase(
        "PD204",
        "a-single-number-on-the-device",
        lambda: step_of(elementwise(ADD_DOUBLE, 400, "aten::add_", ([1], FP64), ([], FP64))),
    ),
    RuleCase("PD204", "metrics", lambda: step_of(Launch(ADD_DOUBLE, 9.9), Launch(TENSOR_GEMM, 900), until=1100)),
    RuleCase(
        "PD204",
        "a-compiled-region-with-one-such-argument",
        lambda: step_of(elementwise(POINTWISE, 400, "CompiledFunction", ([64, 64], FP64), ([64, 64], FP32))),
    ),
]

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


PD205 = [
    RuleCase(
        "PD205",
        "long-sequence",
        lambda: in_frame(step_of(*attention(100, 200), Launch(TENSOR_GEMM, 400, "aten::mm"))),
        (
            ExpectedFinding(
                "medium",
                450_000,
                location="model.py:20",
                title="over a sequence of 1024",
                fix="scaled_dot_product_attention",
                confidence=0.8,
                evidence={"attentions": 1, "sequence": 1024, "all but the products": 250_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD205",
        "a-hundredth-of-the-step-when-the-sequence-is-long",
        lambda: step_of(*attention(10, 10, between=()), until=2000),
        (ExpectedFinding("info", 30_000),),
    ),
    RuleCase(
        "PD205",
        "without-shapes-the-products-remain",
        lambda: step_of(*attention(100, 200, None)),
        (ExpectedFinding("medium", 450_000, (0, None, 250_000), title="softmax and product", confidence=0.6),),
    ),
    RuleCase(
        "PD205",
        "backward",
        lambda: step_of(*attention(50, 100), Launch(TENSOR_GEMM, 100, "aten::mm"), *attention_backward(1024, 50, 100)),
        (ExpectedFinding("medium", 550_000, evidence={"attentions": 2, "sequence": 1024}),),
    ),
    RuleCase(
        "PD205",
        "in-a-module-of-hugging-face",
        lambda: in_module(step_of(*attention(100, 200))),
        (ExpectedFinding("medium", 450_000, advice="in TimesformerSelfAttention by"),),
    ),
    RuleCase(
        "PD205",
        "the-fused-call-fell-back",
        lambda: step_of(*attention(100, 200, outer="aten::scaled_dot_product_attention")),
        (ExpectedFinding("medium", 450_000, advice="fell back to its unfused form"),),
    ),
    RuleCase(
        "PD205",
        "copies-an-operand",
        gathering_attention,
        (ExpectedFinding("medium", 490_000, evidence={"all but the products": 290_000}),),
    ),
    RuleCase(
        "PD205",
        "copies-its-result-back",
        lambda: step_of(
            *attention(100, 200),
            Launch(COPY, 30, "aten::copy_", outer="aten::_to_copy"),
            Launch(COPY, 20, "aten::copy_", outer="aten::contiguous"),
            Launch(COPY, 60, "aten::copy_", outer="aten::contiguous"),
        ),
        (ExpectedFinding("medium", 500_000, evidence={"all but the products": 300_000}),),
    ),
    RuleCase(
        "PD205",
        "writes-its-result-into-a-cache",
        lambda: step_of(
            *attention(100, 200), Launch(COPY, 30, "aten::copy_"), Launch(COPY, 20, "aten::copy_", outer="aten::clone")
        ),
        (ExpectedFinding("medium", 450_000, evidence={"all but the products": 250_000}),),
    ),
    RuleCase("PD205", "is-read-by-the-cpu", attention_read_by_the_cpu, (ExpectedFinding("medium", 450_000),)),
    RuleCase(
        "PD205",
        "short-but-much",
        lambda: step_of(*attention(30, 40, 128)),
        (ExpectedFinding("medium", 150_000, title="over a sequence of 128"),),
    ),
    RuleCase(  # 2 x 8 heads of 64 over a sequence of 1024
        "PD205",
        "fused-in-float32",
        lambda: step_of(fused_attention(FMHA_FP32, 500, FP32)),
        (ExpectedFinding("medium", 500_000, title="Fused attention runs in float32", fix="bfloat16", confidence=0.8),),
    ),
    RuleCase(
        "PD205",
        "fused-in-float32-on-volta",
        lambda: step_of(fused_attention(FMHA_FP32.replace("sm80", "sm70"), 500, FP32), device=V100),
        (ExpectedFinding("medium", 500_000, title="Fused attention runs in float32", fix="float16"),),
    ),
    RuleCase(
        "PD205",
        "fused-in-float32-on-ada",
        lambda: step_of(fused_attention(FMHA_FP32, 500, FP32), device=RTX4090),
        (ExpectedFinding("medium", 500_000, title="Fused attention runs in float32", fix="bfloat16"),),
    ),
    RuleCase("PD205", "fused-in-half", lambda: step_of(fused_attention(FMHA_BF16, 500, BF16))),
    RuleCase("PD205", "fused-in-float32-and-little", lambda: step_of(fused_attention(FMHA_FP32, 15, FP32), until=2000)),
    RuleCase(
        "PD205",
        "fused-in-float32-on-an-unknown-device",
        lambda: step_of(fused_attention(FMHA_FP32, 500, FP32), device=None),
    ),
    RuleCase("PD205", "healthy", build_healthy_trace),
    RuleCase(
        "PD205",
        "short-and-little-in-a-module",
        lambda: in_module(step_of(*attention(10, 10, 128, between=()), until=2000)),
    ),
    RuleCase("PD205", "fused-and-copied-back", lambda: step_of(fused_attention(FMHA_BF16, 500, BF16), COPIED_BACK)),
    RuleCase("PD205", "a-copy-before-a-fused-one", lambda: step_of(COPIED_BACK, fused_attention(FMHA_BF16, 500, BF16))),
    RuleCase(
        "PD205", "little-and-copied-back", lambda: step_of(*attention(10, 10, 128, between=()), COPIED_BACK, until=4000)
    ),
    RuleCase("PD205", "copies-alone", lambda: step_of(COPIED_BACK, COPIED_BACK)),
    RuleCase("PD205", "short-and-little", lambda: step_of(*attention(10, 10, 128, between=()), until=2000)),
    RuleCase(
        "PD205",
        "a-layer-between",
        lambda: step_of(*attention(100, 200, between=(Launch(TENSOR_GEMM, 100, "aten::addmm"),))),
    ),
    RuleCase("PD205", "log-softmax-of-a-loss", lambda: step_of(*attention(100, 200, softmax="aten::_log_softmax"))),
    RuleCase(
        "PD205",
        "softmax-of-a-router",
        lambda: step_of(Launch(TENSOR_GEMM, 300, "aten::mm"), Launch(SOFTMAX, 200, "aten::_softmax")),
    ),
    RuleCase("PD205", "on-other-threads", lambda: step_of(*attention(100, 200, threads=(1, 2, 3)))),
]

TINY = "ampere_sgemm_32x32_sliced1x4_tn"
TINY_TENSILE = "Cijk_Alik_Bljk_HHS_BH_MT16x16x64_MI16x16x16x1_SN_1LDSB0"
GEMV = "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024>"


def small_products(
    count: int, dur_us: float, kernel: str = TINY, outer: str = "", op: str = "aten::addmm"
) -> list[Launch]:
    """So many small products, in ops without recorded shapes."""
    return [Launch(kernel, dur_us, op, outer=outer) for _ in range(count)]


PD206 = [
    RuleCase(
        "PD206",
        "lstm-cells",
        lambda: step_of(*small_products(120, 4, outer="aten::lstm_cell")),
        (
            ExpectedFinding(
                "medium",
                480_000,
                (None, None, None),
                title="120 matrix products a step are too small for the GPU, half of them shorter than 4.0 us",
                advice="nn.LSTM or nn.GRU over the whole sequence",
                fix="LSTM",
                confidence=0.7,
                evidence={"cells of recurrent networks": 120, "launched by": "aten::lstm_cell"},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD206",
        "without-ops",
        lambda: step_of(*small_products(200, 2, op="")),
        (ExpectedFinding("medium", 400_000, advice="concatenate weights", confidence=0.5),),
    ),
    RuleCase(  # 64 x 256 x 256 take 0.1 us by their bytes and FLOPs, and 8 us as they are
        "PD206",
        "shapes-say-that-latency-is-all",
        lambda: step_of(*[product(TINY, 8, 64, 256, 256, FP32) for _ in range(100)]),
        (ExpectedFinding("medium", 800_000, title="8.0 us"),),
    ),
    RuleCase(
        "PD206",
        "amd",
        lambda: step_of(*small_products(100, 3, TINY_TENSILE), device=MI300X),
        (ExpectedFinding("medium", 300_000),),
    ),
    RuleCase(
        "PD206",
        "unknown-device",
        lambda: step_of(*small_products(110, 1), Launch(TENSOR_GEMM, 800), device=None),
        (ExpectedFinding("low", 110_000, evidence={"share of the step's matrix products": 99.1}),),
    ),
    RuleCase("PD206", "healthy", build_healthy_trace),
    RuleCase("PD206", "not-so-many", lambda: step_of(*small_products(99, 4))),
    RuleCase(
        "PD206", "among-more-that-are-large", lambda: step_of(*small_products(100, 2), *small_products(101, 6, SGEMM))
    ),
    RuleCase("PD206", "vector-products", lambda: step_of(*small_products(200, 3, GEMV))),
    RuleCase("PD206", "a-twentieth-is-the-least", lambda: step_of(*small_products(120, 4), until=9700)),
]
