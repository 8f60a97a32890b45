"""Programs of memory-bound kernels: launches with the ops around them, for the cases of PD301 to PD306."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rule_cases import TENSOR_GEMM

from perfdoctor.testing import TraceBuilder

A100, MI300X = "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X"
FLOAT, HALF, SCALAR = "float", "c10::BFloat16", "Scalar"

MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
COPY = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>"
CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 64, 64>(float*)"
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
TRITON = "triton_poi_fused_add_gelu_mul_0"
FOREACH = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>>"
FUSED_ADAM = (
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
)
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
TO_NCHW = "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>"
AMD_TRANSPOSE = "batched_transpose_32x32_half"
IM2COL = "void at::native::im2col_kernel<float>(long, float const*, long)"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16"


@dataclass(frozen=True)
class Do:
    """One launch: the kernel, how long it runs, and the ops around it, outermost first, the last with its inputs."""

    kernel: str
    dur_us: float
    ops: tuple[str, ...] = ()
    shapes: Sequence[object] | None = None
    types: Sequence[str] | None = None
    strides: Sequence[object] | None = None
    outer_shapes: Sequence[object] | None = None
    stream: int = 7
    thread: int = 1


def program(
    *work: Do,
    around: str = "",
    steps: int = 1,
    device: str | None = A100,
    late: bool = False,
    step_us: float = 1000,
    frame: str = "",
) -> TraceBuilder:
    """Steps of kernels one behind the other; the CPU launches one each 2 us, then waits for the GPU.

    `around` is a range around all launches. `late` launches each kernel only when the one before has long ended.
    """
    trace = TraceBuilder(device=device, capability=(8, 0) if device == A100 else None)
    for number in range(steps):
        at = host = start = step_us * number
        trace.step(at, step_us)
        if frame:
            trace.frame(frame, at, step_us)
        for row in work:
            host = start if late else host
            start += 10 if late else 0
            for depth, name in enumerate(row.ops):
                inner = depth == len(row.ops) - 1
                shapes = row.shapes if inner else row.outer_shapes if depth == 0 else None
                types = row.types if inner else [FLOAT] * len(row.outer_shapes or ()) if depth == 0 else None
                spot = host + 0.1 * depth
                trace.op(name, spot, 1.9 - 0.2 * depth, row.thread, shapes, types, row.strides if inner else None)
            call = {"Memcpy": "cudaMemcpyAsync", "Memset": "cudaMemsetAsync"}.get(row.kernel[:6], "cudaLaunchKernel")
            correlation = trace.call(call, host + 1, 0.1, row.thread)
            if row.kernel.startswith("Memcpy"):
                trace.memcpy(row.kernel, start, row.dur_us, stream=row.stream, correlation=correlation)
            elif row.kernel.startswith("Memset"):
                trace.memset(start, row.dur_us, stream=row.stream, correlation=correlation)
            else:
                trace.kernel(row.kernel, start, row.dur_us, row.stream, correlation=correlation)
            start += row.dur_us
            host += 2
        if around:
            trace.range(around, at, host - at)
        trace.call("cudaDeviceSynchronize", host, at + step_us - host)
    return trace


GEMM = Do(TENSOR_GEMM, 300, ("aten::mm",))
BIG = [4096, 4096]
IMAGE, WEIGHT = [32, 64, 56, 56], [64, 64, 3, 3]
