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
