"""Serving engines as traces whose every time is known: what the CPU does before each pass, and what the GPU does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfdoctor.testing import TraceBuilder

DECODE_GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
ROW_KERNELS = (
    "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>",
)
CUSTOM_REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(RankData*, RankSignals, Signal*, int, int)"
FRAMES: Mapping[str, str] = {
    "scheduling": "vllm/v1/core/sched/scheduler.py(175): schedule",
    "preparing": "vllm/v1/worker/gpu_model_runner.py(700): _prepare_inputs",
    "sampling": "vllm/v1/sample/sampler.py(20): forward",
    "tokenizing": "transformers/tokenization_utils_base.py(2800): batch_encode_plus",
    "detokenizing": "vllm/v1/engine/detokenizer.py(90): update",
    "messages": "vllm/v1/serial_utils.py(120): encode",
    "model": "nn.Module: LlamaForCausalLM_0",
    "no_requests": "vllm/v1/engine/core.py(1148): _process_input_queue",
    "between": "serve.py(10): log_requests",
}
"""A Python frame of vLLM, or of its program, for each kind of work."""
SGLANG: Mapping[str, str] = {
    "loop": "sglang/srt/managers/scheduler.py(1500): event_loop_normal",
    "no_requests": "sglang/srt/managers/scheduler.py(2000): self_check_during_idle",
    "scheduling": "sglang/srt/managers/scheduler.py(1900): get_next_batch_to_run",
    "preparing": "sglang/srt/model_executor/cuda_graph_runner.py(1275): replay_prepare",
}
RANGES: Mapping[str, str] = {"scheduling": "schedule: allocate_slots", "preparing": "gpu_model_runner: preprocess"}
"""The ranges of vLLM's parts, with VLLM_CUSTOM_SCOPES_FOR_PROFILING=1."""
TENSORRT_LLM: Mapping[str, str] = {"scheduling": "_schedule"}
DEQUEUE = "vllm/distributed/device_communicators/shm_broadcast.py(520): dequeue"
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
        label: The name of its range; "" for vLLM's.
        cpu_ops: Ops that compute on the CPU after the pass, in a frame of the sampler, and how long each takes.
        logits: Bytes that are copied to the CPU before them.
        rows: How many rows its norms and rotations compute, one a block; 0 for no such kernels.
        collectives: How many collectives run between them.
        collective_us: How long each takes.
        host_us: What the CPU does before the range (scheduling, messages, ...) and within it (`IN_RANGE`), by kind.
    """

    prompt: Sequence[int] = ()
    decoded: int = 4
    gpu_us: float = 10_000
    kernels: int = 100
    graphed: bool = True
    label: str = ""
    cpu_ops: Mapping[str, float] = {}
    logits: int = 0
    rows: int = 0
    collectives: int = 0
    collective_us: float = 10
    host_us: Mapping[str, float] = {"scheduling": 300, "preparing": 200}

    @property
    def name(self) -> str:
        """The name of its range."""
        vllm = f"execute_context_{len(self.prompt)}({sum(self.prompt)})_generation_{self.decoded}({self.decoded})"
        return self.label or vllm


class _Engine:
    """The trace, and where CPU and GPU are; times in microseconds."""

    def __init__(self, frames: Mapping[str, str], stacks: bool, worker: bool) -> None:
        self.trace = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)
        self.frames, self.stacks, self.worker = frames, stacks, worker
        self.at = self.gpu_free = 0.0

    def work(self, name: str, dur: float) -> None:
        """Work of the CPU in a frame, or in a range of the engine."""
        if name in (*RANGES.values(), *TENSORRT_LLM.values()):
            self.trace.range(name, self.at, dur)
        elif self.stacks:
            self.trace.frame(name, self.at, dur)
        self.at += dur

    def wait(self, until: float) -> None:
        """Wait for the tokens of a pass, or as a worker for the next message."""
        if until > self.at and self.worker:
            self.work(DEQUEUE, until + 5 - self.at)
        elif until > self.at:
            self.trace.call("cudaEventSynchronize", self.at, until + 5 - self.at)
            self.at = until + 5

    def run(self, each: Pass) -> None:
        """A pass: what comes before its range, its inputs, and its kernels."""
        for kind in each.host_us:
            if kind not in IN_RANGE:
                self.work(self.frames[kind], each.host_us[kind])
        began = self.at
        for kind in IN_RANGE[:-1]:
            if kind in each.host_us:
                self.work(self.frames[kind], each.host_us[kind])
        start = max(self.at + LAUNCH_US, self.gpu_free)
        self.trace.memcpy("HtoD", start, COPY_US, 64, launch_us=self.at, pinned=True)
        self.at, self.gpu_free = self.at + LAUNCH_US, start + COPY_US
        (self._launch_graph if each.graphed else self._launch_kernels)(each, each.gpu_us / each.kernels)
        self.trace.range(each.name, began, self.at - began)
        if each.logits:
            self.trace.op("aten::copy_", self.at, LAUNCH_US)
            self.trace.memcpy("DtoH", self.gpu_free, COPY_US, each.logits, launch_us=self.at + 1, pinned=True)
            self.gpu_free += COPY_US
            self.at += LAUNCH_US
        if each.cpu_ops:
            self.wait(self.gpu_free)
            sampled = self.at
            for name, took in each.cpu_ops.items():
                self.trace.op(name, self.at, took)
                self.at += took
            if self.stacks:
                self.trace.frame(self.frames["sampling"], sampled, self.at - sampled)

    def _launch_graph(self, each: Pass, dur: float) -> None:
        graph = self.trace.call("cudaGraphLaunch", self.at, LAUNCH_US)
        self.at += LAUNCH_US
        self.gpu_free = max(self.gpu_free, self.at)
        for name in ROW_KERNELS if each.rows else ():
            self.trace.kernel(name, self.gpu_free, COPY_US, correlation=graph, grid=[each.rows, 1, 1])
            self.gpu_free += COPY_US
        for number in range(each.kernels):
            self.trace.kernel(DECODE_GEMM, self.gpu_free, dur, correlation=graph)
            self.gpu_free += dur
            if number < each.collectives:
                self.trace.kernel(CUSTOM_REDUCE, self.gpu_free, each.collective_us, correlation=graph)
                self.gpu_free += each.collective_us

    def _launch_kernels(self, each: Pass, dur: float) -> None:
        for _ in range(each.kernels):
            self.trace.op("aten::mm", self.at, LAUNCH_US)
            start = max(self.gpu_free, self.at + LAUNCH_US)
            self.trace.kernel(DECODE_GEMM, start, dur, launch_us=self.at + 1)
            self.gpu_free, self.at = start + dur, self.at + LAUNCH_US + each.host_us.get("launch", 0)


def serve(
    passes: Sequence[Pass],
    overlapped: bool = False,
    stacks: bool = True,
    worker: bool = False,
    frames: Mapping[str, str] = FRAMES,
) -> TraceBuilder:
    """An engine that makes these passes, with its loop as a frame.

    The CPU reads the tokens of a pass before it works on the next one; `overlapped` it works on the next one first.

    Args:
        passes: The passes.
        overlapped: Whether the engine schedules ahead.
        stacks: Whether Python frames are recorded.
        worker: Whether it is a process that only runs the model, and gets its work by messages in place of tokens.
        frames: The frame of each kind of work.
    """
    engine, results = _Engine(frames, stacks, worker), [0.0]
    for each in passes:
        if not overlapped:
            engine.wait(results[-1])
        engine.run(each)
        if overlapped:
            engine.wait(results[-1])
        results.append(engine.gpu_free)
    engine.wait(results[-1])
    took, engine.at = engine.at, 0.0
    loop = f"vllm/v1/engine/core.py(423): {'step_with_batch_queue' if overlapped else 'step'}"
    engine.work(frames.get("loop", loop), took + 100)
    return engine.trace
