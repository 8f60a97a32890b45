"""Bursts of data-parallel training, for the rules PD404 to PD406, in traces for laws.

Times keep to the grid of `trace_strategies`: every edge lies at most 2 us from an end of its slot.
"""

from __future__ import annotations

from perfdoctor.testing import TraceBuilder, collective

SLOT = 30
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
FORWARD = "DistributedDataParallel.forward"


def add_data_parallel(trace: TraceBuilder, at: int) -> None:
    """DataParallel copies to a second device before both compute."""
    trace.range("DataParallel.forward", at, 2 * SLOT).op("Broadcast", at, SLOT)
    trace.memcpy("PtoP", at + SLOT, 2 * SLOT, correlation=trace.call("cudaMemcpyPeerAsync", at + 1, 2))
    for device in (0, 1):
        launch = trace.call("cudaLaunchKernel", at + (1 + device) * SLOT, 2)
        trace.kernel(GEMM, at + 3 * SLOT, 8 * SLOT, correlation=launch, device=device, stream=7 + device)


def add_buffer_broadcast(trace: TraceBuilder, at: int) -> None:
    """A broadcast that nothing covers, before the forward pass."""
    trace.range(FORWARD, at, 4 * SLOT)
    trace.kernel(BROADCAST, at + SLOT, 2 * SLOT, correlation=trace.call("cudaLaunchKernel", at, 2), stream=20)
    trace.kernel(GEMM, at + 3 * SLOT, 8 * SLOT, correlation=trace.call("cudaLaunchKernel", at + SLOT, 2))


def add_gradient_accumulation(trace: TraceBuilder, at: int) -> None:
    """Two passes before the optimizer step, both of which reduce their gradients."""
    for begin in (at, at + 5 * SLOT):
        trace.range(FORWARD, begin, SLOT)
        trace.kernel(GEMM, begin, 3 * SLOT, correlation=trace.call("cudaLaunchKernel", begin, 2))
        trace.op(
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", begin + 2 * SLOT, SLOT, thread=2
        )
        trace.op("c10d::allreduce_", begin + 2 * SLOT + 1, SLOT - 2, thread=2)
        launch = trace.call("cudaLaunchKernel", begin + 2 * SLOT + 1, 2, thread=2)
        trace.kernel(ALL_REDUCE, begin + 3 * SLOT, 2 * SLOT, correlation=launch, stream=20)
    trace.range("Optimizer.step#SGD.step", at + 10 * SLOT, SLOT)


def add_small_all_reduces(trace: TraceBuilder, at: int) -> None:
    """Ten all-reduces of 4 KB one after the other."""
    trace.kernel(GEMM, at, SLOT, correlation=trace.call("cudaLaunchKernel", at, 2))
    comm = collective(in_elements=1024, ranks=range(8))
    for slot in range(1, 11):
        launch = trace.call("cudaLaunchKernel", at + (slot - 1) * SLOT, 2)
        trace.kernel(ALL_REDUCE, at + slot * SLOT, SLOT, correlation=launch, stream=20, comm=comm)


BURSTS = (add_data_parallel, add_buffer_broadcast, add_gradient_accumulation, add_small_all_reduces)
