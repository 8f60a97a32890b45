"""Cases of PD209: kernels far below what comparable ones reach, and those that are not, or belong to another rule.

The expected savings follow from the peaks by hand: an A100 SXM 80GB moves 2,039 GB/s and computes 312 TFLOP/s in
bfloat16, an H100 SXM 3,350 and 989, an MI300X 5,300 and 1,307. Launch and tail count as two kernels of 2 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rule_cases import POINTWISE, SGEMM, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

A100, H100, MI300X = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"
# Compute capability and multiprocessors, as traces have them.
DEVICES = {A100: ((8, 0), 108), H100: ((9, 0), 132), MI300X: ((9, 4), 304)}
BF16, FP32, SCALAR = "c10::BFloat16", "float", "Scalar"

STRIDED = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::AddFunctor<float>>>"
)
MIXED = "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>>"
UNALIGNED = (
    "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>, "
    "TrivialOffsetCalculator<2>, TrivialOffsetCalculator<1>, at::native::memory::LoadWithoutCast>(int)"
)
WGMMA_128 = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
ALIGN1 = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"
FLASH_2 = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false>>"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)"
BATCH_NORM = (
    "void at::native::batch_norm_backward_kernel<c10::BFloat16, c10::BFloat16, float, int>(PackedTensorAccessor)"
)
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(int)"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(ReduceOp)"
SCATTER_ADD = "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::ReduceAdd>(int)"
CONVOLUTION = (
    "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_warpsize2x2x1_g1_"
    "tensor16x8x16_execute_kernel_cudnn"
)
TENSILE = "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x1_SN_GSU1_ISA942_WGM32"
TRITON_ATTENTION = "attn_fwd"


@dataclass(frozen=True)
class Kernel:
    """An op and the one kernel that it launches."""

    kernel: str
    dur_us: float
    op: str
    shapes: Sequence[object]
    types: Sequence[str]
    strides: Sequence[object] | None = None
    concrete: Sequence[str] | None = None
    grid: Sequence[int] | None = None


def step_of(*kernels: Kernel, device: str | None = A100, until: float = 4000, shapes: bool = True) -> TraceBuilder:
    """A step of kernels that run back to back, and the CPU that waits for them."""
    capability, sm_count = DEVICES.get(device or "", (None, None))
    trace = TraceBuilder(device=device, capability=capability, sm_count=sm_count).step(0, until)
    start = 2.0 * len(kernels) + 4
    for row, each in enumerate(kernels):
        at = 1 + 2.0 * row
        inputs = (each.shapes, each.types, each.strides, each.concrete) if shapes else (None, None, None, None)
        trace.op(each.op, at, 1.8, 1, *inputs)
        call = trace.call("cudaLaunchKernel", at + 0.2, 1)
        trace.kernel(each.kernel, start, each.dur_us, correlation=call, grid=each.grid)
        start += each.dur_us
    trace.call("cudaDeviceSynchronize", 2.0 * len(kernels) + 3, until - 2.0 * len(kernels) - 4)
    return trace


def add(
    dur_us: float, kernel: str = STRIDED, rows: int = 8192, types: Sequence[str] = (FP32, FP32), **options: Any
) -> Kernel:
    """The sum of two matrices of `rows` x 8192, the second of which lies transposed unless `options` say else."""
    options = {"shapes": [[rows, 8192]] * 2, "strides": [[8192, 1], [1, rows]]} | options
    return Kernel(kernel, dur_us, "aten::add", types=[*types], **options)


def product(dur_us: float, m: int, n: int, k: int, kernel: str = TENSOR_GEMM, dtype: str = BF16) -> Kernel:
    """[m, k] x [k, n]."""
    return Kernel(kernel, dur_us, "aten::mm", [[m, k], [k, n]], [dtype, dtype], [[k, 1], [n, 1]])


def attention(dur_us: float, kernel: str = FLASH_2, length: int = 4096, head: int = 128, batch: int = 8) -> Kernel:
    """Fused attention without a mask in bfloat16, 16 heads."""
    size = [batch, length, 16, head]
    flags = ["", "", "", "", "", str(length), str(length), "0.", "False", "False", "0.088", "", "", "", ""]
    shapes = [size, size, size, *([[]] * 12)]
    return Kernel(
        kernel, dur_us, "aten::_flash_attention_forward", shapes, [BF16] * 3 + [""] * 2 + [SCALAR] * 10, None, flags
    )


def layer_norm(dur_us: float, width: int = 256, rows: int = 1 << 20) -> Kernel:
    """A layer norm in bfloat16."""
    shapes = [[rows, width], [], [width], [width], []]
    return Kernel(LAYER_NORM, dur_us, "aten::native_layer_norm", shapes, [BF16, "ScalarList", BF16, BF16, SCALAR])


def batch_norm_backward(dur_us: float, channels: int = 64) -> Kernel:
    """The backward pass of PyTorch's own batch norm: a block a channel."""
    image = [128, channels, 112, 112]
    vectors = [[channels]] * 5
    types = [BF16, BF16, BF16, FP32, FP32, FP32, FP32, SCALAR, SCALAR, "ScalarList"]
    return Kernel(
        *(BATCH_NORM, dur_us, "aten::native_batch_norm_backward", [image, image, *vectors, [], [], []], types),
        concrete=["", "", "", "", "", "", "", "True", "1e-05", "[True, True, True]"],
        grid=[channels, 1, 1],
    )


def softmax(dur_us: float, length: int = 3137) -> Kernel:
    """A softmax in bfloat16 that no attention is around."""
    shapes = [[8, 12, length, length], [], []]
    return Kernel(SOFTMAX, dur_us, "aten::_softmax", shapes, [BF16, SCALAR, SCALAR], None, ["", "-1", "False"])


def mean(dur_us: float, dimension: int) -> Kernel:
    """The mean along a dimension of a tensor of 1 GB."""
    shapes = [[256, 1024, 1024], [], [], []]
    types = [FP32, "ScalarList", SCALAR, ""]
    return Kernel(REDUCE, dur_us, "aten::mean", shapes, types, None, ["", f"[{dimension}]", "False", ""])


def scatter_add(dur_us: float, kernel: str = SCATTER_ADD) -> Kernel:
    """64 M float32 values, added to a vector at their indices."""
    shapes = [[1 << 20], [], [1 << 26], [1 << 26]]
    return Kernel(
        kernel, dur_us, "aten::scatter_add_", shapes, [FP32, SCALAR, "long int", FP32], None, ["", "0", "", ""]
    )


def convolution(dur_us: float, channels: int) -> Kernel:
    """A 3 x 3 convolution in float16 on Tensor Cores, channels in and out alike."""
    lists = ["[1, 1]", "[1, 1]", "[1, 1]"]
    shapes = [[64, channels, 256, 256], [channels, channels, 3, 3], *([[]] * 7)]
    types = ["c10::Half", "c10::Half", *(["ScalarList"] * 3), *([SCALAR] * 4)]
    concrete = ["", "", *lists, "1", "False", "False", "True"]
    return Kernel(CONVOLUTION, dur_us, "aten::cudnn_convolution", shapes, types, None, concrete)


def with_optimizer(trace: TraceBuilder) -> TraceBuilder:
    """The same kernels as part of an optimizer's step."""
    return trace.range("Optimizer.step#SGD.step", 0.5, 3)


def fires(
    name: str, *kernels: Kernel, saved_ns: int, severity: str = "medium", device: str | None = A100, **expected: Any
) -> RuleCase:
    """A case with one finding about its last kernel: what it saves at most is down to what comparable kernels reach."""
    finding = ExpectedFinding(severity, round(kernels[-1].dur_us * 1000), (0, None, saved_ns), **expected)
    return RuleCase("PD209", name, lambda: step_of(*kernels, device=device), (finding,))


def quiet(name: str, *kernels: Kernel, device: str | None = A100, shapes: bool = True) -> RuleCase:
    """A case without a finding."""
    return RuleCase("PD209", name, lambda: step_of(*kernels, device=device, shapes=shapes), ())


PD209 = [
    # 3 x 268 MB are 395 us at the peak, 464 us at 85 % of it, and 4 us.
    fires(
        "transposed-input",
        add(1200),
        saved_ns=731351,
        title="33% of the memory bandwidth, comparable ones 85%: an input or the result lies transposed",
        fix="contiguous()",
        confidence=0.6,
    ),
    fires(
        "broadcast-input",
        add(1200, strides=[[8192, 1], [0, 1]], shapes=[[8192, 8192], [1, 8192]]),
        saved_ns=886215,
        title="an input is broadcast",
        advice="Give a bias to the layer before",
    ),
    fires(
        "mixed-types",
        add(1200, MIXED, types=[FP32, BF16], strides=[[8192, 1], [8192, 1]]),
        saved_ns=808793,
        title="bf16 and fp32 are mixed in one op",
        fix="scale.to(x.dtype)",
    ),
    fires(
        "slice-that-starts-between-accesses",
        add(1200, UNALIGNED, strides=[[8192, 1], [8192, 1]]),
        saved_ns=731351,
        title="starts at no multiple of 16 bytes",
        fix="clone()",
    ),
    # Full-width loads of contiguous inputs, and slow all the same: nothing says why.
    fires(
        "unknown-cause",
        add(1500, POINTWISE, strides=[[8192, 1], [8192, 1]]),
        saved_ns=1031351,
        title="nothing recorded tells why",
        fix="ncu --set full",
        confidence=0.5,
    ),
    # 0.55 TFLOP are 0.56 ms at the peak; FlashAttention-2 reaches 31 % of it on an H100.
    fires(
        "attention-below-its-like",
        attention(3700, length=2048, head=256),
        device=H100,
        saved_ns=1903595,
        severity="medium",
        title="comparable ones 31%: a head size of 256, over 128",
        advice="Choose heads of 64 or 128",
    ),
    fires(
        "attention-of-an-older-architecture",
        attention(1600, length=2048),
        device=H100,
        saved_ns=699797,
        title="FlashAttention-2 runs, whose code is for Ampere",
        fix="CUDNN_ATTENTION",
    ),
    fires(
        "attention-by-triton-on-amd",
        attention(3700, TRITON_ATTENTION),
        device=MI300X,
        saved_ns=1258345,
        title="23% of the bf16 peak, comparable ones 34%: PyTorch's Triton kernel runs",
        fix="preferred_rocm_fa_library",
    ),
    # 0.27 TFLOP are 0.88 ms at the peak; an A100 reaches 52 % of it.
    fires(
        "attention-of-small-heads",
        attention(3900, length=1024, head=16, batch=256),
        saved_ns=2201733,
        severity="medium",
        title="a head size of 16 is padded to 32",
    ),
    # 140 tiles on 132 multiprocessors: the second wave has 8.
    fires(
        "wave-quantization",
        product(700, 1792, 1280, 16384, WGMMA_128),
        device=H100,
        saved_ns=591218,
        title="140 tiles of 128 x 128 on 132 multiprocessors make 2 waves, 53% full",
        fix="max-autotune",
    ),
    fires(
        "product-with-few-rows",
        product(600, 8, 8192, 16384),
        saved_ns=376261,
        severity="low",
        title="M = 8 leaves most of a tile empty in [8 x 16,384] x [16,384 x 8,192]",
        advice="more rows into one product",
    ),
    fires(
        "norm-of-short-rows",
        layer_norm(2600),
        saved_ns=1425773,
        severity="medium",
        title="comparable ones 45%: rows of 512 bytes keep few threads",
        fix="torch.compile(layer)",
    ),
    fires(
        "batch-norm-of-few-channels",
        batch_norm_backward(3000),
        device=MI300X,
        saved_ns=2349708,
        severity="medium",
        title="one block a channel, 64 thread blocks for 304 multiprocessors",
        fix="channels_last",
    ),
    fires(
        "softmax-of-odd-rows",
        softmax(3800),
        device=H100,
        saved_ns=2291978,
        severity="medium",
        title="rows of 6,274 bytes start at no multiple of 16",
        advice="multiple of 8",
    ),
    fires(
        "reduction-along-an-inner-dimension",
        mean(2600, 1),
        saved_ns=1785843,
        severity="medium",
        title="it is taken along dimension 1 of 3, not the last one",
    ),
    # 512 MB of indices and 3 x 256 MB of values are 659 us at the peak, of which half is usual.
    fires(
        "scatter-by-atomics",
        scatter_add(3000),
        saved_ns=1679495,
        severity="medium",
        title="what goes to one place is added one after the other",
        fix="segment_reduce",
    ),
    # 134 MB are 66 us at the peak of the bandwidth, which binds it; half of such a roof is usual.
    fires(
        "convolution-of-few-channels",
        convolution(3000, 8),
        saved_ns=2866930,
        severity="medium",
        title="8 channels leave most of a tile empty",
        fix="channels_last",
    ),
    # The fastest kernel that only moves data does twice as much a second, on whatever device this is.
    fires(
        "unknown-device",
        add(500, POINTWISE, strides=[[8192, 1], [8192, 1]]),
        add(1200),
        device="NVIDIA Nobody Knows",
        saved_ns=696000,
        title="42% of the bandwidth of the fastest kernel here",
        confidence=0.4,
    ),
    # No name, but code for gfx942: an MI300A computes 981 TFLOP/s in bfloat16, of which products reach a half.
    fires(
        "device-by-its-kernels",
        product(900, 4096, 4096, 4096, TENSILE),
        device=None,
        saved_ns=615684,
        title="comparable ones 50%",
        confidence=0.4,
    ),
    quiet("product-near-what-the-least-device-reaches", product(380, 4096, 4096, 4096, TENSILE), device=None),
    quiet("as-fast-as-comparable-kernels", add(520, POINTWISE, strides=[[8192, 1], [8192, 1]])),
    quiet("transposed-and-still-fast", add(640)),
    quiet("unaligned-and-still-fast", add(640, UNALIGNED, strides=[[8192, 1], [8192, 1]])),
    quiet("attention-at-what-its-like-reach", attention(3700), device=H100),
    quiet("attention-over-a-short-sequence", attention(1300, length=512, batch=64), device=H100),
    quiet("product-at-what-its-like-reach", product(700, 8192, 8192, 2048)),
    quiet("scatter-as-fast-as-others", scatter_add(1500)),
    quiet("convolution-at-what-its-like-reach", convolution(3800, 256)),
    quiet("short-kernels", *(add(9, rows=16) for _ in range(60))),
    quiet("under-the-least-share", add(115, rows=512)),
    quiet("without-shapes", add(1200), shapes=False),
    # The first of ten launches loads the module.
    quiet("one-slow-launch", add(1200), *(add(520) for _ in range(5))),
    quiet("unknown-device-without-a-faster-kernel", add(1200), device="NVIDIA Nobody Knows"),
    quiet("slow-path-is-left-to-PD202", product(2600, 4096, 4097, 4096, ALIGN1), device=H100),
    quiet("misaligned-on-amd-is-left-to-PD202", product(900, 4097, 4097, 4097, TENSILE), device=MI300X),
    quiet("cuda-cores-are-left-to-PD201", product(3500, 2048, 2048, 2048, SGEMM, FP32), device=H100),
]
