"""Names and steps that the cases of several rules use."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder

# Real names of kernels: one that uses Tensor Cores, one that does not, one that is no matrix maths, a collective.
TENSOR_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
SGEMM = "ampere_sgemm_128x64_nn"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def step_of(
    *spans: tuple[float, float], device: str | None = "NVIDIA A100-SXM4-80GB", until: float = 1000, **options: Any
) -> TraceBuilder:
    """One step ``[0, until)`` us in which Tensor Core products fill the spans.

    All are launched at the start of the step, so that idle time between two spans is no late launch. `options` are
    those of the TraceBuilder.
    """
    trace = TraceBuilder(device=device, **options).step(0, until)
    for row, (start, end) in enumerate(spans):
        trace.kernel(TENSOR_GEMM, start, end - start, launch_us=0.01 * row)
    return trace
