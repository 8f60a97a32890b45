"""Cases of the rules about kernels that miss Tensor Cores: PD201, PD203."""

from __future__ import annotations

from typing import Any

from rule_cases import POINTWISE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

A100, V100, RTX4090 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090"
CAPABILITY = {A100: (8, 0), V100: (7, 0), RTX4090: (8, 9), "Quadro GP100": (6, 0), "NVIDIA GeForce GTX 1650": (7, 5)}

DGEMM = "ampere_dgemm_128x64_nn"
MAXWELL_SGEMM = "maxwell_sgemm_128x64_nn"
HALF_ON_CUDA_CORES = "volta_fp16_sgemm_fp16_128x64_nn"
SPLIT_K_TAIL = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"
TF32_GEMM = "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4"
SIMT_XMMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
    "_execute_kernel__5x_cublas"
)


def steps_of(
    *kernels: tuple[str, float],
    device: str | None = A100,
    wait_us: float = 990,
    steps: int = 1,
    shapes: Any = None,
    types: Any = None,
    concrete: Any = None,
    op: str = "",
) -> TraceBuilder:
    """Steps with these kernels one after the other; the CPU waits for the GPU until the end of each step."""
    trace = TraceBuilder(device=device, capability=CAPABILITY.get(device or ""))
    for number in range(steps):
        at = start = 1000.0 * number
        trace.step(at, 1000)
        if op:
            trace.op(op, at, 9, shapes=shapes, types=types, concrete=concrete)
        for row, (name, dur_us) in enumerate(kernels):
            trace.kernel(name, start, dur_us, launch_us=at + 0.1 * row)
            start += dur_us
        trace.call("cudaDeviceSynchronize", at + 1000 - wait_us, wait_us)
    return trace


def busy_cpu() -> TraceBuilder:
    """The CPU waits for the GPU for 100 us only: however fast the kernels become, the step gets no faster than that."""
    trace = TraceBuilder().step(0, 1000).kernel(SGEMM, 0, 800, launch_us=0).op("aten::backward", 6, 690)
    trace.call("cudaStreamSynchronize", 700, 100)
    return trace.op("aten::step", 800, 200)


def linear_in_frame() -> TraceBuilder:
    trace = steps_of((SGEMM, 800), (TENSOR_GEMM, 200), op="aten::linear", shapes=[[512, 512], [512, 512]])
    trace.frame("model.py(20): forward", 0, 10)
    return trace


MAXWELL_SCUDNN = "maxwell_scudnn_128x64_relu_small_nn_v1"
SCUDNN = "cudnn_infer_ampere_scudnn_128x64_relu_medium_nn_v1"
DGRAD = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)"
BF16_ON_CUDA_CORES = "void precomputed_convolve_sgemm<__nv_bfloat16, 1024, 5, 5, 4, 3, 3, 1, false>(int, int, int)"
AMD_WINOGRAD = "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1"
TF32_CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16"
HALF_CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_stage4"
WINOGRAD_HELPER = "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>"
LAYOUT_COPY = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
DEPTHWISE = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>"


def grouped_convolution(groups: int, channels: int) -> TraceBuilder:
    """A 1 x 1 convolution in groups, on CUDA cores."""
    return steps_of(
        (SCUDNN, 400),
        op="aten::convolution",
        shapes=[[8, channels, 56, 56], [channels, channels // groups, 1, 1], *[[]] * 7],
        types=["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"],
        concrete=["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", str(groups)],
    )
