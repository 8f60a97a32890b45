"""Cases of the rules about kernels that miss Tensor Cores: PD201, PD203."""

from __future__ import annotations

from typing import Any

from rule_cases import POINTWISE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


PD201 = [
    RuleCase(
        "PD201",
        "float32-on-a100",
        linear_in_frame,
        (
            ExpectedFinding(
                "medium",
                800_000,
                (0, None, 750_000),  # TF32's peak is 8 times as high: at best 7/8 of the time are saved
                location="model.py:20",
                title="80% of the matrix product time is spent on CUDA cores in fp32",
                fix='set_float32_matmul_precision("high")',
                confidence=0.9,
                evidence={"launched by": "aten::linear", SGEMM: 800_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(  # 125 TFLOP/s in float16 over 15.7 in float32
        "PD201",
        "float32-on-v100",
        lambda: steps_of(("volta_sgemm_128x32_nt", 800), device=V100),
        (ExpectedFinding("medium", 800_000, (0, None, 699_520), advice="autocast in float16", fix="float16"),),
    ),
    RuleCase(
        "PD201",
        "float32-on-rtx-4090",
        lambda: steps_of((SGEMM, 800), device=RTX4090),
        (ExpectedFinding("medium", 800_000, (0, None, 400_000), advice="TF32 is not faster", fix="bfloat16"),),
    ),
    RuleCase(
        "PD201",
        "float64",
        lambda: steps_of((DGEMM, 50), (TENSOR_GEMM, 900)),
        (ExpectedFinding("info", 50_000, (None, None, None), advice="PD204 says what that costs", title="in fp64"),),
    ),
    RuleCase(
        "PD201",
        "half-precision-on-cuda-cores",
        lambda: steps_of((HALF_ON_CUDA_CORES, 20), device=V100),
        (ExpectedFinding("info", 20_000, (0, None, 17_488), advice="multiples of 8", title="in fp16"),),
    ),
    RuleCase(
        "PD201",
        "sums-of-split-k-on-tensor-cores",
        lambda: steps_of((TENSOR_GEMM, 700), (SPLIT_K_TAIL, 100), op="aten::mm"),
    ),
    RuleCase(
        "PD201",
        "sums-of-split-k",
        lambda: steps_of((SGEMM, 700), (SPLIT_K_TAIL, 100), op="aten::mm"),
        (ExpectedFinding("medium", 800_000, (0, None, 750_000)),),
    ),
    RuleCase("PD201", "cpu-that-does-not-wait", busy_cpu, (ExpectedFinding("medium", 800_000, (0, None, 100_000)),)),
    RuleCase(
        "PD201",
        "unknown-device-proven-by-a-kernel",
        lambda: steps_of((SGEMM, 400), (TENSOR_GEMM, 600), device=None),
        (ExpectedFinding("medium", 400_000, (0, None, 400_000), title="40%", advice="half precision, or TF32"),),
    ),
    RuleCase(
        "PD201",
        "xmma-is-no-tensor-core",
        lambda: steps_of((SIMT_XMMA, 300), (POINTWISE, 300), steps=2),
        (ExpectedFinding("medium", 300_000, (0, None, 281_250)),),
    ),
    RuleCase(  # the others would not use TF32 if it were off
        "PD201",
        "although-tf32-is-on",
        lambda: steps_of((SGEMM, 200), (TF32_GEMM, 600)),
        (ExpectedFinding("medium", 200_000, (0, None, 187_500), title="although TF32 is on", advice="multiples of 8"),),
    ),
    RuleCase(
        "PD201",
        "captured-flags-say-that-tf32-is-on",
        lambda: steps_of((SGEMM, 200)),
        (ExpectedFinding("medium", 200_000, title="in fp32 although TF32 is on", advice="is allowed already"),),
        facts={"flags": {"matmul_allow_tf32": True}},
    ),
    RuleCase(
        "PD201",
        "the-captured-precision-allows-tf32",
        lambda: steps_of((SGEMM, 200)),
        (ExpectedFinding("medium", 200_000, title="in fp32 although TF32 is on"),),
        facts={"flags": {"matmul_allow_tf32": None, "float32_matmul_precision": "high"}},
    ),
    RuleCase(
        "PD201",
        "captured-flags-say-that-tf32-is-off",
        lambda: steps_of((SGEMM, 200)),
        (ExpectedFinding("medium", 200_000, fix='set_float32_matmul_precision("high")'),),
        facts={"flags": {"matmul_allow_tf32": False, "float32_matmul_precision": "highest"}},
    ),
    RuleCase(
        "PD201",
        "float32-beside-bfloat16",
        lambda: steps_of((SGEMM, 100), (TENSOR_GEMM, 600)),
        (ExpectedFinding("medium", 100_000, title="in fp32, the others in bf16", advice="outside of autocast"),),
    ),
    RuleCase(
        "PD201",
        "bounded-by-the-roofline",
        lambda: steps_of((SGEMM, 600), op="aten::mm", shapes=[[4096, 1024], [1024, 1024]], types=["float", "float"]),
        (ExpectedFinding("medium", 600_000, confidence=0.9),),
    ),
    RuleCase("PD201", "healthy", build_healthy_trace),
    RuleCase("PD201", "pascal", lambda: steps_of(("maxwell_sgemm_128x64_nn", 800), device="Quadro GP100")),
    RuleCase("PD201", "turing-without-tensor-cores", lambda: steps_of((SGEMM, 800), device="NVIDIA GeForce GTX 1650")),
    RuleCase(
        "PD201",
        "matrix-times-vector",
        lambda: steps_of(("gemvNSP_kernel", 400), ("void gemmSN_NN_kernel<float, 2>", 300)),
    ),
    RuleCase(
        "PD201", "small-inner-dimension", lambda: steps_of((SGEMM, 500), op="aten::mm", shapes=[[4096, 16], [16, 4096]])
    ),
    RuleCase("PD201", "tf32", lambda: steps_of((TF32_GEMM, 700), (SPLIT_K_TAIL, 200))),
    RuleCase("PD201", "product-of-a-convolution", lambda: steps_of((SGEMM, 500), op="aten::cudnn_convolution")),
    RuleCase(  # 17 rows on a matrix of 64 MB: memory bounds it, with or without Tensor Cores
        "PD201",
        "bound-by-memory",
        lambda: steps_of((SGEMM, 60), op="aten::mm", shapes=[[17, 4096], [4096, 4096]], types=["float", "float"]),
    ),
    RuleCase(  # 100 TFLOP/s are five times what CUDA cores can do: the name is wrong
        "PD201",
        "faster-than-its-name-says",
        lambda: steps_of((SGEMM, 687), op="aten::mm", shapes=[[4096, 4096], [4096, 2048]], types=["float", "float"]),
    ),
    RuleCase("PD201", "nothing-but-half-precision", lambda: steps_of((TENSOR_GEMM, 700), (SPLIT_K_TAIL, 100))),
    RuleCase("PD201", "unknown-device", lambda: steps_of((MAXWELL_SGEMM, 800), device=None)),
    RuleCase(  # every Ampere and Ada device has Tensor Cores
        "PD201",
        "unknown-device-of-a-generation",
        lambda: steps_of((SGEMM, 800), device=None),
        (ExpectedFinding("medium", 800_000, (0, None, 800_000), title="100%", advice="half precision, or TF32"),),
    ),
    RuleCase(  # a GeForce GTX 16 is Turing and has none
        "PD201", "unknown-device-of-two-generations", lambda: steps_of(("volta_sgemm_128x32_nt", 800), device=None)
    ),
    RuleCase(  # twice 9 us are more than 10 us, and less than a hundredth of the steps
        "PD201", "less-than-a-hundredth", lambda: steps_of((SGEMM, 9), (POINTWISE, 900), steps=2)
    ),
    RuleCase(  # 0.5 MFLOP: the launch takes longer than they do anywhere
        "PD201",
        "bound-by-latency",
        lambda: steps_of(*[(SGEMM, 3)] * 30, op="aten::mm", shapes=[[64, 64], [64, 64]], types=["float", "float"]),
    ),
    RuleCase("PD201", "verdict-unknown-and-too-little", lambda: steps_of(("triton_tem_fused_mm_0", 800), (SGEMM, 9.9))),
]

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


PD203 = [
    RuleCase(
        "PD203",
        "float32-on-a100",
        lambda: steps_of((SCUDNN, 400), (HALF_CONVOLUTION, 400), op="aten::convolution"),
        (
            ExpectedFinding(
                "medium",
                400_000,
                (0, None, 375_000),
                title="50% of the convolution time is spent on CUDA cores in fp32",
                fix="cudnn.allow_tf32",
                evidence={"launched by": "aten::convolution", SCUDNN: 400_000},
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD203",
        "float32-on-v100",
        lambda: steps_of((DGRAD, 500), device=V100, steps=2),
        (ExpectedFinding("medium", 500_000, (0, None, 437_200), advice="autocast in float16"),),
    ),
    RuleCase(
        "PD203",
        "float32-on-rtx-4090",
        lambda: steps_of((SCUDNN, 60), (POINTWISE, 900), device=RTX4090),
        (ExpectedFinding("low", 60_000, (0, None, 30_000), advice="bfloat16"),),
    ),
    RuleCase(
        "PD203",
        "half-precision-already",
        lambda: steps_of((BF16_ON_CUDA_CORES, 25)),
        (ExpectedFinding("info", 25_000, (0, None, 23_438), advice="in half precision already", fix="channels_last"),),
    ),
    RuleCase(
        "PD203",
        "amd",
        lambda: steps_of((AMD_WINOGRAD, 500), device="AMD Instinct MI300X"),
        (ExpectedFinding("medium", 500_000, advice="bfloat16", title="100%"),),
    ),
    RuleCase(
        "PD203",
        "cpu-that-hardly-waits",
        lambda: steps_of((SCUDNN, 800), wait_us=50),
        (ExpectedFinding("low", 800_000, (0, None, 50_000)),),
    ),
    RuleCase(  # cuDNN computes it as a product
        "PD203",
        "product-of-a-convolution",
        lambda: steps_of(("volta_sgemm_64x64_nt", 500), (TENSOR_GEMM, 100), device=V100, op="aten::cudnn_convolution"),
        (ExpectedFinding("medium", 500_000, (0, None, 437_200), title="83% of the convolution time"),),
    ),
    RuleCase(
        "PD203",
        "transforms-of-tensor-core-kernels",
        lambda: steps_of((WINOGRAD_HELPER, 200), (HALF_CONVOLUTION, 400), op="aten::convolution"),
    ),
    RuleCase(
        "PD203",
        "copies-by-an-op-of-tensor-core-kernels",
        lambda: steps_of((LAYOUT_COPY, 100), (HALF_CONVOLUTION, 400), op="aten::cudnn_convolution"),
    ),
    RuleCase(
        "PD203",
        "transforms-of-little",
        lambda: steps_of((WINOGRAD_HELPER, 4), (SCUDNN, 5), op="aten::cudnn_convolution"),
    ),
    RuleCase(  # Winograd by a product: its transforms, and a copy into another layout
        "PD203",
        "transforms-by-the-same-op",
        lambda: steps_of(
            (WINOGRAD_HELPER, 200),
            ("volta_sgemm_128x64_nn", 300),
            (LAYOUT_COPY, 100),
            device=V100,
            op="aten::cudnn_convolution",
        ),
        (
            ExpectedFinding(
                "medium",
                600_000,
                (0, None, 524_640),
                title="100% of the convolution time",
                evidence={"transforms and copies by the same ops": 300_000},
            ),
        ),
    ),
    RuleCase(  # whether the transform helps the one or the other is unknown
        "PD203",
        "transforms-of-tensor-core-kernels-too",
        lambda: steps_of((WINOGRAD_HELPER, 200), (SCUDNN, 300), (HALF_CONVOLUTION, 100), op="aten::convolution"),
        (ExpectedFinding("medium", 300_000, title="75% of the convolution time"),),
    ),
    RuleCase(  # a region launches what it likes
        "PD203",
        "transforms-in-a-compiled-region",
        lambda: steps_of((WINOGRAD_HELPER, 200), (SCUDNN, 300), op="Torch-Compiled Region: 0/0"),
        (ExpectedFinding("medium", 300_000),),
    ),
    RuleCase(
        "PD203",
        "although-tf32-is-on",
        lambda: steps_of((SCUDNN, 200), (TF32_CONVOLUTION, 400)),
        (
            ExpectedFinding(
                "medium", 200_000, (0, None, 187_500), title="33%", advice="TF32 is allowed already", fix="benchmark"
            ),
        ),
    ),
    RuleCase(
        "PD203",
        "float64",
        lambda: steps_of(
            ("void cudnn::cnn::implicit_convolve_dgemm<double, double, 128, 5, 5, 3, 3, 3, 1, false>", 90)
        ),
        (ExpectedFinding("info", 90_000, (None, None, None), advice="PD204 says what that costs"),),
    ),
    RuleCase("PD203", "healthy", build_healthy_trace),
    RuleCase("PD203", "pascal", lambda: steps_of((MAXWELL_SCUDNN, 800), device="Quadro GP100")),
    RuleCase("PD203", "turing-without-tensor-cores", lambda: steps_of((SCUDNN, 800), device="NVIDIA GeForce GTX 1650")),
    RuleCase("PD203", "depthwise", lambda: steps_of((DEPTHWISE, 800))),
    RuleCase("PD203", "helpers", lambda: steps_of((WINOGRAD_HELPER, 400), (LAYOUT_COPY, 300), (TF32_CONVOLUTION, 200))),
    RuleCase("PD203", "product-of-no-convolution", lambda: steps_of((SGEMM, 800), op="aten::mm")),
    RuleCase("PD203", "groups-of-four-channels", lambda: grouped_convolution(64, 256)),
    RuleCase("PD203", "bound-by-memory", lambda: grouped_convolution(1, 16)),
    RuleCase("PD203", "all-in-tf32", lambda: steps_of((TF32_CONVOLUTION, 800))),
    RuleCase("PD203", "unknown-device", lambda: steps_of((MAXWELL_SCUDNN, 800), device=None)),
    RuleCase(
        "PD203",
        "unknown-device-of-a-generation",
        lambda: steps_of((SCUDNN, 800), device=None),
        (ExpectedFinding("medium", 800_000, (0, None, 800_000), title="100%"),),
    ),
]
