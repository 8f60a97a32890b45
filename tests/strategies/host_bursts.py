"""Bursts of host activity between launches, for the rules PD106 and PD108, in traces for laws.

Times keep to the grid of `trace_strategies`: every edge lies at most 2 us from an end of its slot.
"""

from __future__ import annotations

from perfdoctor.testing import TraceBuilder

SLOT = 30
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"


def add_host_made_tensor(trace: TraceBuilder, at: int) -> None:
    """A mask made on the host is copied and waited for before the next launch."""
    trace.kernel(GEMM, at, 4 * SLOT, correlation=trace.call("cudaLaunchKernel", at, 2))
    trace.op("aten::ones", at + SLOT, 2).op("aten::to", at + 2 * SLOT, 5 * SLOT)
    call = trace.call("cudaMemcpyAsync", at + 2 * SLOT, 2)
    trace.memcpy("HtoD", at + 4 * SLOT, SLOT, 4096, correlation=call)
    trace.call("cudaStreamSynchronize", at + 3 * SLOT, 3 * SLOT)
    trace.kernel(GEMM, at + 8 * SLOT, SLOT, correlation=trace.call("cudaLaunchKernel", at + 7 * SLOT, 2))


def add_recompilation(trace: TraceBuilder, at: int) -> None:
    """Nothing is launched for ten slots while dynamo compiles."""
    trace.kernel(GEMM, at, SLOT, correlation=trace.call("cudaLaunchKernel", at, 2))
    trace.op("dynamo", at + SLOT, 10 * SLOT).op("_compile.compile_inner (dynamo_timed)", at + SLOT, 10 * SLOT - 1)
    trace.kernel(GEMM, at + 12 * SLOT, SLOT, correlation=trace.call("cudaLaunchKernel", at + 11 * SLOT, 2))
