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
class Launch:
    """The launch of one kernel by nested ops.

    Attributes:
        kernel: Name of the kernel.
        dur_us: How long it runs.
        ops: Names of the ops around the launch, outermost first.
        shapes, types, strides: Recorded inputs of the innermost op.
        outer_shapes: Recorded inputs of the outermost op.
        stream: The kernel's stream.
        thread: The launching thread.
    """

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
    *launches: Launch,
    range_name: str = "",
    steps: int = 1,
    device: str | None = A100,
    late_launches: bool = False,
    step_us: float = 1000,
    frame: str = "",
) -> TraceBuilder:
    """Steps of kernels that run one after the other; the CPU launches one every 2 us, then waits for the GPU.

    Args:
        launches: What each step launches.
        range_name: Name of a range around all launches of a step; empty for none.
        steps: How many steps.
        device: Name of the GPU.
        late_launches: The CPU launches each kernel only when the one before has ended: the GPU waits 10 us for it.
        step_us: Length of a step.
        frame: Python frame around each step; empty for none.
    """
    trace = TraceBuilder(device=device, capability=(8, 0) if device == A100 else None)
    for number in range(steps):
        begin = cpu = gpu = step_us * number
        trace.step(begin, step_us)
        if frame:
            trace.frame(frame, begin, step_us)
        for launch in launches:
            if late_launches:
                cpu, gpu = gpu, gpu + 10
            add_launch(trace, launch, cpu, gpu)
            cpu += 2
            gpu += launch.dur_us
        if range_name:
            trace.range(range_name, begin, cpu - begin)
        trace.call("cudaDeviceSynchronize", cpu, begin + step_us - cpu)
    return trace


def add_launch(trace: TraceBuilder, launch: Launch, cpu: float, gpu: float) -> None:
    """Add the ops and the call at `cpu` us, and the kernel, copy or memset at `gpu` us."""
    for depth, name in enumerate(launch.ops):
        shapes, types, strides = None, None, None
        if depth == len(launch.ops) - 1:
            shapes, types, strides = launch.shapes, launch.types, launch.strides
        elif depth == 0:
            shapes, types = launch.outer_shapes, [FLOAT] * len(launch.outer_shapes or ())
        trace.op(name, cpu + 0.1 * depth, 1.9 - 0.2 * depth, launch.thread, shapes, types, strides)
    call = {"Memcpy": "cudaMemcpyAsync", "Memset": "cudaMemsetAsync"}.get(launch.kernel[:6], "cudaLaunchKernel")
    correlation = trace.call(call, cpu + 1, 0.1, launch.thread)
    if launch.kernel.startswith("Memcpy"):
        trace.memcpy(launch.kernel, gpu, launch.dur_us, stream=launch.stream, correlation=correlation)
    elif launch.kernel.startswith("Memset"):
        trace.memset(gpu, launch.dur_us, stream=launch.stream, correlation=correlation)
    else:
        trace.kernel(launch.kernel, gpu, launch.dur_us, launch.stream, correlation=correlation)


GEMM = Launch(TENSOR_GEMM, 300, ("aten::mm",))
BIG = [4096, 4096]
IMAGE, WEIGHT = [32, 64, 56, 56], [64, 64, 3, 3]
