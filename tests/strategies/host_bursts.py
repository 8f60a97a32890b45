"""Bursts of what the host does between launches for traces for laws: what the rules PD106 and PD108 look for.

Times keep to the grid of `trace_strategies`: all edges within a slot at most 2 us from its ends.
"""

from __future__ import annotations

from perfdoctor.testing import TraceBuilder

SLOT = 30
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"


def made_on_host(trace: TraceBuilder, at: int) -> None:
    """A mask of the host: copied, waited for, and only then comes the next launch."""
    trace.kernel(GEMM, at, 4 * SLOT, correlation=trace.call("cudaLaunchKernel", at, 2))
    trace.op("aten::ones", at + SLOT, 2).op("aten::to", at + 2 * SLOT, 5 * SLOT)
    call = trace.call("cudaMemcpyAsync", at + 2 * SLOT, 2)
    trace.memcpy("HtoD", at + 4 * SLOT, SLOT, 4096, correlation=call)
    trace.call("cudaStreamSynchronize", at + 3 * SLOT, 3 * SLOT)
    trace.kernel(GEMM, at + 8 * SLOT, SLOT, correlation=trace.call("cudaLaunchKernel", at + 7 * SLOT, 2))


def compiled_again(trace: TraceBuilder, at: int) -> None:
    """Nothing is launched for ten slots, because dynamo compiles."""
    trace.kernel(GEMM, at, SLOT, correlation=trace.call("cudaLaunchKernel", at, 2))
    trace.op("dynamo", at + SLOT, 10 * SLOT).op("_compile.compile_inner (dynamo_timed)", at + SLOT, 10 * SLOT - 1)
    trace.kernel(GEMM, at + 12 * SLOT, SLOT, correlation=trace.call("cudaLaunchKernel", at + 11 * SLOT, 2))
