"""Serving engines as traces whose every time is known: what the CPU does before each pass, and what the GPU does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfdoctor.testing import TraceBuilder

DECODE_GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
FRAMES: Mapping[str, str] = {
    "scheduling": "vllm/v1/core/sched/scheduler.py(175): schedule",
    "preparing": "vllm/v1/worker/gpu_model_runner.py(700): _prepare_inputs",
    "sampling": "vllm/v1/sample/sampler.py(20): forward",
    "tokenizing": "transformers/tokenization_utils_base.py(2800): batch_encode_plus",
    "detokenizing": "vllm/v1/engine/detokenizer.py(90): update",
    "messages": "vllm/v1/serial_utils.py(120): encode",
    "model": "nn.Module: LlamaForCausalLM_0",
    "between": "serve.py(10): log_requests",
}
"""A Python frame of vLLM, or of its program, for each kind of work."""
IN_RANGE = ("sampling", "model", "preparing", "launch")
"""What the CPU does in the range of a pass; "launch" is its Python before each kernel of a pass without a graph."""
LAUNCH_US, COPY_US = 10, 2
"""How long a launch takes on the CPU, and a copy on the GPU."""


class Pass(NamedTuple):
    """A pass of the engine.

    Attributes:
        prompt: Tokens of its prompts, one request each.
        decoded: How many requests it decodes.
        gpu_us: How long its kernels take.
        kernels: How many they are.
        graphed: Whether a graph launches them.
        host_us: What the CPU does before the range (scheduling, messages, ...) and within it (`IN_RANGE`), by kind.
    """

    prompt: Sequence[int] = ()
    decoded: int = 4
    gpu_us: float = 10_000
    kernels: int = 100
    graphed: bool = True
    host_us: Mapping[str, float] = {"scheduling": 300, "preparing": 200}

    @property
    def name(self) -> str:
        """The name of its range."""
        return f"execute_context_{len(self.prompt)}({sum(self.prompt)})_generation_{self.decoded}({self.decoded})"


def serve(passes: Sequence[Pass], overlapped: bool = False, device: str = "NVIDIA H100 80GB HBM3") -> TraceBuilder:
    """An engine that makes these passes, with its loop as a frame.

    The CPU reads the tokens of a pass before it works on the next one; `overlapped` it works on the next one first.
    """
    trace = TraceBuilder(device=device, capability=(9, 0), sm_count=132)
    at, gpu_free, results = 0.0, 0.0, [0.0]
    for each in passes:
        if not overlapped:
            at = _wait(trace, at, results[-1])
        for work, took in each.host_us.items():
            if work not in IN_RANGE:
                trace.frame(FRAMES[work], at, took)
                at += took
        began = at
        for work in IN_RANGE[:-1]:
            took = each.host_us.get(work, 0)
            if took:
                trace.frame(FRAMES[work], at, took)
                at += took
        trace.memcpy("HtoD", max(at + LAUNCH_US, gpu_free), COPY_US, 64, launch_us=at, pinned=True)
        gpu_free = max(at + LAUNCH_US, gpu_free) + COPY_US
        at += LAUNCH_US
        at, gpu_free = _run_model(trace, each, at, gpu_free)
        trace.range(each.name, began, at - began)
        if overlapped:
            at = _wait(trace, at, results[-1])
        results.append(gpu_free)
    _wait(trace, at, results[-1])
    loop = "step_with_batch_queue" if overlapped else "step"
    trace.frame(f"vllm/v1/engine/core.py(423): {loop}", 0, max(at, results[-1]) + 100)
    return trace


def _run_model(trace: TraceBuilder, each: Pass, at: float, gpu_free: float) -> tuple[float, float]:
    """Launch the kernels of a pass: where the CPU and the GPU are after that."""
    dur = each.gpu_us / each.kernels
    if each.graphed:
        graph = trace.call("cudaGraphLaunch", at, LAUNCH_US)
        gpu_free = max(gpu_free, at + LAUNCH_US)
        for _ in range(each.kernels):
            trace.kernel(DECODE_GEMM, gpu_free, dur, correlation=graph)
            gpu_free += dur
        return at + LAUNCH_US, gpu_free
    for _ in range(each.kernels):
        gpu_free = max(gpu_free, at + LAUNCH_US)
        trace.op("aten::mm", at, LAUNCH_US)
        trace.kernel(DECODE_GEMM, gpu_free, dur, launch_us=at + 1)
        gpu_free, at = gpu_free + dur, at + LAUNCH_US + each.host_us.get("launch", 0)
    return at, gpu_free


def _wait(trace: TraceBuilder, at: float, until: float) -> float:
    """Wait for the tokens of a pass: the time at which the CPU goes on."""
    if until > at:
        trace.call("cudaEventSynchronize", at, until - at + 5)
    return max(at, until + 5)
